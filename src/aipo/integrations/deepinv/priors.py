"""Priors with a value, both ways: a flow as `deepinv.optim.Prior`, and theirs where ours go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from deepinv.optim import Prior as TheirPrior
from torch import Tensor

from aipo.engine.engine import differentiate
from aipo.flows import Flow
from aipo.integrations.deepinv.problem import problem_of
from aipo.noise import Gaussian
from aipo.operators import Denoising
from aipo.priors import LevelPrior, NoisePrior, Prior, load_prior
from aipo.problem import MapProblem
from aipo.solvers import FollowPath, initial

__all__ = ["ExplicitPrior", "FlowPrior"]

PROX_EVALS = 30


class FlowPrior(TheirPrior):
    """A prior of ours as g(x) = P(x) = -log p(x), in nats.

    With `deepinv.optim.L2(sigma)` as the data term, deepinv's `lambda_reg` is our lam; an L2() without sigma is that
    of noise 1.

    Arguments:
        prior: a name for `aipo.load_prior`, a `Prior`, a prior at one level (`prior.at(0.02)`), or a flow.
        evals: gradient evaluations of a `prox`.
    """

    def __init__(self, prior: Any, evals: int = PROX_EVALS):
        super().__init__()
        prior = load_prior(prior) if isinstance(prior, str) else prior
        prior = Prior(prior) if isinstance(prior, Flow) else prior
        self.prior: Any = prior.at(prior.levels[0]) if isinstance(prior, NoisePrior) else prior
        self.evals, self.explicit_prior = evals, True

    def fn(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """P(x) per image (B,); differentiable."""
        return self.prior.P(x)

    def grad(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The gradient of P (B, C, H, W); differentiable itself if x asks for it."""
        if torch.is_grad_enabled() and x.requires_grad:
            (gradient,) = torch.autograd.grad(self.prior.P(x).sum(), x, create_graph=True)
            return gradient
        return self.prior.gradient(x.detach())

    @torch.no_grad()
    def prox(self, x: Tensor, *args: Any, gamma: float | Tensor = 1.0, **kwargs: Any) -> Tensor:
        """The minimizer over u of gamma P(u) + |u - x|^2 / 2: the MAP denoiser of noise sqrt(gamma), by L-BFGS."""
        sigma = torch.as_tensor(gamma, dtype=x.dtype, device=x.device).flatten().expand(len(x)).sqrt()
        problem = MapProblem(self.prior, Denoising(tuple(x.shape[1:])), Gaussian(sigma), x)
        return FollowPath((1.0,), evals=self.evals).solve(problem).at(1.0).x

    def start(self, y: Any, physics: Any) -> Tensor:
        """Where our own solvers start (B, C, H, W), for `x_init` of samplers: the solution under a Gaussian."""
        return initial.gaussian(problem_of(y, physics, self.prior))

    def custom_init(self, y: Any, physics: Any) -> tuple[Tensor, Tensor]:
        """The same for `custom_init` of deepinv's optimizers, with a second variable of 0 for those that have one."""
        x = self.start(y, physics)
        return x, torch.zeros_like(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FlowPrior:
        """What `to` does to the tensors of a module, it does to those of the prior."""
        super()._apply(fn, recurse)
        moved, whole = fn(self.prior.weights), getattr(self.prior, "prior", self.prior)
        whole.to(device=moved.device, dtype=moved.dtype)
        if isinstance(self.prior, LevelPrior):
            self.prior = replace(self.prior)  # without the surrogate of before
        return self


class ExplicitPrior:
    """A `deepinv.optim.Prior` with a value, or a gradient-step denoiser, as a prior for `MapProblem`.

    Arguments:
        prior: with `fn(x, level)`, such as TV or PatchNR, or with `potential(x, level)`, such as GSPnP.
        level: of noise, for those that want one (`sigma_denoiser`).
        scale: how many nats one unit of it is: lam multiplies scale times its value.

    The gradient is its own `grad`, where it has one, else that of its value.
    """

    def __init__(self, prior: Any, level: float | None = None, scale: float = 1.0):
        self.prior, self.level, self.scale = prior, level, scale

    @property
    def name(self) -> str:
        return type(self.prior).__name__

    def P(self, x: Tensor) -> Tensor:
        """scale times its value, per image: (B, C, H, W) -> (B,)."""
        value = self.prior.potential if hasattr(self.prior, "potential") else self.prior.fn
        return self.scale * value(x, *self._level()).reshape(len(x), -1).sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of P at images x: (B, C, H, W)."""
        if hasattr(self.prior, "potential"):
            return self.scale * self.prior.potential_grad(x.detach(), *self._level()).detach()
        if type(self.prior).grad is not TheirPrior.grad:
            return self.scale * self.prior.grad(x.detach(), *self._level()).detach()
        return differentiate(self.P, x)[1]

    def _level(self) -> tuple[float, ...]:
        return () if self.level is None else (self.level,)
