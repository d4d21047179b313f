"""Adam at a fixed lam: the paper's baselines (constant step), and the honest ones (decayed step)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.adam import Adam, AdamState
from aipo.solvers.base import Status, exact_share
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["FixedLambda"]


@dataclass(frozen=True)
class FixedState(AdamState):
    lam: Tensor
    steps: Tensor


@dataclass(frozen=True)
class FixedLambda(AtLambda[FixedState]):
    """Minimize L(.; lam) with Adam, lam fixed from the first step to the last.

    Arguments:
        steps: number of updates, for all images or one for each; a final evaluation at the last point makes it
            steps + 1 gradient evaluations.
        alpha: step size, on the [0, 1] scale of the image.
        schedule: "constant" as in the paper's baselines, or "cosine" decay to zero, which reaches far lower losses.
        adam: Adam's remaining options.

    It starts at x0, by default G(0); `aipo.initial` has the paper's other starts.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> result = aipo.FixedLambda.decayed().solve(problem, lam=1.0)
        >>> round(result.x.mean().item(), 3), result.evals.tolist(), result.status
        (0.75, [251], ['done'])
    """

    state_type = FixedState
    capturable = True

    steps: int | tuple[int, ...] = 500
    alpha: float = 0.05
    schedule: Literal["constant", "cosine"] = "constant"
    adam: Adam = Adam()

    @classmethod
    def decayed(cls, steps: int = 250, alpha: float = 0.03) -> FixedLambda:
        """The strong baseline: cosine decay and a shorter memory for the second moment."""
        return cls(steps, alpha, "cosine", Adam(beta2=0.95))

    def __post_init__(self) -> None:
        if min(self._each_steps) < 1 or not self.alpha > 0:
            raise InputError(f"steps must be >= 1 and alpha > 0, got {self.steps} and {self.alpha}")
        if self.schedule not in ("constant", "cosine"):
            raise InputError(f"schedule must be constant or cosine, got {self.schedule}")

    @property
    def _each_steps(self) -> tuple[int, ...]:
        return (self.steps,) if isinstance(self.steps, int) else self.steps

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return initial.zero(problem), 0

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> FixedState:
        problem.check_start(x0)
        if len(self._each_steps) not in (1, len(x0)):
            raise InputError(f"there are {len(self._each_steps)} numbers of steps for {len(x0)} images")
        steps = torch.tensor(self._each_steps, device=x0.device).expand(len(x0)).clone()
        return FixedState.fresh(x0, lam=problem.lam_tensor(lam), steps=steps)

    def step(self, problem: MapProblem, state: FixedState) -> FixedState:
        state, evaluation = state.observe(problem)
        state = state.stop(state.t >= state.steps, Status.DONE)
        alpha = state.lam.new_full(state.lam.shape, self.alpha)
        if self.schedule == "cosine":
            alpha = alpha * 0.5 * (1 + torch.cos(math.pi * state.t.to(alpha.dtype) / state.steps))
        return self.adam.descend(state, evaluation.gradient(state.lam), alpha)

    def finishing(self, state: FixedState) -> Tensor:
        # A constant step leaves more noise than half precision does: only its last point is worth an exact look.
        return state.steps - state.t <= (exact_share(state.steps) if self.schedule == "cosine" else 0)

    def result(self, problem: MapProblem, state: FixedState) -> Result:
        return make_result(state, state.lam)

    def budget(self, state: FixedState) -> int:
        return max(self._each_steps) + 1
