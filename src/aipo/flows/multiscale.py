"""The multi-scale skeleton shared by RealNVP and Glow."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.base import Flow, Net
from aipo.flows.layers import GaussianSplit
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

__all__ = ["CENTER", "SCALE", "MultiScale", "Step", "ZeroConv", "chain", "chain_inverse", "scale_limit"]

# Images in [0, 1] are centered and brought to about unit variance before the first layer: h = (x - CENTER) * SCALE.
CENTER, SCALE = 0.5, 4.0
# How far the predicted log-scales of a stack of layers may add up. Left free, they grow ever sharper on images that
# are smoother than any data, and MAP estimates collapse into them; the bound costs no likelihood (docs/priors.md).
LOG_SCALE_RANGE = 3.0
SPLIT_LOG_SCALE_LIMIT = 0.5


def scale_limit(layers: int) -> float:
    """The bound on each layer's log-scales in a stack of so many layers."""
    return LOG_SCALE_RANGE / layers


class ZeroConv(nn.Conv2d):
    """A 3x3 convolution that starts at zero, so that a new layer starts as the identity."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, 3, padding=1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class SplitNet(Net):
    """One zero-initialized convolution: a plain linear prediction of the split latents is enough."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = ZeroConv(channels, 2 * channels)

    def compute(self, a: Tensor) -> Tensor:  # type: ignore[override]
        return self.conv(a)


def chain(layers: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Apply invertible layers in order; (x, sum of log-dets)."""
    log_det = x.new_zeros(len(x))
    for layer in layers.children():
        x, change = layer(x)
        log_det = log_det + change
    return x, log_det


def chain_inverse(layers: nn.Module, y: Tensor) -> Tensor:
    for layer in reversed(list(layers.children())):
        y = layer.inverse(y)  # type: ignore[operator]
    return y


class Step(nn.Sequential):
    """A few invertible layers in order, compiled as one piece during training."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return chain(self, x)

    def inverse(self, y: Tensor) -> Tensor:
        return chain_inverse(self, y)


class MultiScale(Flow):
    """Halve the resolution (Haar), apply the level's steps, let half of the channels leave; repeat.

    `make_step(level, index, channels)` builds the `index`-th step of a level, which works on `channels` channels.
    The last level keeps all its channels.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        depth: list[int],
        make_step: Callable[[int, int, int], Step],
    ):
        super().__init__(image_shape)
        channels, height, width = self.image_shape
        if math.gcd(height, width) % 2 ** len(depth):
            raise InputError(f"{len(depth)} levels need sides divisible by {2 ** len(depth)}, got {height}x{width}")
        self.levels = nn.ModuleList()
        self.splits = nn.ModuleList()
        for level, num_steps in enumerate(depth):
            channels *= 4
            self.levels.append(nn.Sequential(*(make_step(level, i, channels) for i in range(num_steps))))
            if level < len(depth) - 1:
                channels //= 2
                self.splits.append(GaussianSplit(SplitNet(channels), SPLIT_LOG_SCALE_LIMIT))
        self._top_shape = (channels, height >> len(depth), width >> len(depth))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = opponent((x - CENTER) * SCALE)
        log_det = x.new_full((len(x),), self.num_dims * math.log(SCALE))
        latents = []
        for i, level in enumerate(self.levels):
            h, change = chain(level, haar(h))
            log_det = log_det + change
            if i < len(self.splits):
                h, z, change = self.splits[i](h)
                log_det = log_det + change
                latents.append(z.flatten(1))
        return torch.cat([*latents, h.flatten(1)], dim=1), log_det

    def decode(self, z: Tensor) -> Tensor:
        *parts, top = z.split(self._latent_sizes(), dim=1)
        h = top.view(-1, *self._top_shape)
        for i in reversed(range(len(self.levels))):
            if i < len(self.splits):
                h = self.splits[i].inverse(h, parts[i].view_as(h))  # type: ignore[operator]
            h = haar_inverse(chain_inverse(self.levels[i], h))
        return opponent_inverse(h) / SCALE + CENTER

    def _latent_sizes(self) -> list[int]:
        # Each split gives away half of what is left.
        left, sizes = self.num_dims, []
        for _ in self.splits:
            left //= 2
            sizes.append(left)
        return [*sizes, left]
