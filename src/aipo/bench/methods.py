"""How each method solves a chunk of images at every lam.

Baselines get as many gradient evaluations, image by image, as Algorithm 2 as printed took at the same lam. Where its
start, the maximum-likelihood solution, cost evaluations of its own, the starts that cost nothing get those too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from aipo.bench.classical import CLASSICAL, TV_WEIGHT, WAVELET_ITERATIONS, WAVELET_WEIGHT
from aipo.bench.protocol import TASKS
from aipo.bench.work import Work
from aipo.iterate import Result, State
from aipo.path import Path
from aipo.solvers.amortized import Amortized
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.path import FollowPath, follow_path

__all__ = ["BUDGET", "METHODS", "NO_LAM", "Method", "Outcome"]

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
    """`needs` names the methods whose evaluations it takes as its budget; `tasks` those it is for, if not for all.

    A method that knows no lam has one solution, which is filed under `NO_LAM`.
    """

    name: str
    title: str
    solve: Callable[[Work], Outcome]
    settings: str
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


def _classical(name: str, title: str, package: str | None = None) -> Method:
    by_task = CLASSICAL[name]

    def solve(work: Work) -> Outcome:
        x = by_task[work.task.name](work)[None]
        nan = x.new_full(x.shape[:2], torch.nan)
        return Outcome(x, nan, nan, torch.zeros_like(nan), [["done"] * len(work.truth)])

    weights = f"{name}, {TV_WEIGHT}, {WAVELET_WEIGHT}, {WAVELET_ITERATIONS}"
    return Method(name, title, solve, weights, tasks=tuple(by_task), knows_lam=False, package=package)


def _unfold(work: Work, result: Result, extra: Tensor | int = 0) -> Outcome:
    """A result of `work.repeated`; `extra` evaluations were spent on the start (B,)."""
    count = len(work.lambdas)
    status = [result.status[i * len(work.truth) : (i + 1) * len(work.truth)] for i in range(count)]
    parts = (tensor.unflatten(0, (count, -1)) for tensor in (result.x, result.D, result.P, result.evals))
    x, D, P, evals = parts
    return Outcome(x, D, P, evals + extra, status)


def _aipo(solver: Amortized) -> Callable[[Work], Outcome]:
    """Algorithm 2 from the maximum-likelihood start, whose evaluations are counted too."""

    def solve(work: Work) -> Outcome:
        watch = work.watch(lambda state: state.lam / state.lam_max, work.mle.evals)
        result = solver.solve(work.repeated, work.lam, work.repeat(work.mle.x), callback=watch)
        return _unfold(work, result, work.mle.evals)

    return solve


def _with_the_same_budget(work: Work, solver: FixedLambda, x0: Tensor, spent: Tensor | int) -> Outcome:
    # An image on which Algorithm 2 failed at once still gets a step.
    steps = (work.evals[BUDGET].to(x0.device) - spent - 1).clamp(min=1).flatten().tolist()
    solver = FixedLambda(tuple(steps), solver.alpha, solver.schedule, solver.adam)
    watch = work.watch(lambda state: state.t / state.steps, spent)
    result = solver.solve(work.repeated, work.lam, work.repeat(x0), callback=watch)
    return _unfold(work, result, spent)


def _from_mle(solver: FixedLambda) -> Callable[[Work], Outcome]:
    return lambda work: _with_the_same_budget(work, solver, work.mle.x, work.mle.evals)


def _from_random(solver: FixedLambda) -> Callable[[Work], Outcome]:
    return lambda work: _with_the_same_budget(work, solver, work.random, 0)


def _from_zero(solver: FixedLambda) -> Callable[[Work], Outcome]:
    return lambda work: _with_the_same_budget(work, solver, work.zero, 0)


def _path(evals: int) -> Callable[[Work], Outcome]:
    """All lam along one path; evaluations are those spent by the time a lam was done, so the last counts for all."""

    def solve(work: Work) -> Outcome:
        path = follow_path(work.problem, work.lambdas, evals=evals, callback=_teller(work, evals))
        x, D, P, evaluated = (_padded(getattr(path, name), len(work.lambdas)) for name in ("x", "D", "P", "evals"))
        return Outcome(x, D, P, evaluated, [path.status] * len(work.lambdas))

    return solve


def _teller(work: Work, budget: int, before: int = 0, solves: int = 1) -> Callable[[State], None]:
    """Tells how far the solve after `before` others of `solves` is."""
    return lambda state: work.progress((before + state.evals.double().mean().item() / budget) / solves)


def _padded(values: Tensor, count: int) -> Tensor:
    """(B, L', ...) -> (L, B, ...): NaN at lam that no image reached."""
    missing = values.new_full((len(values), count - values.shape[1], *values.shape[2:]), torch.nan)
    return torch.cat([values, missing], dim=1).transpose(0, 1)


def _lbfgs(work: Work) -> Outcome:
    """Plain L-BFGS from the maximum-likelihood start, at each lam on its own, with the mean budget there."""
    found = []
    for i, (lam, spent) in enumerate(zip(work.lambdas, work.evals[BUDGET], strict=True)):
        budget = max(int((spent.to(work.truth.device) - work.mle.evals).double().mean()), 1)
        solver = FollowPath((lam,), budget, tolerance=0.0, model="none")
        tell = _teller(work, budget, i, len(work.lambdas))
        found.append(cast(Path, solver.solve(work.problem, lam, work.mle.x, callback=tell)))
    x, D, P, evals = (torch.stack([getattr(path, name)[:, 0] for path in found]) for name in ("x", "D", "P", "evals"))
    return Outcome(x, D, P, evals + work.mle.evals, [path.status for path in found])


AIPO, PRINTED = Amortized(), Amortized(decay="round")
CONSTANT, DECAYED = FixedLambda(), FixedLambda.decayed(alpha=TUNED_ALPHA)
BUDGET = "aipo_printed"


def _limited(name: str, title: str, solve: Callable[[Work], Outcome], settings: str) -> Method:
    """A method that gets the evaluations of `BUDGET`, and so depends on its settings too."""
    return Method(name, title, solve, f"{settings}; budget: {PRINTED!r}", needs=(BUDGET,))


METHODS = {
    method.name: method
    for method in (
        Method("aipo", "AIPO", _aipo(AIPO), repr(AIPO)),
        Method(BUDGET, "AIPO, steps as printed", _aipo(PRINTED), repr(PRINTED)),
        _limited("mle_init", "MLE init", _from_mle(CONSTANT), f"mle, {CONSTANT!r}"),
        _limited("random_init", "Random init", _from_random(CONSTANT), f"random, {CONSTANT!r}"),
        _limited("zero_init", "Zero init", _from_zero(CONSTANT), f"zero, {CONSTANT!r}"),
        Method("path", f"follow_path, {SHORT_PATH}", _path(SHORT_PATH), repr(FollowPath(evals=SHORT_PATH))),
        Method("path_long", f"follow_path, {LONG_PATH}", _path(LONG_PATH), repr(FollowPath(evals=LONG_PATH))),
        _limited("adam_mle", "decayed Adam from MLE", _from_mle(DECAYED), f"mle, {DECAYED!r}"),
        _limited("adam_random", "decayed Adam from random", _from_random(DECAYED), f"random, {DECAYED!r}"),
        _limited("adam_zero", "decayed Adam from zero", _from_zero(DECAYED), f"zero, {DECAYED!r}"),
        _limited("lbfgs", "L-BFGS from MLE", _lbfgs, "mle, L-BFGS, memory 40"),
        _classical("bm3d", "BM3D", "bm3d"),
        _classical("tv", "total variation", "skimage"),
        _classical("biharmonic", "biharmonic filling", "skimage"),
        _classical("wavelets", "sparse wavelets"),
    )
}
