"""The problem with a known answer: Gaussian prior, linear operator, Gaussian noise.

x*(lam) solves (A^T A / s^2 + lam Q) x = A^T y / s^2 + lam Q mean, with Q the prior's precision.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import aipo
from aipo import operators
from aipo.flows import GaussianFlow

SHAPE = (1, 4, 4)
N = 16


class Vignette(operators.LinearOperator):
    """A user's own operator: brightness falls off across the image, and the image is mirrored."""

    def __init__(self, image_shape):
        super().__init__(image_shape, image_shape)
        self.gain = torch.linspace(0.85, 1.15, image_shape[-1])

    def A(self, x):
        return self.gain.to(x) * x.flip(-2)


OPERATORS = {
    "denoising": lambda: operators.Denoising(SHAPE),
    "vignette": lambda: Vignette(SHAPE),
    "blur": lambda: operators.Blur(SHAPE, torch.tensor([[0.0, 0.03, 0.0], [0.03, 0.88, 0.03], [0.0, 0.03, 0.0]])),
    "inpainting": lambda: operators.Inpainting.random_blocks(SHAPE, fraction=0.25, block=2, seed=3),
    "sensing": lambda: operators.CompressedSensing(SHAPE, m=8, seed=4),
    "superresolution": lambda: operators.SuperResolution(SHAPE, factor=2),
}
INJECTIVE = ("denoising", "vignette", "blur")


@dataclass(frozen=True)
class Known:
    problem: aipo.MapProblem
    flow: GaussianFlow
    A: Tensor
    sigma: float

    def hessian(self, lam: float) -> Tensor:
        return self.A.T @ self.A / self.sigma**2 + lam * self.flow.precision()

    def x(self, lam: float) -> Tensor:
        """x*(lam), (B, 1, 4, 4)."""
        y = self.problem.y.flatten(1)
        right = y @ self.A / self.sigma**2 + lam * self.flow.precision() @ self.flow.mean.flatten()
        return torch.linalg.solve(self.hessian(lam), right.T).T.view(-1, *SHAPE)

    def path_derivative(self, lam: float) -> Tensor:
        """|dx*/dlam| for each image, from differentiating the optimality condition."""
        pull = (self.x(lam).flatten(1) - self.flow.mean.flatten()) @ self.flow.precision()
        return torch.linalg.solve(self.hessian(lam), pull.T).T.norm(dim=1)


def known_problem(name: str, batch: int = 3, sigma: float = 0.1, prior_std: float = 0.2) -> Known:
    generator = torch.Generator().manual_seed(7)
    mix = torch.eye(N, dtype=torch.float64) + 0.04 * torch.randn(N, N, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(prior_std**2 * mix @ mix.T)
    mean = 0.4 + 0.2 * torch.rand(SHAPE, generator=generator, dtype=torch.float64)
    flow = GaussianFlow(SHAPE, mean, factor).requires_grad_(False)
    operator = OPERATORS[name]()
    noise = aipo.Gaussian(sigma)
    x = flow.sample(batch, temperature=0.3, seed=8)
    # Little noise is drawn, so that the constraint set meets the interior of the box and closed forms hold.
    y = operator.measure(x, aipo.Gaussian(0.02), seed=9)
    basis = torch.eye(N, dtype=torch.float64).view(N, *SHAPE)
    A = operator.A(basis).flatten(1).T
    return Known(aipo.MapProblem(flow, operator, noise, y), flow, A, sigma)
