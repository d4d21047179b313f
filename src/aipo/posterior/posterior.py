"""Samples of all images that a measurement may come from, and what they say together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from aipo.errors import InputError

__all__ = ["Posterior"]


@dataclass(frozen=True)
class Posterior:
    """Samples from p(x | y), for each image.

    Attributes:
        samples: (B, n, C, H, W); not clipped to [0, 1].
        evals: gradient evaluations spent on all samples of an image (B,).
        status: one reason per image: "done" or "non finite".

    Examples:
        `sample_posterior` draws the samples. Here they are two images, one black and one white.

        >>> import aipo, torch
        >>> samples = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)])[None]
        >>> post = aipo.Posterior(samples, evals=torch.tensor([40]), status=["done"])
        >>> tuple(post.mean.shape), post.mean.unique().item(), round(post.std.unique().item(), 3)
        ((1, 3, 8, 8), 0.5, 0.707)
    """

    samples: Tensor
    evals: Tensor
    status: list[str]

    @property
    def mean(self) -> Tensor:
        """Their mean (B, C, H, W): the least-squares restoration, as far as n samples tell."""
        return self.samples.mean(1)

    @property
    def std(self) -> Tensor:
        """Their standard deviation, pixel by pixel (B, C, H, W)."""
        return self.samples.std(1)

    def quantile(self, q: float) -> Tensor:
        """The value (B, C, H, W) below which a share q of the samples lies."""
        if not 0 <= q <= 1:
            raise InputError(f"q is {q}; it must be from 0 to 1")
        return self.samples.quantile(q, dim=1)

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Bounds (B, C, H, W) between which the true value of a pixel should lie with this probability.

        From few samples quantiles are rough, so the bounds are Student's: mean and spread of n samples, with the
        quantile that n - 1 degrees of freedom ask for.
        """
        if not 0 < coverage < 1:
            raise InputError(f"coverage is {coverage}; it must lie between 0 and 1")
        n = self.samples.shape[1]
        if n < 2:
            raise InputError("an interval needs at least 2 samples")
        half = student_quantile((1 + coverage) / 2, n - 1) * math.sqrt(1 + 1 / n) * self.std
        return self.mean - half, self.mean + half


def student_quantile(p: float, freedom: int) -> float:
    """The quantile of Student's t for p > 1/2, by bisection of its distribution function."""
    low, high = 0.0, 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """The distribution function of Student's t at t >= 0, as a finite sum (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2:
        total, term = 0.0, cosine
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cosine**2 * (k + 1) / (k + 2)
        share = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        total, term = 0.0, 1.0
        for k in range(0, freedom, 2):
            total += term
            term *= cosine**2 * (k + 1) / (k + 2)
        share = math.sin(angle) * total
    return (1 + share) / 2
