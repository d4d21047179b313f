"""Flows with known answers: a linear one, which is a Gaussian prior, and independent pixels with several modes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.base import Flow

__all__ = ["GaussianFlow", "MixtureFlow"]


class GaussianFlow(Flow):
    """x = mean + S z with S lower triangular, so x ~ N(mean, S S^T): the known answer in the theorem's tests.

    Arguments:
        image_shape: (C, H, W).
        mean: (C, H, W); default 0.5.
        factor: (n, n) lower triangular with positive diagonal; default the identity times 0.25.
    """

    architecture = "gaussian"

    def __init__(self, image_shape: tuple[int, int, int], mean: Tensor | None = None, factor: Tensor | None = None):
        super().__init__(image_shape)
        n = self.num_dims
        mean = torch.full(self.image_shape, 0.5) if mean is None else mean
        factor = 0.25 * torch.eye(n) if factor is None else factor
        if mean.shape != self.image_shape or factor.shape != (n, n):
            raise InputError(f"a Gaussian on {self.image_shape} needs a mean of that shape and a {n}x{n} factor")
        if not factor.is_meta and (factor.diagonal() <= 0).any():
            raise InputError("the factor of a Gaussian flow needs a positive diagonal")
        self.mean = nn.Parameter(mean)
        self.factor = nn.Parameter(factor.tril())
        self.config = {"image_shape": list(image_shape)}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        centered = (x - self.mean).flatten(1)
        z = torch.linalg.solve_triangular(self.factor, centered.T, upper=False).T
        return z, -self.factor.diagonal().log().sum().expand(len(x))

    def decode(self, z: Tensor) -> Tensor:
        return self.mean + (z @ self.factor.T).view(len(z), *self.image_shape)

    def precision(self) -> Tensor:
        """The inverse covariance (n, n)."""
        return torch.cholesky_inverse(self.factor.detach())


class MixtureFlow(Flow):
    """z = Phi^-1(F(x)) pixel by pixel, with F the distribution function of a mixture of Gaussians.

    Arguments:
        image_shape: (C, H, W).
        weights, means, stds: the mixture's components, each (M,); the same for every pixel.
    """

    architecture = "mixture"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        weights: tuple[float, ...] = (0.5, 0.5),
        means: tuple[float, ...] = (0.25, 0.75),
        stds: tuple[float, ...] = (0.1, 0.1),
    ):
        super().__init__(image_shape)
        if not len(weights) == len(means) == len(stds) or min(stds) <= 0 or min(weights) <= 0:
            raise InputError("a mixture needs as many positive weights and stds as means")
        self.weights = nn.Parameter(torch.tensor(weights) / sum(weights))
        self.means = nn.Parameter(torch.tensor(means))
        self.stds = nn.Parameter(torch.tensor(stds))
        self.config = {
            "image_shape": list(image_shape),
            "weights": list(weights),
            "means": list(means),
            "stds": list(stds),
        }

    def _cdf(self, x: Tensor) -> Tensor:
        u = (x[..., None] - self.means) / self.stds
        return (self.weights * torch.special.ndtr(u)).sum(-1)

    def _log_density(self, x: Tensor) -> Tensor:
        u = (x[..., None] - self.means) / self.stds
        log_parts = self.weights.log() - self.stds.log() - 0.5 * math.log(2 * math.pi) - 0.5 * u.square()
        return log_parts.logsumexp(-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        z = torch.special.ndtri(self._cdf(x))
        log_normal = -0.5 * z.square() - 0.5 * math.log(2 * math.pi)
        return z, (self._log_density(x) - log_normal).sum(1)

    def log_prob(self, x: Tensor) -> Tensor:
        self.check_shape(x)
        # The same number as through z, which overflows in the tails.
        return self._log_density(x.flatten(1)).sum(1)

    def decode(self, z: Tensor) -> Tensor:
        target = torch.special.ndtr(z)
        reach = 40 * self.stds.max()
        low, high = (self.means.min() - reach).expand_as(z), (self.means.max() + reach).expand_as(z)
        # F has no closed inverse but is monotone: 80 halvings exhaust float64.
        for _ in range(80):
            middle = (low + high) / 2
            above = self._cdf(middle) > target
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return ((low + high) / 2).view(len(z), *self.image_shape)
