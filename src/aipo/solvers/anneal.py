"""Continuation in the noise level: from a prior that is smooth to the one that knows every detail.

A noise prior is a family of densities p_s, of images with noise of standard deviation s. The larger s, the smoother.
`Anneal` lets s fall, and at each level does two things, at the price of one gradient evaluation:

    x_hat = v + s^2 grad log p_s(v)                             the mean of all images that v may come from (Tweedie)
    v     = argmin over u of  D(u) + lam |u - x_hat|^2 / (2 s^2)     what the measurements have to say about it

If s stayed where it is, v would come to rest where the gradient of D + lam P_s is zero: the two lines are a step of
proximal gradient descent on the paper's objective, with the prior of that level. So it follows the minimizer of
D + lam P_s while s falls, as the paper follows that of D + lam P while lam grows. What it returns is the last x_hat:
not the most probable image, but the mean of those that are left.

For denoising the first level is that of the noise, and the first x_hat is the least-squares estimate itself.

Reference for the splitting: K. Zhang et al., "Plug-and-play image restoration with deep denoiser prior", 2021,
https://arxiv.org/abs/2008.13751
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.noise import Gaussian
from aipo.operators import Denoising
from aipo.priors.noise_prior import LevelPrior, NoisePrior
from aipo.problem.map_problem import MapProblem
from aipo.problem.proximal import proximal
from aipo.solvers import initial
from aipo.solvers.base import State, Status
from aipo.solvers.result import Result
from aipo.solvers.solve import WithoutLambda

__all__ = ["Anneal", "AnnealState", "anneal", "noise_prior"]


@dataclass(frozen=True)
class AnnealState(State):
    """x is v, x_seen the last estimate.

    Attributes:
        levels: the noise levels (B, K), falling.
        behind: how many of them are behind an image (B,).
    """

    levels: Tensor
    behind: Tensor


@dataclass(frozen=True)
class Anneal(WithoutLambda[AnnealState, Result]):
    """Follow the solution as the noise level of the prior falls.

    Arguments:
        evals: levels, hence gradient evaluations; denoising takes one.
        first: the level to begin with, on the [0, 1] scale.
        lam: the weight of the prior, see above.

    The last level is that of the measurement's noise. It starts at x0, by default `initial.gaussian`.

    Examples:
        >>> import aipo
        >>> flow = aipo.flows.NoiseFlow(couplings=[2, 2], hidden=[4, 4], blocks=[1, 1])  # not trained: a Gaussian
        >>> prior = aipo.NoisePrior(flow.requires_grad_(False))
        >>> operator, noise = aipo.operators.SuperResolution((3, 64, 64), 2), aipo.Gaussian(0.05)
        >>> y = operator.measure(aipo.samples.load("astronaut")[None], noise, seed=1)
        >>> result = aipo.Anneal(evals=3, first=0.2).solve(aipo.MapProblem(prior, operator, noise, y))
        >>> [round(s, 3) for s in result.trajectory["s"][0].tolist()]  # down to sigma, each half of the one before
        [0.2, 0.1, 0.05]
    """

    state_type = AnnealState

    evals: int = 20
    first: float = 0.2
    lam: float = 0.23

    @classmethod
    def quick(cls) -> Anneal:
        """In eight evaluations."""
        return cls(evals=8)

    def __post_init__(self) -> None:
        if self.evals < 1 or not 0 < self.first < math.inf or not 0 < self.lam < math.inf:
            raise InputError(
                f"need evals >= 1, first > 0 and lam > 0, got {self.evals}, {self.first:g} and {self.lam:g}"
            )

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return (problem.y if _plain(problem) else initial.gaussian(problem)), 0

    def init(self, problem: MapProblem, x0: Tensor) -> AnnealState:
        problem.check_start(x0)
        levels = self._levels(problem)
        return AnnealState.start(x0, 0, levels=levels, behind=torch.zeros(len(x0), dtype=torch.int64, device=x0.device))

    def _levels(self, problem: MapProblem) -> Tensor:
        """From the first level to that of the noise, each the same factor below the one before (B, K)."""
        low, high = noise_prior(problem).levels
        last = problem.noise.variance(problem.y).sqrt().double().clamp(low, high)
        if _plain(problem):
            return last[:, None]
        first = torch.maximum(last, torch.tensor(self.first, dtype=torch.float64).clamp(low, high))
        share = torch.linspace(0, 1, self.evals, dtype=torch.float64, device=last.device)
        return first[:, None] * (last / first)[:, None] ** share

    def step(self, problem: MapProblem, state: AnnealState) -> AnnealState:
        prior, running = noise_prior(problem), state.running
        levels = state.levels.shape[1]
        s = state.levels.gather(1, state.behind.clamp(max=levels - 1)[:, None])[:, 0]
        estimate = prior.denoise(state.x, s, precision=problem.precision)
        good = running & estimate.flatten(1).isfinite().all(1)
        behind = state.behind + running
        more = good & (behind < levels)
        v = proximal(problem, estimate, self.lam / s.square().to(estimate.dtype)) if more.any() else state.x
        moved = replace(
            state,
            x=torch.where(per_image(more, v), v, state.x),
            x_seen=torch.where(per_image(good, estimate), estimate, state.x_seen),
            evals=state.evals + running,
            behind=behind,
        )
        return moved.stop(running & ~good, Status.NON_FINITE).stop(behind >= levels, Status.DONE)

    def restate(self, problem: MapProblem, state: AnnealState) -> AnnealState:
        return state  # it holds no values of the objective

    @torch.no_grad()
    def result(self, problem: MapProblem, state: AnnealState) -> Result:
        x = state.x_seen
        D, P = problem.D(x), problem.P(x)
        lam = D.new_full(D.shape, self.lam)
        return Result(x, lam, D + lam * P, D, P, state.evals, state.reasons, trajectory={"s": state.levels})

    def budget(self, state: AnnealState) -> int:
        return state.levels.shape[1]


def anneal(
    problem: MapProblem,
    *,
    evals: int = 20,
    quick: bool = False,
    x0: Tensor | None = None,
    progress: bool = False,
    callback: Callable[[AnnealState], None] | None = None,
    checkpoint: str | Path | None = None,
) -> Result:
    """Restore every image of a problem with a noise prior: see `Anneal`.

    Arguments:
        problem: its prior is a `NoisePrior`, such as `load_prior("photo-small")`.
        evals: gradient evaluations per image at most; denoising takes one.
        quick: eight evaluations.
        x0: where to start (B, C, H, W).
        checkpoint: a .safetensors file from which a broken run goes on, see `Amortized.solve`.

    Examples:
        Before it is trained a noise flow is a Gaussian, which is enough to show how it is used.

        >>> import aipo
        >>> x = aipo.samples.load("astronaut")[None]
        >>> flow = aipo.flows.NoiseFlow(couplings=[2, 2], hidden=[4, 4], blocks=[1, 1])
        >>> flow.initialize(x)
        >>> prior = aipo.NoisePrior(flow.requires_grad_(False))
        >>> operator = aipo.operators.Inpainting.random_blocks((3, 64, 64), fraction=0.25, block=4, seed=0)
        >>> noise = aipo.Gaussian(0.05)
        >>> problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
        >>> result = aipo.anneal(problem)
        >>> result.evals.tolist(), result.status
        ([20], ['done'])
        >>> bool(aipo.metrics.psnr(result.x, x) > aipo.metrics.psnr(problem.y, x) + 10)
        True
    """
    solver = Anneal.quick() if quick else Anneal(evals)
    return solver.solve(problem, x0=x0, progress=progress, callback=callback, checkpoint=checkpoint)


def noise_prior(problem: MapProblem) -> NoisePrior:
    """The prior of a problem at every noise level; `InputError` if it knows but one."""
    if isinstance(problem.prior, LevelPrior):
        return problem.prior.prior
    raise InputError(f"{problem.prior.name} has no noise levels to follow; use a noise prior such as photo-small")


def _plain(problem: MapProblem) -> bool:
    """Whether all there is to do is to denoise: white noise on the image itself."""
    return isinstance(problem.operator, Denoising) and isinstance(problem.noise, Gaussian)
