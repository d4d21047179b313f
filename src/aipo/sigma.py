"""Estimate the noise of a picture from the picture itself."""

from __future__ import annotations

from torch import Tensor

from aipo.errors import InputError
from aipo.flows.layers import opponent

__all__ = ["estimate_sigma"]

MEDIAN_OF_NORMAL = 0.67449  # the median of |z|, z ~ N(0, 1)


def estimate_sigma(y: Tensor) -> Tensor:
    """The standard deviation of the noise on pictures y (B, C, H, W), C = 1 or 3, as one number per image (B,).

    The median absolute value of the finest diagonal Haar coefficients (Donoho and Johnstone), in colour pictures those
    of the two opponent colours: noise that is independent in R, G and B is as strong in them as elsewhere, and the
    picture itself is much weaker. Clipping to [0, 1] and colours that were averaged by a camera or by JPEG make it too
    small.
    """
    if y.ndim != 4 or y.shape[1] not in (1, 3) or min(y.shape[2:]) < 16:
        raise InputError(
            f"sigma can be estimated for pictures (B, 1 or 3, H, W) of 16x16 and more, not {tuple(y.shape)}"
        )
    if y.shape[1] == 3:
        y = opponent(y)[:, 1:]
    y = y[..., : y.shape[2] // 2 * 2, : y.shape[3] // 2 * 2]
    diagonal = y[..., ::2, ::2] - y[..., 1::2, ::2] - y[..., ::2, 1::2] + y[..., 1::2, 1::2]
    return (diagonal / 2).flatten(1).abs().median(1).values / MEDIAN_OF_NORMAL
