"""How kernels walk through tensors: all values in a row, or tiles of positions whose sums are taken."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

__all__ = ["BLOCK", "ROWS", "grid", "like", "sums", "tile"]

BLOCK = 1024  # values for a program
ROWS = 64  # positions in a tile of a kernel that sums over positions


def grid(x: Tensor) -> tuple[int]:
    """One program for each block of values."""
    return (triton.cdiv(x.numel(), BLOCK),)


def like(x: Tensor, *others: Tensor) -> list[Tensor]:
    """Tensors in the memory layout of x: kernels walk through memory, whatever the shape is called."""
    return [o if o.stride() == x.stride() else torch.empty_like(x).copy_(o) for o in others]


def sums(x: Tensor, count: int) -> tuple[tuple[int, int], Tensor]:
    """A grid of tiles of positions, image by image, and the place for their partial sums (B, tiles, count)."""
    tiles = triton.cdiv(x.shape[2] * x.shape[3], ROWS)
    return (len(x), tiles), torch.empty(len(x), tiles, count, device=x.device)


def tile(x: Tensor) -> tuple[int, int, int, int]:
    """Positions and channels of activations (B, C, H, W), and the tile that covers all channels of some positions."""
    return x.shape[2] * x.shape[3], x.shape[1], ROWS, triton.next_power_of_2(x.shape[1])
