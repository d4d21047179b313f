"""The sizes of flows for 64x64 faces: what `aipo train --model NAME` builds, and what the embedded priors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aipo.flows.base import Flow
from aipo.flows.glow import Glow
from aipo.flows.realnvp import RealNVP
from aipo.flows.tarflow import TarFlow

__all__ = ["PRESETS", "make_flow"]

PRESETS: dict[str, tuple[Callable[..., Flow], dict[str, Any]]] = {
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


def make_flow(preset: str, image_shape: tuple[int, int, int], seed: int = 0) -> Flow:
    """A fresh flow of a preset size."""
    flow, config = PRESETS[preset]
    return flow(image_shape=image_shape, seed=seed, **config)
