"""Estimate the noise of a picture from the picture itself."""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.flows.layers import opponent

__all__ = ["estimate_sigma"]

MEDIAN_OF_NORMAL = 0.67449  # the median of |z|, z ~ N(0, 1)
AVERAGED = 5.0  # so many times more in the brightness than in the colours: their noise was averaged away
TEXTURE = 0.02  # of a noiseless face of 64 pixels, in its brightness


def estimate_sigma(y: Tensor) -> Tensor:
    """The standard deviation of the noise on pictures y (B, C, H, W), C = 1 or 3, as one number per image (B,).

    The median absolute value of the finest diagonal Haar coefficients (Donoho and Johnstone), in colour pictures those
    of the two opponent colours: noise that is independent in R, G and B is as strong in them as elsewhere, and the
    picture itself is much weaker.

    Most JPEG files, and the cameras that write them, keep the colours at half the resolution, where no noise is left to
    be seen. Such pictures are told by their brightness, which then has far more of it than the colours. What it has
    beyond the texture of a face, spread over the three channels, is taken. Clipping to [0, 1] makes the estimate too
    small.

    Examples:
        >>> import aipo
        >>> x = aipo.samples.load("astronaut")[None]
        >>> noisy = aipo.operators.Denoising((3, 64, 64)).measure(x, aipo.Gaussian(0.1), seed=0)
        >>> round(estimate_sigma(noisy).item(), 2)
        0.1
    """
    if y.ndim != 4 or y.shape[1] not in (1, 3) or min(y.shape[2:]) < 16:
        raise InputError(
            f"sigma can be estimated for pictures (B, 1 or 3, H, W) of 16x16 and more, not {tuple(y.shape)}"
        )
    if y.shape[1] == 1:
        return _from_diagonals(y)
    parts = opponent(y)
    brightness, colours = _from_diagonals(parts[:, :1]), _from_diagonals(parts[:, 1:])
    noise = (brightness.square() - TEXTURE**2).clamp(min=0)
    spread = ((noise + 2 * colours.square()) / 3).sqrt()
    return torch.where(brightness > AVERAGED * colours, spread, colours)


def _from_diagonals(y: Tensor) -> Tensor:
    y = y[..., : y.shape[2] // 2 * 2, : y.shape[3] // 2 * 2]
    diagonal = y[..., ::2, ::2] - y[..., 1::2, ::2] - y[..., ::2, 1::2] + y[..., 1::2, 1::2]
    return (diagonal / 2).flatten(1).abs().median(1).values / MEDIAN_OF_NORMAL
