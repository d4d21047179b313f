"""The sizes of flows: what `aipo train --model NAME` builds, and what the embedded priors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aipo.flows.base import Flow
from aipo.flows.glow import Glow
from aipo.flows.noise_flow import NoiseFlow
from aipo.flows.realnvp import RealNVP
from aipo.flows.tarflow import TarFlow

__all__ = ["NOISE_PRESETS", "PRESETS", "make_flow"]

PRESETS: dict[str, tuple[Callable[..., Flow], dict[str, Any]]] = {
    # For images of one size, such as faces of 64x64:
    # Most bits are spent on the finest level and most parameters on the coarse ones, where they cost little time.
    "realnvp": (RealNVP, {"couplings": [8, 8, 8, 4], "hidden": [80, 96, 128, 128]}),
    "realnvp-small": (RealNVP, {"couplings": [6, 6, 4, 4], "hidden": [32, 48, 40, 32]}),
    "glow": (Glow, {"steps": [16, 16, 12, 4], "hidden": [192, 224, 256, 256]}),
    "tarflow": (
        TarFlow,
        {
            "patch": 4,
            "width": 256,
            "head": 64,
            "blocks": 5,
            "layers": 3,
            "thumbnail_couplings": [6, 4],
            "thumbnail_hidden": [80, 80],
        },
    ),
}
# For images of any size, at every noise level. Nearly all of the time goes into the finest level.
NOISE_PRESETS: dict[str, dict[str, Any]] = {
    "photo": {"couplings": [10, 10, 6, 4], "hidden": [96, 96, 96, 64], "blocks": [1, 1, 1, 1]},
    "photo-small": {"couplings": [6, 6, 4, 4], "hidden": [64, 64, 48, 32], "blocks": [1, 1, 1, 1]},
    "face": {"couplings": [10, 10, 6, 4], "hidden": [96, 96, 96, 64], "blocks": [1, 1, 1, 1]},
}


def make_flow(preset: str, image_shape: tuple[int, int, int], seed: int = 0) -> Flow | NoiseFlow:
    """A fresh flow of a preset size; only a flow for images of one size needs their shape."""
    if preset in NOISE_PRESETS:
        return NoiseFlow(seed=seed, **NOISE_PRESETS[preset])
    flow, config = PRESETS[preset]
    return flow(image_shape=image_shape, seed=seed, **config)
