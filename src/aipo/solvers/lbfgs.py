"""L-BFGS with a line search, for every image on its own: at a fixed lam (`LBFGS`), or as a part of `follow_path`.

The state holds an iterate, x_seen, and a trial point, x. One step is one gradient evaluation, of the trial point: it
becomes the iterate if it lowers L enough, and is moved closer to it if not. lam may change between two steps.

Reference: Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation 35, 1980.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeVar, get_args

import torch
from torch import Tensor

from aipo.batch import per_image, some
from aipo.engine.engine import Evaluation
from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import Status, exact_share
from aipo.solvers.inverse_hessian import TINY, HessianModel, HistoryState, solve_model, two_loop
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["LBFGS", "QuasiNewton", "QuasiNewtonState"]

ARMIJO = 1e-4
# A step this short means that the stored steps contradict each other, as they do where L is not convex: forget them.
DOUBTFUL_STEP = 1e-2
SHORTEST_STEP = 1e-6


@dataclass(frozen=True)
class QuasiNewtonState(HistoryState):
    """x is the trial point, x_seen the iterate; D, P, grad_D, grad_P belong to the iterate.

    Attributes:
        direction, slope, step: the line search from the iterate; slope is the derivative of L along the direction.
        concave: at how many steps the curvature of L was not positive (B,).
    """

    grad_D: Tensor
    grad_P: Tensor
    direction: Tensor
    slope: Tensor
    step: Tensor
    concave: Tensor

    @classmethod
    def fresh(cls, x: Tensor, memory: int, **extra: Tensor) -> Self:
        """All images running, with x (B, C, H, W) as their first trial point and room for so many steps."""
        history = x.new_zeros(len(x), memory, x[0].numel())
        count = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls.start(
            x,
            0,
            S=history,
            SS=history,
            Y_D=history,
            Y_P=history,
            pairs=count,
            grad_D=torch.zeros_like(x),
            grad_P=torch.zeros_like(x),
            direction=torch.zeros_like(x),
            slope=x.new_zeros(len(x)),
            step=x.new_ones(len(x)),
            concave=count,
            **extra,
        )

    def gradient(self, lam: Tensor) -> Tensor:
        """Of L at the iterate (B, n)."""
        return (self.grad_D + per_image(lam, self.x) * self.grad_P).flatten(1)

    @property
    def gap(self) -> Tensor:
        """How far L is above its minimum, if the model of the Hessian is right, in nats (B,)."""
        return -self.slope / 2


Q = TypeVar("Q", bound=QuasiNewtonState)


@dataclass(frozen=True)
class QuasiNewton:
    """Options of L-BFGS; the steps taken live in the solver's state.

    Arguments:
        memory: steps to keep.
        model: of the Hessian, to begin with, see `hessian_model`.
    """

    memory: int
    model: HessianModel

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise InputError(f"memory is {self.memory}; L-BFGS has to keep at least one step")
        if self.model not in get_args(HessianModel):
            raise InputError(f"model is {self.model}; choose from {', '.join(get_args(HessianModel))}")

    def step(self, problem: MapProblem, state: Q, lam: Tensor) -> tuple[Q, Tensor, Tensor]:
        """Evaluate the trial points, accept or shorten, and find new directions.

        Returns the state, still with the old trial points; which images accepted theirs (B,); and whose search has
        found all that can be found at this lam in this precision (B,).
        """
        evaluation = problem.evaluate(state.x)
        state = replace(state, evals=state.evals + state.running)
        state, accepted = self._judge(problem, state, evaluation, lam)
        failed = state.running & ~accepted
        doubtful = failed & (state.step < DOUBTFUL_STEP) & (state.pairs > 0)
        stalled = failed & (state.step < SHORTEST_STEP) & ~doubtful
        if some(doubtful):
            state = state.forget(doubtful)
        return self.turn(problem, state, lam, accepted | doubtful), accepted, stalled

    def turn(self, problem: MapProblem, state: Q, lam: Tensor, which: Tensor) -> Q:
        """A new direction for some images: minus the inverse Hessian, as far as it is known, times the gradient."""
        gradient, Y = state.gradient(lam), state.changes(lam)
        r = two_loop(state, Y, gradient, lambda q: solve_model(self.model, problem, state, Y, lam, q))
        # Inexact solves can in principle spoil the descent; the gradient itself never does.
        downhill = (gradient * r).sum(1) > 0
        r = torch.where(downhill[:, None], r, 0.1 * gradient / gradient.abs().amax(1, keepdim=True).clamp(min=TINY))
        # A full step, but no pixel may move by more than half its range at once.
        step = (0.5 / r.abs().amax(1).clamp(min=TINY)).clamp(max=1.0)
        return replace(
            state,
            direction=torch.where(per_image(which, state.x), -r.view_as(state.x), state.direction),
            slope=torch.where(which, -(gradient * r).sum(1), state.slope),
            step=torch.where(which, step, state.step),
        )

    def aim(self, state: Q) -> Q:
        """Put the trial points of the running images where their line searches want them next."""
        trial = state.x_seen + per_image(state.step, state.x) * state.direction
        return replace(state, x=torch.where(per_image(state.running, state.x), trial, state.x))

    def _judge(self, problem: MapProblem, state: Q, evaluation: Evaluation, lam: Tensor) -> tuple[Q, Tensor]:
        """Accept the trial points that lower L enough; the first evaluation of all is accepted if it is finite."""
        first, finite = state.D.isnan(), evaluation.finite
        L = state.D + lam * state.P
        # Near the minimum the decrease drowns in the rounding of two large terms; a step must not fail for that.
        rounding = 2 * torch.finfo(L.dtype).eps * (state.D.abs() + lam * state.P.abs())
        enough = evaluation.loss(lam) <= L + ARMIJO * state.step * state.slope + rounding + lam * problem.uncertainty
        accepted = state.running & finite & (first | enough)
        # Where the trial failed: the minimum of the parabola through what is known, within bounds.
        rise = evaluation.loss(lam) - L - state.step * state.slope
        parabola = (-state.slope * state.step.square() / (2 * rise)).nan_to_num(0.0)
        shorter = torch.where(finite, torch.clamp(parabola, 0.1 * state.step, 0.5 * state.step), 0.1 * state.step)
        state = self._remember(problem, state, evaluation, accepted & ~first, lam)

        def take(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(per_image(accepted, old), new, old)

        state = replace(
            state,
            x_seen=take(state.x, state.x_seen),
            D=take(evaluation.D, state.D),
            P=take(evaluation.P, state.P),
            grad_D=take(evaluation.grad_D, state.grad_D),
            grad_P=take(evaluation.grad_P, state.grad_P),
            step=torch.where(state.running, torch.where(accepted, torch.ones_like(shorter), shorter), state.step),
        )
        return state.stop(first & ~finite, Status.NON_FINITE), accepted

    def _remember(self, problem: MapProblem, state: Q, evaluation: Evaluation, moved: Tensor, lam: Tensor) -> Q:
        """Store the steps of the images that moved, where the curvature along the step is positive."""
        s = (state.x - state.x_seen).flatten(1)
        y_D = (evaluation.grad_D - state.grad_D).flatten(1)
        y_P = (evaluation.grad_P - state.grad_P).flatten(1)
        y = y_D + lam[:, None] * y_P
        good = moved & ((s * y).sum(1) > 1e-8 * s.norm(dim=1) * y.norm(dim=1))
        curved_s = problem.prior.surrogate.curvature.apply(s.view_as(state.x)).flatten(1)
        state = state.remember(good, s, curved_s, y_D, y_P)
        return replace(state, concave=state.concave + (moved & ((s * y).sum(1) <= 0)))


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
