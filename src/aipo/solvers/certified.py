"""AIPO with its guarantee (Algorithm 1): gradient descent with step 1/L along an even grid of lam.

The assumptions of Section 3.3 of the paper have four constants:

    L      Assumption 3.2: the gradient of L(.; lam) is L-Lipschitz, for all lam in [0, Lambda]
    sigma  Assumption 3.3: |x - x*(lam)| <= sigma |gradient at x| within distance delta of x*(lam)
    delta
    C      Assumption 3.4: |x*(lam1) - x*(lam2)| <= C |lam1 - lam2|

If they hold, the result is within epsilon of the global minimizer x*(Lambda) (Theorem 3.6). With

    mu      = 1 / (2 L sigma^2)
    delta_0 = min(delta, mu / sqrt(2 (L - mu) L) * delta)
    N       = floor(2 Lambda C / delta_0) + 1                           rounds, at lam = Lambda/N, 2 Lambda/N, ...
    K       = floor(2 log(2 delta / delta_0) / log(L / (L - mu))) + 1   steps in each round but the last
    K_last  = max(0, floor(2 log(2 delta / epsilon) / log(L / (L - mu))) + 1)

The theorem speaks of constants that are true. Estimates look at a finite number of points: they are evidence, not
proof. `Constants.source` says which constants are estimated, and `Constants.origin` whether any is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import State, Status
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["Certified", "Constants", "Plan", "estimate_constants", "extreme_curvatures"]

# Radii tried for delta, each half of the one before, and random points within each around every point of the path.
RADII, PROBES = 20, 16


@dataclass(frozen=True)
class Constants:
    """L, sigma, delta, C, one value per image (B,), each "given" or "estimated" according to `source`.

    An infinite sigma says that Assumption 3.3 fails for that image. `evals` is what the estimates cost, in gradient
    evaluations per image (a Hessian-vector product counts as two).
    """

    L: Tensor
    sigma: Tensor
    delta: Tensor
    C: Tensor
    source: dict[str, str] = field(default_factory=dict)
    evals: int = 0

    @property
    def origin(self) -> str:
        """ "given" if all four were given, "estimated" if any was estimated."""
        return "estimated" if "estimated" in self.source.values() else "given"

    def __post_init__(self) -> None:
        for name in ("L", "sigma", "delta", "C"):
            value = getattr(self, name)
            allowed = (value >= 0 if name == "C" else value > 0) & (value.isfinite() | (name == "sigma"))
            if not allowed.all():
                raise InputError(f"the constant {name} must be positive and finite, got {value.tolist()}")
        if (self.sigma * self.L < 1 - 1e-6).any():
            # x* has zero gradient, so |gradient at x| <= L |x - x*|: a smaller sigma contradicts Assumption 3.2.
            raise InputError(f"sigma must be at least 1/L, got sigma*L = {(self.sigma * self.L).tolist()}")


def extreme_curvatures(
    problem: MapProblem, x: Tensor, lam: Tensor, iterations: int = 50, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Smallest and largest eigenvalue (B,) of the Hessian of L(.; lam) at x, by power iteration.

    The first run finds the eigenvalue of largest size, `far`. A second one on H - far * I finds the other end.
    """
    start = _random_directions(x, torch.Generator().manual_seed(seed))

    def power(shift: Tensor) -> Tensor:
        v, rayleigh = start, torch.zeros_like(lam)
        for _ in range(iterations):
            Hv = problem.hessian_vector(x, lam, v)
            rayleigh = (v * Hv).flatten(1).sum(1)
            moved = Hv - per_image(shift, v) * v
            # If all eigenvalues equal the shift nothing is left to iterate on, and any v is an eigenvector.
            v = torch.where(per_image(_norm(moved) > 0, v), _unit(moved), v)
        return rayleigh

    far = power(torch.zeros_like(lam))
    other = power(far)
    return torch.minimum(far, other), torch.maximum(far, other)


def estimate_constants(
    problem: MapProblem,
    lam_max: Tensor,
    x0: Tensor,
    *,
    L: float | Tensor | None = None,
    sigma: float | Tensor | None = None,
    delta: float | Tensor | None = None,
    C: float | Tensor | None = None,
    points: int = 4,
    iterations: int = 50,
    steps: int = 500,
    safety: float = 1.5,
    seed: int = 0,
) -> Constants:
    """Fill in the constants that are not given, for the path that starts at x0 = x*(0) and ends at lam_max (B,).

    The path is sampled at lam = lam_max * (1/points, ..., 1) with a decayed Adam of `steps` steps, each started at the
    last. Then, over these points and times `safety`,
        L      is the largest curvature (power iteration on Hessian-vector products, `iterations` each),
        sigma  is 1 / the smallest curvature, infinite if that is not positive,
        C      is the largest difference quotient of x*(lam),
        delta  is the largest radius, of those tried, within which random points satisfy Assumption 3.3.
    """
    given = {"L": L, "sigma": sigma, "delta": delta, "C": C}
    source = {name: "estimated" if value is None else "given" for name, value in given.items()}
    values = {k: torch.as_tensor(v).to(lam_max).expand_as(lam_max) for k, v in given.items() if v is not None}
    missing = given.keys() - values.keys()
    if not missing:
        return Constants(values["L"], values["sigma"], values["delta"], values["C"], source)

    lams = [lam_max * (i / points) for i in range(1, points + 1)]
    path = _sample_path(problem, lams, x0, steps)
    evals = points * (steps + 1)
    if missing & {"L", "sigma"}:
        low, high = zip(
            *(extreme_curvatures(problem, x, lam, iterations, seed) for lam, x in zip(lams, path, strict=True)),
            strict=True,
        )
        evals += points * 2 * iterations * 2
        values.setdefault("L", safety * torch.stack(high).amax(0))
        # No positive curvature, no finite sigma: Assumption 3.3 fails there.
        smallest = torch.stack(low).amin(0).clamp(min=0)
        values.setdefault("sigma", torch.maximum(safety / smallest, 1 / values["L"]))
    if "C" in missing:
        ends, lam_ends = [x0, *path], [torch.zeros_like(lam_max), *lams]
        quotients = [_norm(ends[i + 1] - ends[i]) / (lam_ends[i + 1] - lam_ends[i]) for i in range(points)]
        values["C"] = safety * torch.stack(quotients).amax(0)
    if "delta" in missing:
        values["delta"], probes = _largest_radius(problem, path, lams, values["sigma"], seed)
        evals += probes
    return Constants(values["L"], values["sigma"], values["delta"], values["C"], source, evals)


def _sample_path(problem: MapProblem, lams: list[Tensor], x: Tensor, steps: int) -> list[Tensor]:
    solver, path = FixedLambda.decayed(steps), []
    for lam in lams:
        x = solver.solve(problem, lam, x).x
        path.append(x)
    return path


def _largest_radius(
    problem: MapProblem, path: list[Tensor], lams: list[Tensor], sigma: Tensor, seed: int
) -> tuple[Tensor, int]:
    """The radius (B,), halved until PROBES random points within it satisfy Assumption 3.3, and what it cost."""
    generator = torch.Generator().manual_seed(seed)
    radius, evals = torch.full_like(sigma, math.sqrt(math.prod(problem.image_shape))), 0
    settled = torch.zeros_like(sigma, dtype=torch.bool)
    for _ in range(RADII):
        holds = torch.ones_like(settled)
        for x, lam in zip(path * PROBES, lams * PROBES, strict=True):
            distance = radius * torch.rand((), generator=generator).to(radius)
            probe = x + per_image(distance, x) * _random_directions(x, generator)
            holds &= distance <= sigma * _norm(problem.evaluate(probe).gradient(lam))
        evals += len(path) * PROBES
        settled |= holds
        if settled.all():
            break
        radius = torch.where(settled, radius, radius / 2)
    return radius, evals


def _random_directions(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random unit vector, the same for every image: no estimate may depend on an image's place in the batch."""
    return _unit(torch.randn(x[:1].shape, generator=generator, dtype=x.dtype).to(x.device)).expand_as(x)


def _norm(v: Tensor) -> Tensor:
    return v.flatten(1).norm(dim=1)


def _unit(v: Tensor) -> Tensor:
    return v / per_image(_norm(v).clamp(min=torch.finfo(v.dtype).tiny), v)


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
