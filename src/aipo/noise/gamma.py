"""Speckle: the grain of radar, ultrasound and laser light, which grows with the brightness."""

import math

import torch
from torch import Generator, Tensor

from aipo.noise.base import Noise
from aipo.noise.entries import count_entries, positive, sum_entries

__all__ = ["Gamma"]


class Gamma(Noise):
    """Speckle: y is f(x) times a Gamma number of mean 1 and variance 1 / looks.

    Arguments:
        looks: how many independent looks were averaged, > 0; the more, the less noise.

    For f(x) below `DARKEST`, where there is no such density, -log p goes on as a straight line.

    Examples:
        >>> import torch
        >>> noise = Gamma(looks=1)  # one look: exponential
        >>> noise.log_prob(torch.full((1, 1), 0.5), torch.full((1, 1), 0.5))  # -1 + log 2
        tensor([-0.3069])
    """

    capturable = True
    DARKEST = 1e-3  # on the [0, 1] scale of the images
    LEAST = 1e-12  # of y: what is not observed is 0, and 0 has no logarithm

    def __init__(self, looks: float):
        self.looks = float(positive("looks", looks))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        k, seen = self.looks, fx.clamp(min=self.DARKEST)
        # Below it only what pulls f(x) up goes on: the density is largest at f(x) = y.
        line = k * (y / self.DARKEST - 1).clamp(min=0) * (fx - seen) / self.DARKEST
        terms = (k - 1) * y.clamp(min=self.LEAST).log() - k * (seen.log() + y / seen) + line
        return sum_entries(terms) + count_entries(y) * (k * math.log(k) - math.lgamma(k))

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        means = fx.detach().cpu().double().clamp(min=0)
        # What torch.distributions draws with, which takes no generator itself.
        factor = torch._standard_gamma(torch.full_like(means, self.looks), generator=generator) / self.looks
        return (means * factor).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        seen = (y != 0).flatten(1).sum(1).clamp(min=1)
        return (y.flatten(1).square().sum(1) / seen / (self.looks + 1)).clamp(min=self.DARKEST**2)

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The Fisher information of the mean."""
        return self.looks / fx.clamp(min=self.DARKEST).square()

    def __repr__(self) -> str:
        return f"Gamma(looks={self.looks:g})"
