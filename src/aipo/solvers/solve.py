"""How people call a solver: with a lam, or without one where the solver needs none.

`states` hands out the states of a solve one by one; `solve` is the loop over them that keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from aipo.problem.map_problem import MapProblem
from aipo.solvers.base import R, S, Solver
from aipo.solvers.checkpoint import Checkpoint
from aipo.solvers.driver import run
from aipo.solvers.progress import ProgressBar
from aipo.solvers.result import Result

__all__ = ["AtLambda", "WithoutLambda"]


class AtLambda(Solver[S, Result]):
    """A solver that is told lam: a number, or one per image."""

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> S:
        """The first state."""
        raise NotImplementedError

    def solve(
        self,
        problem: MapProblem,
        lam: float | Tensor,
        x0: Tensor | None = None,
        *,
        progress: bool = False,
        callback: Callable[[S], None] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
    ) -> Result:
        """Reconstruct every image of the problem at `lam`.

        Arguments:
            lam: the prior's weight, >= 0: a number, or one per image (B,).
            x0: where to start (B, C, H, W); each solver has its own default.
            progress: show a bar on the terminal.
            callback: called with the state every few steps, e.g. to plot, or to stop by raising.
            checkpoint: a .safetensors file. If it exists the solve continues from it, bit for bit as if it had
                never stopped (same machine and versions). It is rewritten every `checkpoint_every` steps and at
                the end.
        """
        states = self.states(
            problem, lam, x0, progress=progress, checkpoint=checkpoint, checkpoint_every=checkpoint_every
        )
        return _last(self, problem, states, progress, callback)

    def states(
        self,
        problem: MapProblem,
        lam: float | Tensor,
        x0: Tensor | None = None,
        *,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
    ) -> Iterator[S]:
        """The states of a solve: the first, then one after every step (on a GPU after every tenth), up to the last.

        Work is done only when the next state is asked for. The arguments are those of `solve`; `progress` shows a bar
        while a start is looked for.
        """
        weights = problem.lam_tensor(lam)
        file = _checkpoint(self, problem, checkpoint, lam=str(weights.tolist()))
        begin = _beginning(self, problem, x0, progress, lambda start: self.init(problem, weights, start))
        return run(self, problem, begin, file, checkpoint_every)


class WithoutLambda(Solver[S, R]):
    """A solver that is given no lam: it follows a grid of its own, or needs none."""

    def init(self, problem: MapProblem, x0: Tensor) -> S:
        """The first state."""
        raise NotImplementedError

    def solve(
        self,
        problem: MapProblem,
        *,
        x0: Tensor | None = None,
        progress: bool = False,
        callback: Callable[[S], None] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
    ) -> R:
        """Solve the problem for every image; the arguments are those of `AtLambda.solve`."""
        states = self.states(
            problem, x0=x0, progress=progress, checkpoint=checkpoint, checkpoint_every=checkpoint_every
        )
        return _last(self, problem, states, progress, callback)

    def states(
        self,
        problem: MapProblem,
        *,
        x0: Tensor | None = None,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
    ) -> Iterator[S]:
        """The states of a solve, see `AtLambda.states`."""
        file = _checkpoint(self, problem, checkpoint)
        begin = _beginning(self, problem, x0, progress, lambda start: self.init(problem, start))
        return run(self, problem, begin, file, checkpoint_every)


def _beginning(
    solver: Solver[S, R], problem: MapProblem, x0: Tensor | None, progress: bool, init: Callable[[Tensor], S]
) -> Callable[[], S]:
    """What makes the first state; a default start is only looked for when it is called."""

    def begin() -> S:
        start, spent = solver.start(problem, progress) if x0 is None else (x0, 0)
        state = init(start)
        return replace(state, evals=state.evals + spent)

    return begin


def _checkpoint(solver: Solver[S, R], problem: MapProblem, path: str | Path | None, **more: str) -> Checkpoint | None:
    if path is None:
        return None
    identity = {"solver": repr(solver), "problem": problem.fingerprint(), "precision": problem.precision, **more}
    return Checkpoint(Path(path), identity)


def _last(
    solver: Solver[S, R],
    problem: MapProblem,
    states: Iterator[S],
    progress: bool,
    callback: Callable[[S], None] | None,
) -> R:
    """The outcome of the last state; the others are shown and reported."""
    with ProgressBar(progress, solver.budget) as bar:
        for state in states:
            bar.update(state)
            if callback:
                callback(state)
    return solver.result(problem.exactly(), state)
