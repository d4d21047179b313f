"""Preconditioned L-BFGS at a fixed lam: fewest evaluations to the minimum of one lam.

Reference: Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation 35, 1980.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import Status, exact_share
from aipo.solvers.hessian_model import HessianModel
from aipo.solvers.quasi_newton import QuasiNewton, QuasiNewtonState
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["LBFGS"]


@dataclass(frozen=True)
class LBFGSState(QuasiNewtonState):
    lam: Tensor
    allowed: Tensor


@dataclass(frozen=True)
class LBFGS(AtLambda[LBFGSState]):
    """Minimize L(.; lam) with L-BFGS and a line search, each image on its own.

    Arguments:
        evals: gradient evaluations at most, for all images or one number for each; an image that has used them up is
            "done" too.
        tolerance: an image is done once the estimated gap to its minimum is below this, in nats.
        memory: steps that L-BFGS keeps.
        model: of the Hessian, see `FollowPath`; "none" is plain L-BFGS.

    It starts at x0, by default `initial.gaussian`.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> result = aipo.LBFGS().solve(problem, lam=1.0)
        >>> round(result.x.mean().item(), 3), result.status
        (0.75, ['done'])
    """

    state_type = LBFGSState
    capturable = True

    evals: int | tuple[int, ...] = 120
    tolerance: float = 0.1
    memory: int = 40
    model: HessianModel = "local"

    def __post_init__(self) -> None:
        if min(self._each_evals) < 1 or not self.tolerance >= 0:
            raise InputError(f"need evals >= 1 and tolerance >= 0, got {self.evals} and {self.tolerance}")
        _ = self.search  # refuses what it cannot use

    @property
    def search(self) -> QuasiNewton:
        return QuasiNewton(self.memory, self.model)

    @property
    def _each_evals(self) -> tuple[int, ...]:
        return (self.evals,) if isinstance(self.evals, int) else self.evals

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return initial.gaussian(problem), 0

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> LBFGSState:
        problem.check_start(x0)
        if len(self._each_evals) not in (1, len(x0)):
            raise InputError(f"there are {len(self._each_evals)} numbers of evaluations for {len(x0)} images")
        weights = problem.lam_tensor(lam)
        if not (weights > 0).all():
            raise InputError(f"L-BFGS needs lam > 0, got {weights.tolist()}; for lam = 0 use `initial.mle`")
        allowed = torch.tensor(self._each_evals, device=x0.device).expand(len(x0)).clone()
        return LBFGSState.fresh(x0, self.memory, lam=weights, allowed=allowed)

    def step(self, problem: MapProblem, state: LBFGSState) -> LBFGSState:
        state, accepted, stalled = self.search.step(problem, state, state.lam)
        arrived = accepted & (state.gap < self.tolerance)
        state = state.stop(arrived | stalled | (state.evals >= state.allowed), Status.DONE)
        return self.search.aim(state)

    def finishing(self, state: LBFGSState) -> Tensor:
        return state.allowed - state.evals <= exact_share(state.allowed)

    def result(self, problem: MapProblem, state: LBFGSState) -> Result:
        return make_result(state, state.lam)

    def budget(self, state: LBFGSState) -> int:
        return max(self._each_evals)
