"""Symmetric matrices that are diagonal in the frequencies and opponent colors of an image.

Averages over natural images hardly know one place from another. In the orthonormal basis B of the two-dimensional
cosine transform and the opponent colors their second moments, and a prior's mean curvature, are therefore nearly
diagonal, and depend on little more than the color and the radius of a frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from aipo.transforms.color import opponent, opponent_inverse

__all__ = ["Spectrum", "analyze", "expand_bands", "radial_bands", "synthesize"]

NUM_BANDS = 24


def analyze(x: Tensor) -> Tensor:
    """B x: coefficients (B, C, H, W) of images (B, C, H, W)."""
    return _cosines(x, x.shape[-2]) @ opponent(x) @ _cosines(x, x.shape[-1]).mT


def synthesize(c: Tensor) -> Tensor:
    """B^T c, the inverse of `analyze`."""
    return opponent_inverse(_cosines(c, c.shape[-2]).mT @ c @ _cosines(c, c.shape[-1]))


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The matrix S = B^T diag(values) B: values (C, H, W), positive."""

    values: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """S x, for images x (B, C, H, W)."""
        return synthesize(self.values * analyze(x))

    def solve(self, x: Tensor, factor: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> Tensor:
        """(factor S + shift I)^-1 x, with numbers or tensors that broadcast over x."""
        return synthesize(analyze(x) / (factor * self.values + shift))


def radial_bands(values: Tensor) -> Tensor:
    """Means of values (C, H, W) over rings of equal radius: (C, NUM_BANDS). Rings without a frequency get 1."""
    band = _band_of(values).flatten()
    counts = torch.bincount(band, minlength=NUM_BANDS)
    sums = values.new_zeros(len(values), NUM_BANDS).index_add_(1, band, values.flatten(1))
    return torch.where(counts > 0, sums / counts.clamp(min=1), 1)


def expand_bands(bands: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Values (C, H, W) from those of the bands (C, NUM_BANDS)."""
    return bands[:, _band_of(bands.new_empty(image_shape))]


def _band_of(values: Tensor) -> Tensor:
    """The band of each frequency (H, W)."""
    height, width = values.shape[-2:]
    rows = torch.arange(height, device=values.device, dtype=torch.float64) / height
    columns = torch.arange(width, device=values.device, dtype=torch.float64) / width
    radius = (rows[:, None].square() + columns.square()).sqrt() / math.sqrt(2)
    return (radius * NUM_BANDS).long().clamp(max=NUM_BANDS - 1)


def _cosines(x: Tensor, size: int) -> Tensor:
    """The orthonormal cosine transform as a matrix (size, size)."""
    # A recorded graph goes on reading it: on a GPU none may ever be freed.
    return (_kept_matrix if x.is_cuda else _recent_matrix)(size, x.dtype, x.device)


def _cosine_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        k = torch.arange(size, dtype=torch.float64)
        matrix = torch.cos(math.pi * k[:, None] * (k + 0.5) / size) * math.sqrt(2 / size)
        matrix[0] /= math.sqrt(2)
        return matrix.to(device, dtype)


_kept_matrix, _recent_matrix = cache(_cosine_matrix), lru_cache(maxsize=8)(_cosine_matrix)
