"""How each method solves a chunk of images at every lam.

Baselines get as many gradient evaluations, image by image, as Algorithm 2 as printed took at the same lam. Where its
start, the maximum-likelihood solution, cost evaluations of its own, the starts that cost nothing get those too.

Methods that differ in their start only have the same `solve`, which takes them all in one batch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aipo.bench.classical import CLASSICAL, TV_WEIGHT, WAVELET_ITERATIONS, WAVELET_WEIGHT
from aipo.bench.lbfgs import PlainLBFGS
from aipo.bench.protocol import TASKS
from aipo.bench.work import Work
from aipo.iterate import Result, State
from aipo.solvers.amortized import Amortized
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.path import FollowPath, follow_path

__all__ = ["BUDGET", "METHODS", "NO_LAM", "PATHS", "Method", "Outcome", "Solve"]

# Of the path solver, for all lam together: a fiftieth of what Algorithm 2 takes, and a twentieth.
SHORT_PATH, LONG_PATH = 65, 300
NO_LAM = 0.0
# Of the decayed Adam: what `FixedLambda.decayed` has by default.
TUNED_ALPHA = 0.03


@dataclass(frozen=True)
class Outcome:
    """Solutions x (L, B, C, H, W); their D, P and evaluations (L, B); status[l][b]."""

    x: Tensor
    D: Tensor
    P: Tensor
    evals: Tensor
    status: list[list[str]]


@dataclass(frozen=True)
class Method:
    """A way to restore a chunk of images.

    Attributes:
        solve: one outcome for each of some methods that have this same `solve`.
        start: of a baseline, where it begins: a name of `Work.start`.
        needs: the methods whose evaluations it takes as its budget.
        tasks: those it is for, if not for all.
        knows_lam: if not, it has one solution, which is filed under `NO_LAM`.
        package: what it needs beside our own dependencies.
    """

    name: str
    title: str
    solve: Solve
    settings: str
    start: str = ""
    needs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = tuple(TASKS)
    knows_lam: bool = True
    package: str | None = None

    @property
    def available(self) -> bool:
        """Whether the package it needs is installed."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def lambdas(self, wanted: tuple[float, ...]) -> tuple[float, ...]:
        return wanted if self.knows_lam else (NO_LAM,)


Solve = Callable[[Work, Sequence[Method]], list[Outcome]]


def _classical(name: str, title: str, package: str | None = None) -> Method:
    by_task = CLASSICAL[name]

    def solve(work: Work, methods: Sequence[Method]) -> list[Outcome]:
        x = by_task[work.task.name](work)[None]
        nan = x.new_full(x.shape[:2], torch.nan)
        return [Outcome(x, nan, nan, torch.zeros_like(nan), [["done"] * len(work.truth)])]

    weights = f"{name}, {TV_WEIGHT}, {WAVELET_WEIGHT}, {WAVELET_ITERATIONS}"
    return Method(name, title, solve, weights, tasks=tuple(by_task), knows_lam=False, package=package)


def _unfold(work: Work, result: Result, spent: Sequence[Tensor | int]) -> list[Outcome]:
    """A result of `work.repeated`; the start of each method took `spent` evaluations (B,)."""
    shape = (len(spent), len(work.lambdas), len(work.truth))
    parts = zip(*(t.unflatten(0, shape) for t in (result.x, result.D, result.P, result.evals)), strict=True)
    status = iter(result.status)
    return [
        Outcome(x, D, P, evals + extra, [[next(status) for _ in work.truth] for _ in work.lambdas])
        for (x, D, P, evals), extra in zip(parts, spent, strict=True)
    ]


def _aipo(solver: Amortized) -> Solve:
    """Algorithm 2 from the maximum-likelihood start, whose evaluations are counted too."""

    def solve(work: Work, methods: Sequence[Method]) -> list[Outcome]:
        watch = work.watch([m.name for m in methods], lambda state: state.lam / state.lam_max, [work.mle.evals])
        result = solver.solve(work.repeated(), work.lam(), work.repeat(work.mle.x), callback=watch)
        return _unfold(work, result, [work.mle.evals])

    return solve


def _adam(solver: FixedLambda) -> Solve:
    """Adam from the start of each method, with the evaluations that `BUDGET` took."""

    def solve(work: Work, methods: Sequence[Method]) -> list[Outcome]:
        starts, spent = zip(*(work.start(method.start) for method in methods), strict=True)
        budget = work.evals[BUDGET].to(work.truth.device)
        # An image on which Algorithm 2 failed at once still gets a step.
        steps = torch.cat([(budget - evals - 1).clamp(min=1).flatten() for evals in spent])
        limited = replace(solver, steps=tuple(steps.tolist()))
        watch = work.watch([m.name for m in methods], lambda state: state.t / state.steps, spent)
        x0 = torch.cat([work.repeat(x) for x in starts])
        result = limited.solve(work.repeated(len(methods)), work.lam(len(methods)), x0, callback=watch)
        return _unfold(work, result, spent)

    return solve


def _path(evals: int) -> Solve:
    """All lam along one path; evaluations are those spent by the time a lam was done, so the last counts for all."""

    def solve(work: Work, methods: Sequence[Method]) -> list[Outcome]:
        path = follow_path(work.problem, work.lambdas, evals=evals, callback=_teller(work, evals))
        x, D, P, spent = (_padded(getattr(path, name), len(work.lambdas)) for name in ("x", "D", "P", "evals"))
        return [Outcome(x, D, P, spent, [path.status] * len(work.lambdas))]

    return solve


def _teller(work: Work, budget: float) -> Callable[[State], None]:
    """Tells how much of a budget is spent."""
    return lambda state: work.progress(state.evals.double().mean().item() / budget)


def _padded(values: Tensor, count: int) -> Tensor:
    """(B, L', ...) -> (L, B, ...): NaN at lam that no image reached."""
    missing = values.new_full((len(values), count - values.shape[1], *values.shape[2:]), torch.nan)
    return torch.cat([values, missing], dim=1).transpose(0, 1)


def _lbfgs(work: Work, methods: Sequence[Method]) -> list[Outcome]:
    """Plain L-BFGS from the maximum-likelihood start, at each lam with the mean budget there."""
    spent = work.mle.evals
    left = (work.evals[BUDGET].to(spent.device) - spent).double().mean(1).long().clamp(min=1)
    solver = PlainLBFGS(work.lambdas, budgets=tuple(left.tolist()))
    tell = _teller(work, left.double().mean().item())
    result = solver.solve(work.repeated(), work.lam(), work.repeat(work.mle.x), callback=tell)
    return _unfold(work, result, [spent])


AIPO, PRINTED = Amortized(), Amortized(decay="round")
CONSTANT, DECAYED = FixedLambda(), FixedLambda.decayed(alpha=TUNED_ALPHA)
BUDGET = "aipo_printed"
PATHS = ("path", "path_long")
_constant, _decayed = _adam(CONSTANT), _adam(DECAYED)


def _limited(name: str, title: str, solve: Solve, start: str, settings: str) -> Method:
    """A method that gets the evaluations of `BUDGET`, and so depends on its settings too."""
    return Method(name, title, solve, f"{start}, {settings}; budget: {PRINTED!r}", start, needs=(BUDGET,))


METHODS = {
    method.name: method
    for method in (
        Method("aipo", "AIPO", _aipo(AIPO), repr(AIPO)),
        Method(BUDGET, "AIPO, steps as printed", _aipo(PRINTED), repr(PRINTED)),
        _limited("mle_init", "MLE init", _constant, "mle", repr(CONSTANT)),
        _limited("random_init", "Random init", _constant, "random", repr(CONSTANT)),
        _limited("zero_init", "Zero init", _constant, "zero", repr(CONSTANT)),
        Method("path", f"follow_path, {SHORT_PATH}", _path(SHORT_PATH), repr(FollowPath(evals=SHORT_PATH))),
        Method("path_long", f"follow_path, {LONG_PATH}", _path(LONG_PATH), repr(FollowPath(evals=LONG_PATH))),
        _limited("adam_mle", "decayed Adam from MLE", _decayed, "mle", repr(DECAYED)),
        _limited("adam_random", "decayed Adam from random", _decayed, "random", repr(DECAYED)),
        _limited("adam_zero", "decayed Adam from zero", _decayed, "zero", repr(DECAYED)),
        _limited("lbfgs", "L-BFGS from MLE", _lbfgs, "mle", "L-BFGS, memory 40"),
        _classical("bm3d", "BM3D", "bm3d"),
        _classical("tv", "total variation", "skimage"),
        _classical("biharmonic", "biharmonic filling", "skimage"),
        _classical("wavelets", "sparse wavelets"),
    )
}
