"""One level of the orthonormal Haar transform: half the resolution, four times the channels."""

import torch
from torch import Tensor

__all__ = ["diagonal_deviation", "haar", "haar_inverse"]

MEDIAN_OF_NORMAL = 0.67449  # the median of |z|, z ~ N(0, 1)


def haar(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 4C, H/2, W/2): one level of the orthonormal Haar transform, bands LL, LH, HL, HH.

    It halves the resolution as the usual squeeze does, but also decorrelates neighbors at no cost (its
    determinant is one), which the couplings would otherwise have to learn.
    """
    a, b = x[..., ::2, ::2], x[..., ::2, 1::2]
    c, d = x[..., 1::2, ::2], x[..., 1::2, 1::2]
    return 0.5 * torch.cat([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], dim=1)


def haar_inverse(y: Tensor) -> Tensor:
    """(B, 4C, H, W) -> (B, C, 2H, 2W), the inverse of `haar`."""
    ll, lh, hl, hh = y.chunk(4, dim=1)
    a, b, c, d = ll + lh + hl + hh, ll - lh + hl - hh, ll + lh - hl - hh, ll - lh - hl + hh
    top, bottom = torch.stack([a, b], dim=-1).flatten(-2), torch.stack([c, d], dim=-1).flatten(-2)
    return 0.5 * torch.stack([top, bottom], dim=-2).flatten(-3, -2)


def diagonal_deviation(y: Tensor) -> Tensor:
    """The standard deviation of white noise on images (B, C, H, W), as their finest diagonal details show it: (B,).

    It is their median absolute value, which the few large ones at edges hardly move (Donoho and Johnstone). Sides of
    one pixel have no details, and count as noiseless.
    """
    y = y[..., : y.shape[2] // 2 * 2, : y.shape[3] // 2 * 2]
    if not y.numel():
        return y.new_zeros(len(y))
    diagonal = y[..., ::2, ::2] - y[..., 1::2, ::2] - y[..., ::2, 1::2] + y[..., 1::2, 1::2]
    return (diagonal / 2).flatten(1).abs().median(1).values / MEDIAN_OF_NORMAL
