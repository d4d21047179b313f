"""What an image lacks: an odd side leaves a last row or column without a partner, a gray image has no colors.

A Haar transform of such an image has coefficients that do not exist. `existence` says which; they are zero and do not
count.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.transforms.color import opponent

__all__ = ["BANDS", "CENTER", "COLORS", "colors", "count", "even", "existence"]

CENTER = 0.5
COLORS, BANDS = 3, 12  # channels of an image, and of its Haar transform: LL, LH, HL, HH of each color


def colors(y: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Images (B, C, H, W) as opponent colors (B, 3, H, W), their noise there (B,), and which are gray (B,).

    A gray image is the brightness of a color image that shows no color: sqrt(3) times its values, noise included.
    """
    gray = torch.full((len(y),), y.shape[1] == 1, device=y.device)
    if y.shape[1] == 1:
        brightness = math.sqrt(COLORS) * (y - CENTER)
        return F.pad(brightness, (0, 0, 0, 0, 0, COLORS - 1)), math.sqrt(COLORS) * s, gray
    return opponent(y - CENTER), s, gray


def even(h: Tensor) -> Tensor:
    """h with its last row or column repeated where a side is odd."""
    more = (0, h.shape[3] % 2, 0, h.shape[2] % 2)
    return F.pad(h, more, mode="replicate") if any(more) else h


@lru_cache(maxsize=64)
def existence(
    height: int, width: int, gray: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor | None, float]:
    """Which Haar coefficients (1, 12, h, w) an image of that size has, and log |det| of the transform in nats.

    None stands for all of them. Without its partner a pixel counts twice, as if it were repeated: the coefficients of
    its block are larger by sqrt(2) than in an orthonormal transform.
    """
    if not (gray or height % 2 or width % 2):
        return None, 0.0
    rows, columns = torch.ones(2, -(-height // 2)), torch.ones(2, -(-width // 2))
    if height % 2:
        rows[1, -1] = 0
    if width % 2:
        columns[1, -1] = 0
    # Bands are ordered LL, LH, HL, HH: H along the columns comes first.
    bands = torch.stack([rows[i][:, None] * columns[j] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))])
    color = torch.tensor([1.0, 0.0, 0.0] if gray else [1.0, 1.0, 1.0])
    exists = (bands[:, None] * color[:, None, None]).flatten(0, 1)[None]
    alone = (1 - rows[1])[:, None] + (1 - columns[1])
    with torch.inference_mode(False):
        return exists.to(device, dtype), 0.5 * math.log(2) * (exists * alone).sum().item()


def count(exists: Tensor | None, h: Tensor, per_channel: Tensor) -> Tensor:
    """The sum over existing coefficients of h of a value for each channel (B, 12, 1, 1): (B,)."""
    if exists is None:
        return per_channel.sum((1, 2, 3)) * (h.shape[2] * h.shape[3])
    return (per_channel * exists).sum((1, 2, 3))
