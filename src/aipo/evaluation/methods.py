"""How each method solves a chunk of images at every lam.

Baselines get as many gradient evaluations, image by image, as Algorithm 2 as printed took at the same lam. Where its
start, the maximum-likelihood solution, cost evaluations of its own, the starts that cost nothing get those too.

Methods that differ only in their start have the same `solve`, which takes them all in one batch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aipo.evaluation.chunk import Chunk
from aipo.evaluation.classical import CLASSICAL, TV_WEIGHT, WAVELET_ITERATIONS, WAVELET_WEIGHT
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.solvers.amortized import Amortized
from aipo.solvers.base import State
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.follow_path import FollowPath, follow_path
from aipo.solvers.lbfgs import LBFGS
from aipo.solvers.result import Result

__all__ = ["BUDGET_METHOD", "LAM_UNUSED", "METHODS", "PATHS", "Method", "Outcome", "Solve"]

# Evaluations of the path solver for all lam together: a fiftieth of what Algorithm 2 takes, and a twentieth.
SHORT_PATH, LONG_PATH = 65, 300
# The lam in the rows of methods that have no lam.
LAM_UNUSED = 0.0
# The first step of the decayed Adam, which is also the default of `FixedLambda.decayed`.
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
        name: in rows, tables and on the command line.
        title: for people.
        solve: solves a chunk by some methods that all have this same `solve`: one outcome for each.
        settings: everything that its results depend on, as text.
        start: where a baseline starts: a name of `Chunk.start`.
        needs: the methods whose evaluations it gets as its budget.
        tasks: the experiments it is for.
        uses_lam: if not, it has one solution, whose rows have `LAM_UNUSED` as their lam.
        package: an optional package that it needs.
    """

    name: str
    title: str
    solve: Solve
    settings: str
    start: str = ""
    needs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = tuple(EXPERIMENTS)
    uses_lam: bool = True
    package: str | None = None

    @property
    def available(self) -> bool:
        """Whether the package it needs is installed."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def lambdas(self, wanted: tuple[float, ...]) -> tuple[float, ...]:
        return wanted if self.uses_lam else (LAM_UNUSED,)


Solve = Callable[[Chunk, Sequence[Method]], list[Outcome]]


def _classical(name: str, title: str, package: str | None = None) -> Method:
    by_experiment = CLASSICAL[name]

    def solve(chunk: Chunk, methods: Sequence[Method]) -> list[Outcome]:
        x = by_experiment[chunk.experiment.name](chunk)[None]
        nan = x.new_full(x.shape[:2], torch.nan)
        return [Outcome(x, nan, nan, torch.zeros_like(nan), [["done"] * len(chunk.truth)])]

    weights = f"{name}, {TV_WEIGHT}, {WAVELET_WEIGHT}, {WAVELET_ITERATIONS}"
    return Method(name, title, solve, weights, tasks=tuple(by_experiment), uses_lam=False, package=package)


def _unfold(chunk: Chunk, result: Result, spent: Sequence[Tensor | int]) -> list[Outcome]:
    """One outcome per method, from a result of `Chunk.repeated_problem`; their starts took `spent` evaluations (B,)."""
    shape = (len(spent), len(chunk.lambdas), len(chunk.truth))
    parts = zip(*(t.unflatten(0, shape) for t in (result.x, result.D, result.P, result.evals)), strict=True)
    status = iter(result.status)
    return [
        Outcome(x, D, P, evals + extra, [[next(status) for _ in chunk.truth] for _ in chunk.lambdas])
        for (x, D, P, evals), extra in zip(parts, spent, strict=True)
    ]


def _aipo(solver: Amortized) -> Solve:
    """Algorithm 2 from the maximum-likelihood start, whose evaluations are counted too."""

    def solve(chunk: Chunk, methods: Sequence[Method]) -> list[Outcome]:
        watch = chunk.watch([m.name for m in methods], lambda state: state.lam / state.lam_max, [chunk.mle.evals])
        result = solver.solve(chunk.repeated_problem(), chunk.repeated_lam(), chunk.repeat(chunk.mle.x), callback=watch)
        return _unfold(chunk, result, [chunk.mle.evals])

    return solve


def _adam(solver: FixedLambda) -> Solve:
    """Adam from the start of each method, with the evaluations that `BUDGET_METHOD` took."""

    def solve(chunk: Chunk, methods: Sequence[Method]) -> list[Outcome]:
        starts, spent = zip(*(chunk.start(method.start) for method in methods), strict=True)
        budget = chunk.evals[BUDGET_METHOD].to(chunk.truth.device)
        # An image on which Algorithm 2 failed at once still gets a step.
        steps = torch.cat([(budget - evals - 1).clamp(min=1).flatten() for evals in spent])
        limited = replace(solver, steps=tuple(steps.tolist()))
        watch = chunk.watch([m.name for m in methods], lambda state: state.t / state.steps, spent)
        x0 = torch.cat([chunk.repeat(x) for x in starts])
        result = limited.solve(
            chunk.repeated_problem(len(methods)), chunk.repeated_lam(len(methods)), x0, callback=watch
        )
        return _unfold(chunk, result, spent)

    return solve


def _path(evals: int) -> Solve:
    """All lam along one path. The evaluations of a lam are all that were spent until it was done."""

    def solve(chunk: Chunk, methods: Sequence[Method]) -> list[Outcome]:
        path = follow_path(chunk.problem, chunk.lambdas, evals=evals, callback=_report_evals(chunk, evals))
        x, D, P, spent = (_padded(getattr(path, name), len(chunk.lambdas)) for name in ("x", "D", "P", "evals"))
        return [Outcome(x, D, P, spent, [path.status] * len(chunk.lambdas))]

    return solve


def _report_evals(chunk: Chunk, budget: float) -> Callable[[State], None]:
    """A callback that reports how much of a budget is spent."""
    return lambda state: chunk.progress(state.evals.double().mean().item() / budget)


def _padded(values: Tensor, count: int) -> Tensor:
    """(B, L', ...) -> (L, B, ...): NaN at the lam that no image reached."""
    missing = values.new_full((len(values), count - values.shape[1], *values.shape[2:]), torch.nan)
    return torch.cat([values, missing], dim=1).transpose(0, 1)


def _lbfgs(chunk: Chunk, methods: Sequence[Method]) -> list[Outcome]:
    """Plain L-BFGS from the maximum-likelihood start, at each lam with the mean budget there."""
    spent = chunk.mle.evals
    left = (chunk.evals[BUDGET_METHOD].to(spent.device) - spent).double().mean(1).long().clamp(min=1)
    evals = left.repeat_interleave(len(chunk.truth)).tolist()
    solver = LBFGS(tuple(evals), tolerance=0.0, model="none")
    report = _report_evals(chunk, left.double().mean().item())
    result = solver.solve(chunk.repeated_problem(), chunk.repeated_lam(), chunk.repeat(chunk.mle.x), callback=report)
    return _unfold(chunk, result, [spent])


def _settings(solver: Amortized) -> str:
    """The options by which rows are recognized. `first_round` came later: rows that do not name it have its default."""
    return repr(solver).replace(", first_round='at zero'", "")


AIPO, PRINTED = Amortized(), Amortized(decay="round")
CONSTANT, DECAYED = FixedLambda(), FixedLambda.decayed(alpha=TUNED_ALPHA)
BUDGET_METHOD = "aipo_printed"  # the one whose evaluations the baselines get
PATHS = ("path", "path_long")
_constant, _decayed = _adam(CONSTANT), _adam(DECAYED)


def _limited(name: str, title: str, solve: Solve, start: str, settings: str) -> Method:
    """A method that gets the evaluations of `BUDGET_METHOD`, and so depends on its settings too."""
    settings = f"{start}, {settings}; budget: {_settings(PRINTED)}"
    return Method(name, title, solve, settings, start, needs=(BUDGET_METHOD,))


METHODS = {
    method.name: method
    for method in (
        Method("aipo", "AIPO", _aipo(AIPO), _settings(AIPO)),
        Method(BUDGET_METHOD, "AIPO, steps as printed", _aipo(PRINTED), _settings(PRINTED)),
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
