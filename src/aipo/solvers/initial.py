"""Starting points: the paper's zero and random initialization, and the maximum-likelihood solution (Eq. 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aipo.batch import max_change, per_image
from aipo.operators import Denoising
from aipo.problem.map_problem import MapProblem
from aipo.solvers.adam import Adam, AdamState
from aipo.solvers.base import State, Status, exact_share
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import WithoutLambda

__all__ = ["MaximumLikelihood", "gaussian", "mle", "random", "zero"]


@torch.no_grad()
def zero(problem: MapProblem) -> Tensor:
    """G(0) for every image: (B, C, H, W). For a face prior, a plausible average face."""
    return problem.prior.center().repeat(problem.batch, 1, 1, 1)


def random(problem: MapProblem, seed: int = 0) -> Tensor:
    """G(z) with z ~ N(0, I), one draw per image: (B, C, H, W)."""
    return problem.prior.sample(problem.batch, seed=seed)


@torch.no_grad()
def gaussian(problem: MapProblem) -> Tensor:
    """The MAP solution at lam = 1 under a Gaussian with the prior's mean and spectrum: (B, C, H, W).

    It costs no evaluation of the flow and starts far closer to the minimum than G(0) does. For a nonlinear operator
    it is one Gauss-Newton step from the mean.
    """
    surrogate = problem.prior.surrogate
    mean = surrogate.mean.expand(problem.batch, -1, -1, -1)
    precision = 1 / problem.noise.variance(problem.y)
    residual = problem.y - problem.operator.A(mean)
    pull = per_image(precision, mean) * problem.operator.adjoint_at(mean, residual)
    step = problem.operator.solve_regularized(pull, precision, torch.ones_like(precision), surrogate.marginal, mean)
    return mean + step


def mle(problem: MapProblem, iterations: int = 500, progress: bool = False) -> Result:
    """x*(0): the most probable image under the prior among those with f(x) = y, in [0, 1]^n, as a `Result`.

    It is found by `MaximumLikelihood`, which is not quite the projected gradient descent of the paper: Adam with a
    decayed step, and three sweeps of projections after each step. Denoising leaves no choice (f(x) = y is one point):
    it returns y clipped to [0, 1], at no evaluation.
    """
    if isinstance(problem.operator, Denoising):
        state = State.start(problem.y.clamp(0, 1))
        return _evaluated(problem, state.stop(state.running, Status.DONE))
    return MaximumLikelihood(iterations).solve(problem, progress=progress)


@torch.no_grad()
def _evaluated(problem: MapProblem, state: State) -> Result:
    x = state.x_seen
    return make_result(replace(state, D=problem.D(x), P=problem.P(x)), problem.lam_tensor(0.0))


@dataclass(frozen=True)
class MaximumLikelihood(WithoutLambda[AdamState, Result]):
    """Projected gradient for Eq. 4: maximize p_G(x) subject to f(x) = y (appendix A of the paper).

    The paper runs 500 iterations of projected gradient descent, each projected until converged. Ours takes steps of
    Adam that shrink to zero along a cosine, and three sweeps of projections after each.

    The gradient is first projected on the directions that keep f(x) = y. Adam rescales every pixel, and a rescaled
    normal component would leak into the feasible directions and stop short of the constrained optimum.

    Arguments:
        iterations: gradient evaluations.
        alpha: initial step size of Adam, decayed to zero along a cosine.
        sweeps: alternating projections after each step; the last point is projected until converged.
        tol: an image is done when a step moves no pixel by more than this.

    The search starts at x0, by default G(0). There is no lam: x*(0) is the limit of lam -> 0.
    """

    state_type = AdamState
    capturable = True

    iterations: int = 500
    alpha: float = 0.03
    sweeps: int = 3
    tol: float = 1e-6
    adam: Adam = Adam(beta2=0.95)

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return zero(problem), 0

    def init(self, problem: MapProblem, x0: Tensor) -> AdamState:
        problem.check_start(x0)
        x = problem.operator.project(x0, problem.y)
        return AdamState.fresh(x)

    def step(self, problem: MapProblem, state: AdamState) -> AdamState:
        state, evaluation = state.observe(problem)
        running = state.running
        gradient = problem.operator.tangent(state.x, evaluation.grad_P)
        fraction = (state.t.to(state.x.dtype) / self.iterations).clamp(max=1)
        alpha = self.alpha * 0.5 * (1 + torch.cos(math.pi * fraction))
        moved = self.adam.descend(state, gradient, alpha)
        x = problem.operator.project(moved.x, problem.y, max_iter=self.sweeps)
        x = torch.where(per_image(running, x), x, state.x)
        still = max_change(state.x, x) <= self.tol
        return replace(moved, x=x).stop(still | (moved.t >= self.iterations), Status.DONE)

    def finishing(self, state: AdamState) -> Tensor:
        return self.iterations - state.t <= exact_share(self.iterations)

    def result(self, problem: MapProblem, state: AdamState) -> Result:
        # Feasibility is what defines this point, so it is restored to full accuracy, then evaluated once more.
        x = problem.operator.project(state.x, problem.y)
        x = torch.where(per_image(state.status == Status.NON_FINITE, x), state.x_seen, x)
        return _evaluated(problem, replace(state, x_seen=x))

    def budget(self, state: AdamState) -> int:
        return self.iterations
