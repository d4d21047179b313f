"""AIPO with its guarantee (Algorithm 1): gradient descent with step 1/L along an even grid of lam.

If Assumptions 3.2 to 3.4 hold with constants L, sigma, delta, C, the result is within epsilon of the global minimizer
x*(Lambda) (Theorem 3.6). The theorem speaks of constants that are true: with estimated ones nothing is proven. With

    mu      = 1 / (2 L sigma^2)
    delta_0 = min(delta, mu / sqrt(2 (L - mu) L) * delta)
    N       = floor(2 Lambda C / delta_0) + 1                           rounds, at lam = Lambda/N, 2 Lambda/N, ...
    K       = floor(2 log(2 delta / delta_0) / log(L / (L - mu))) + 1   steps in each round but the last
    K_last  = max(0, floor(2 log(2 delta / epsilon) / log(L / (L - mu))) + 1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import State, Status
from aipo.solvers.constants import Constants, estimate_constants
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["Certified", "Plan"]


@dataclass(frozen=True)
class Plan:
    """What Algorithm 1 will do, per image (B,): rounds N, steps K in each, K_last in the last."""

    N: Tensor
    K: Tensor
    K_last: Tensor

    @classmethod
    def make(cls, constants: Constants, lam_max: Tensor, epsilon: float) -> Plan:
        L, sigma, delta, C = (c.double() for c in (constants.L, constants.sigma, constants.delta, constants.C))
        mu = 1 / (2 * L * sigma.square())
        delta_0 = torch.minimum(delta, mu / (2 * (L - mu) * L).sqrt() * delta)
        rate = torch.log(L / (L - mu))
        N = torch.floor(2 * lam_max.double() * C / delta_0) + 1
        K = torch.floor(2 * torch.log(2 * delta / delta_0) / rate) + 1
        K_last = torch.clamp(torch.floor(2 * torch.log(2 * delta / epsilon) / rate) + 1, min=0)
        return cls(N, K, K_last)


@dataclass(frozen=True)
class CertifiedState(State):
    """The constants, the plan made from them, and where in the plan each image is: step k of round i."""

    lam_max: Tensor
    L: Tensor
    sigma: Tensor
    delta: Tensor
    C: Tensor
    N: Tensor
    K: Tensor
    K_last: Tensor
    i: Tensor
    k: Tensor


@dataclass(frozen=True)
class Certified(AtLambda[CertifiedState]):
    """Algorithm 1 of the paper.

    `result.info["certified"]` says of which images it is proven that they are within epsilon of x*(Lambda), if the
    constants are true. This takes two things: the plan was carried out (status "done"), and all four constants were
    given. With estimated constants the plan is the same, but it rests on samples of the loss, and no image is called
    certified; `result.info["constants"].origin` is "given" or "estimated".

    Arguments:
        epsilon: precision |x - x*(Lambda)|, in the Euclidean norm of the image.
        L, sigma, delta, C: the constants of the assumptions, a number or one per image; those left out are
            estimated (see `estimate_constants`), and `result.info["constants"].source` says which were.
        max_evals: give up on an image after so many evaluations; its status is then "max evaluations" and nothing is
            certified. The plan of a real flow prior usually asks for more than anyone has.

    An image whose curvature is estimated not to be positive on the whole path gets the status "assumption violated".
    x0 is the solution at lam = 0, by default `initial.mle`.
    """

    state_type = CertifiedState

    epsilon: float = 1e-2
    L: float | Tensor | None = None
    sigma: float | Tensor | None = None
    delta: float | Tensor | None = None
    C: float | Tensor | None = None
    max_evals: int = 1_000_000

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise InputError(f"epsilon must be > 0, got {self.epsilon}")

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        mle = initial.mle(problem, progress=progress)
        return mle.x, mle.evals

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> CertifiedState:
        problem.check_start(x0)
        lam_max = problem.lam_tensor(lam)
        constants = estimate_constants(problem, lam_max, x0, L=self.L, sigma=self.sigma, delta=self.delta, C=self.C)
        plan = Plan.make(constants, lam_max, self.epsilon)
        zero = torch.zeros_like(plan.N)
        return CertifiedState.start(
            x0,
            constants.evals,
            lam_max=lam_max,
            L=constants.L,
            sigma=constants.sigma,
            delta=constants.delta,
            C=constants.C,
            N=plan.N,
            K=plan.K,
            K_last=plan.K_last,
            i=zero,
            k=zero,
        )

    def step(self, problem: MapProblem, state: CertifiedState) -> CertifiedState:
        state, evaluation = state.observe(problem)
        state = state.stop(~state.K.isfinite(), Status.ASSUMPTION_VIOLATED)
        last = state.i == state.N - 1
        over = state.k >= torch.where(last, state.K_last, state.K)
        state = state.stop(over & last, Status.DONE)
        state = state.stop(state.evals >= self.max_evals, Status.MAX_EVALUATIONS)
        # A round that is over passes its evaluation on to the next, at the next lam.
        i = torch.where(over & ~last, state.i + 1, state.i)
        k = torch.where(over & ~last, torch.zeros_like(state.k), state.k)
        lam = state.lam_max * ((i + 1) / state.N).to(state.lam_max.dtype)
        x = state.x - evaluation.gradient(lam) / per_image(state.L, state.x)
        running = state.running
        return replace(
            state,
            x=torch.where(per_image(running, x), x, state.x),
            i=torch.where(running, i, state.i),
            k=torch.where(running, k + 1, state.k),
        )

    def result(self, problem: MapProblem, state: CertifiedState) -> Result:
        """`info` has the constants with their source, the plan N, K, K_last, and whether each image is certified."""
        given = {"L": self.L, "sigma": self.sigma, "delta": self.delta, "C": self.C}
        source = {name: "estimated" if value is None else "given" for name, value in given.items()}
        constants = Constants(state.L, state.sigma, state.delta, state.C, source)
        info = {
            "epsilon": self.epsilon,
            "certified": (state.status == Status.DONE) & (constants.origin == "given"),
            "constants": constants,
            "N": state.N,
            "K": state.K,
            "K_last": state.K_last,
        }
        return make_result(state, state.lam_max, info=info)

    def budget(self, state: CertifiedState) -> int:
        evals = (state.N - 1) * state.K + state.K_last + 1
        return int(evals.nan_to_num(nan=0).clamp(max=self.max_evals).max())
