"""Plain L-BFGS at several lam at once: a baseline without continuation and without a model of the Hessian."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aipo.batch import constant
from aipo.iterate import Result, Status, exact_share
from aipo.problem import MapProblem
from aipo.solvers.path import FollowPath, PathState

__all__ = ["PlainLBFGS"]


@dataclass(frozen=True)
class PlainLBFGS(FollowPath):
    """The quasi-Newton iteration of the path solver, but each image stays at its own lam, which is one of `lambdas`.

    Arguments:
        budgets: evaluations at each of `lambdas`.
    """

    tolerance: float = 0.0
    model: str = "none"  # type: ignore[assignment]
    budgets: tuple[int, ...] = ()

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> PathState:
        state = super().init(problem, lam, x0)
        index = torch.searchsorted(self._grid(state.D), problem.lam_tensor(lam))
        return replace(state, index=index, last=index)

    def _allowed(self, state: PathState) -> Tensor:
        return constant(self.budgets, state.evals.dtype, state.x.device)[state.index]

    def _advance(self, state: PathState, which: Tensor) -> PathState:
        return state.stop(which, Status.DONE)

    def finishing(self, state: PathState) -> Tensor:
        allowed = self._allowed(state)
        return allowed - state.evals <= exact_share(allowed)

    def result(self, problem: MapProblem, state: PathState) -> Result:  # type: ignore[override]
        return super().result(problem, state).at(self._lam(state))

    def budget(self, state: PathState) -> int:
        return max(self.budgets)
