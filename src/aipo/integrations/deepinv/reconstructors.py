"""Whole methods as models of (y, physics): what `deepinv.test` and its benchmarks take."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.models import Reconstructor
from torch import Tensor

from aipo.choose import choose_lambda
from aipo.integrations.deepinv.problem import one_by_one, problem_of
from aipo.noise import Noise
from aipo.priors import load_prior
from aipo.problem import MapProblem
from aipo.solvers import anneal

__all__ = ["AnnealReconstructor", "LambdaReconstructor"]


class _OfProblem(Reconstructor):
    """A method for a `MapProblem`, of which deepinv gives y and the physics."""

    def __init__(self, prior: Any, noise: Noise | None = None):
        super().__init__()
        self.prior = load_prior(prior) if isinstance(prior, str) else prior
        self.noise = noise
        flow = getattr(self.prior, "flow", None)
        if isinstance(flow, torch.nn.Module):
            self.flow = flow  # so that `to` moves it

    @torch.no_grad()
    def forward(self, y: Any, physics: Any, **kwargs: Any) -> Tensor:
        """Measurements and their physics to images (B, C, H, W)."""
        return torch.cat([self._restored(*part) for part in one_by_one(y, physics)])

    def _restored(self, y: Any, physics: Any) -> Tensor:
        problem = problem_of(y, physics, self.prior, self.noise)
        x = self.solve(problem)
        wanted = getattr(physics, "A_adjoint", None)
        if wanted is not None and problem.image_shape[0] == 1 and wanted(y).shape[1] == 2:
            x = torch.cat([x, torch.zeros_like(x)], dim=1)  # MRI: the imaginary part of a real image
        return x

    def solve(self, problem: MapProblem) -> Tensor:
        """The restored images (B, C, H, W)."""
        raise NotImplementedError


class AnnealReconstructor(_OfProblem):
    """`aipo.anneal` with a noise prior.

    Arguments:
        prior: a name for `aipo.load_prior`, such as photo-small, a `NoisePrior`, or a `DenoiserPrior`.
        noise: by default that of the physics.
        evals: gradient evaluations per image.
    """

    def __init__(self, prior: Any = "photo-small", noise: Noise | None = None, evals: int = 20):
        super().__init__(prior, noise)
        self.evals = evals

    def solve(self, problem: MapProblem) -> Tensor:
        return anneal(problem, evals=self.evals).x


class LambdaReconstructor(_OfProblem):
    """`aipo.choose_lambda`: the whole path of solutions, and of it the one at the lam that the measurements tell.

    Arguments:
        prior: anything that `MapProblem` takes, or a name for `aipo.load_prior`.
        noise: by default that of the physics, which is then trusted.
        evals: gradient evaluations per image.
    """

    def __init__(self, prior: Any, noise: Noise | None = None, evals: int = 60):
        super().__init__(prior, noise)
        self.evals = evals

    def solve(self, problem: MapProblem) -> Tensor:
        return choose_lambda(problem, evals=self.evals, trust_sigma=True).x
