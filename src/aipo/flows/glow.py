"""Glow: actnorm, invertible 1x1 convolution, affine coupling.

Reference: Kingma, Dhariwal, "Glow: Generative flow with invertible 1x1 convolutions", 2018,
https://arxiv.org/abs/1807.03039
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.flows.base import Net
from aipo.flows.layers import ActNorm, AffineCoupling, Invertible1x1
from aipo.flows.multiscale import MultiScale, Step, ZeroConv, scale_limit

__all__ = ["Glow"]


class ConvNet(Net):
    """Glow's conditioning network: 3x3, 1x1, zero-initialized 3x3; SiLU in place of ReLU, for smoothness."""

    def __init__(self, inputs: int, outputs: int, hidden: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.middle = nn.Conv2d(hidden, hidden, 1)
        self.last = ZeroConv(hidden, outputs)

    def compute(self, a: Tensor) -> Tensor:  # type: ignore[override]
        return self.last(F.silu(self.middle(F.silu(self.first(a)))))


class Glow(MultiScale):
    """Multi-scale Glow.

    Arguments:
        image_shape: (C, H, W); H and W divisible by 2^levels.
        steps: number of flow steps on each level (the paper's K, here free per level).
        hidden: width of the conditioning networks on each level.
        seed: for the initial rotations and weights.
    """

    architecture = "glow"

    def __init__(self, image_shape: tuple[int, int, int], steps: list[int], hidden: list[int], seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def make_step(level: int, index: int, channels: int) -> Step:
            return Step(
                ActNorm(channels),
                Invertible1x1(channels, generator),
                AffineCoupling(ConvNet(channels // 2, channels, hidden[level]), scale_limit(steps[level])),
            )

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(image_shape, steps, make_step)
        self.config = {
            "image_shape": list(image_shape),
            "steps": list(steps),
            "hidden": list(hidden),
            "seed": seed,
        }
