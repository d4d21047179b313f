"""A linear flow x = mean + S z: a Gaussian prior, for which every quantity of the method has a closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.base import Flow

__all__ = ["GaussianFlow"]


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
