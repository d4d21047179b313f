"""The noise of magnitude images, as magnetic resonance gives them."""

import math

import torch
from torch import Generator, Tensor

from aipo.noise.base import Noise
from aipo.noise.entries import count_entries, positive, sum_entries

__all__ = ["Rician"]


class Rician(Noise):
    """The magnitude of f(x) with Gaussian noise in both of its parts: y = |f(x) + sigma (n1 + i n2)|.

    Arguments:
        sigma: standard deviation of either part, > 0, on the [0,1] scale of the images.

    Examples:
        >>> import torch
        >>> noise = Rician(0.1)
        >>> noise.log_prob(torch.full((1, 1), 0.8), torch.full((1, 1), 0.8))  # where it is bright, nearly Gaussian
        tensor([1.3856])
    """

    capturable = True
    LEAST = 1e-12  # of y: what is not observed is 0, and 0 has no logarithm

    def __init__(self, sigma: float):
        self.sigma = float(positive("sigma", sigma))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        # log I0(z) = z + log(exp(-z) I0(z)): the first completes the square, the second stays finite.
        square = ((y - fx.abs()) / self.sigma).square() / 2
        bessel = torch.special.i0e(y * fx / self.sigma**2).log()
        terms = y.clamp(min=self.LEAST).log() - square + bessel
        return sum_entries(terms) - count_entries(y) * 2 * math.log(self.sigma)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        real, imaginary = self.sigma * torch.randn(2, *fx.shape, generator=generator, dtype=torch.float64)
        return torch.hypot(fx.detach().cpu().double() + real, imaginary).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        return y.new_full((len(y),), self.sigma**2)

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The curvature of the parabola that lies above -log p and touches it at f(x)."""
        return torch.full_like(fx, 1 / self.sigma**2)

    def __repr__(self) -> str:
        return f"Rician(sigma={self.sigma:g})"
