"""Counted photons: Poisson noise, alone and with Gaussian noise on top."""

import math

import torch
from torch import Generator, Tensor

from aipo.noise.base import Noise
from aipo.noise.entries import count_entries, mean_of_seen, positive, sum_entries

__all__ = ["Poisson", "PoissonGaussian"]


class Poisson(Noise):
    """Photon noise: y is gain times a Poisson number of mean f(x) / gain.

    Arguments:
        gain: the brightness of one photon, > 0, on the [0,1] scale of the images.

    For f(x) below a hundredth of a photon, where there is no such density, -log p goes on as a straight line.

    Examples:
        >>> import torch
        >>> noise = Poisson(0.01)  # white is 100 photons
        >>> noise.log_prob(torch.full((1, 1), 0.5), torch.full((1, 1), 0.5))  # 50 photons of 50 expected
        tensor([-2.8766])
    """

    capturable = True
    DARKEST = 0.01  # photons

    def __init__(self, gain: float):
        self.gain = float(positive("gain", gain))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        count, mean = y / self.gain, fx / self.gain
        seen = mean.clamp(min=self.DARKEST)
        line = (count / self.DARKEST - 1) * (mean - seen)  # zero where there is a density
        terms = torch.xlogy(count, seen) - seen - torch.lgamma(count.clamp(min=0) + 1) + line
        return sum_entries(terms)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        means = (fx.detach().cpu().double() / self.gain).clamp(min=0)
        return (self.gain * torch.poisson(means, generator)).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        return (self.gain * mean_of_seen(y)).clamp(min=self.gain**2)

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The Fisher information of the mean."""
        return 1 / (self.gain * fx.clamp(min=self.gain / 2))

    def __repr__(self) -> str:
        return f"Poisson(gain={self.gain:g})"


class PoissonGaussian(Noise):
    """Photon noise and, on top of it, Gaussian noise: y = gain k + sigma n, k a Poisson number of mean f(x) / gain.

    The density is the sum over k of both; where its terms change slowly with k, only some of them are added up.

    Arguments:
        gain: the brightness of one photon, > 0, on the [0,1] scale of the images.
        sigma: standard deviation of the Gaussian part, > 0.

    Examples:
        >>> import torch
        >>> noise = PoissonGaussian(0.01, 0.02)  # white is 100 photons
        >>> noise.variance(torch.full((1, 1), 0.5)).sqrt()  # sqrt(0.01 * 0.5 + 0.02^2)
        tensor([0.0735])
        >>> y = torch.full((1, 1), 0.5)
        >>> bool(noise.log_prob(y, y) > noise.log_prob(y, y - 0.1))
        True
    """

    capturable = True
    NODES, PER_DEVIATION = 40, 5  # on each side of the largest term, and in one standard deviation

    def __init__(self, gain: float, sigma: float):
        self.gain, self.sigma = float(positive("gain", gain)), float(positive("sigma", sigma))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        mean = (fx / self.gain).clamp(min=Poisson.DARKEST)
        with torch.no_grad():
            # What is known of k: the Poisson number's mean and variance, and y with its own.
            spread = (self.sigma / self.gain) ** 2
            variance = mean * spread / (mean + spread)
            middle = (variance * (1 + y / self.gain / spread)).clamp(min=0).round()
            step = (variance.sqrt() / self.PER_DEVIATION).clamp(min=1)

        def term(k: Tensor) -> Tensor:
            poisson = torch.xlogy(k, mean) - mean - torch.lgamma(k.clamp(min=0) + 1)
            return torch.where(k < 0, -torch.inf, poisson - ((y - self.gain * k) / self.sigma).square() / 2)

        total = term(middle)  # the largest one first: it is never zero
        for i in range(1, self.NODES + 1):
            total = torch.logaddexp(torch.logaddexp(total, term(middle - i * step)), term(middle + i * step))
        return sum_entries(total + step.log()) - count_entries(y) * (math.log(self.sigma) + math.log(2 * math.pi) / 2)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        photons = Poisson(self.gain).sample(fx.detach().cpu().double(), generator)
        return (photons + self.sigma * torch.randn(fx.shape, generator=generator, dtype=torch.float64)).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        return self.gain * mean_of_seen(y).clamp(min=0) + self.sigma**2

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """About the Fisher information of the mean."""
        return 1 / (self.gain * fx.clamp(min=0) + self.sigma**2)

    def __repr__(self) -> str:
        return f"PoissonGaussian(gain={self.gain:g}, sigma={self.sigma:g})"
