"""Stripes and checks on some crops: what a few hundred photographs show too rarely.

A flow that never saw a fence, a shirt or a page of print close up takes their coefficients, twenty times as large as
usual, for anything: its density explodes there, and so does its estimate. So a share of the crops is woven with another
crop, or with a plain color, along stripes or a checkerboard of a random period, direction, width and sharpness.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["with_patterns"]

SHARE = 0.1  # of the crops
PERIODS = (2.0, 48.0)  # in pixels


def with_patterns(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (B, 3, H, W) of uint8, some of them with a pattern drawn by the generator."""
    batch, device = len(images), images.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, 1, 1, generator=generator, device=device)

    def layer(crop: Tensor) -> Tensor:
        """A crop, or a color; colors are often black, white or another corner of the cube."""
        color = (3 * uniform(3) - 1).clamp(0, 1) * 255
        return torch.where(uniform(1) < 0.5, crop.float(), color)

    weave = _weave(images.shape[2], images.shape[3], uniform)
    below, above = layer(images), layer(images.roll(1, 0))
    woven = (below + weave * (above - below)).round().clamp(0, 255).to(images.dtype)
    return torch.where(uniform(1) < SHARE, woven, images)


def _weave(height: int, width: int, draw: Callable[..., Tensor]) -> Tensor:
    """How much of the upper layer is seen: (B, 1, H, W) in [0, 1]."""
    low, high = (math.log(v) for v in PERIODS)
    frequency = 2 * math.pi / torch.exp(low + (high - low) * draw(1))
    # Half of them are upright: people build at right angles, and hold cameras level.
    turn = draw(1)
    angle = torch.where(draw(1) < 0.5, (2 * turn).floor() / 2, turn) * math.pi
    rows = torch.arange(height, device=angle.device)[:, None]
    columns = torch.arange(width, device=angle.device)
    along = torch.cos(angle) * rows + torch.sin(angle) * columns
    across = torch.cos(angle) * columns - torch.sin(angle) * rows
    phase = 2 * math.pi * draw(2)
    wave = torch.sin(frequency * along + phase[:, :1])
    crossed = wave * torch.sin(frequency * across + phase[:, 1:])
    wave = torch.where(draw(1) < 0.3, crossed, wave) + draw(1) - 0.5
    return (0.5 + wave / (0.05 + 2 * draw(1))).clamp(0, 1)
