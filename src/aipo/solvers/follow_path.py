"""All solutions x*(lam) along a grid of lam for about the price of one: L-BFGS, each lam started at the last solution.

What happens at one lam is in `lbfgs`; here is the schedule: how long to stay, and where to go next. Each
solution is a good start for the next one, and so are the stored steps, which are re-weighted exactly when lam changes.

Every image has its own schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aipo.batch import constant, some
from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import Status, exact_share
from aipo.solvers.inverse_hessian import TINY, HessianModel
from aipo.solvers.lbfgs import QuasiNewton, QuasiNewtonState
from aipo.solvers.solution_path import SolutionPath, automatic_grid, lowest_lam
from aipo.solvers.solve import WithoutLambda

__all__ = ["LAMBDAS", "FollowPath", "PathState", "follow_path"]

LAMBDAS = (0.3, 0.5, 1.0, 1.5, 2.0)  # the paper's
STRIDE = 0.01


@dataclass(frozen=True)
class PathState(QuasiNewtonState):
    """A search at the lam where each image is, and what it has found at those before.

    Attributes:
        index: which lam of the grid each image is at (B,).
        last: which one it was at before (B,).
        spent: evaluations spent at that lam (B,); `concave` is counted anew there as well.
        path_x, path_values: what is known at each lam so far, (B, L, ...).
    """

    index: Tensor
    last: Tensor
    spent: Tensor
    path_x: Tensor
    path_values: Tensor

    @property
    def visited(self) -> Tensor:
        """Which lam each image has been solved at (B, L)."""
        return ~self.path_values[..., 0].isnan()


# What path_values holds for each image and lam.
COLUMNS = ("D", "P", "gradient_norm", "gap", "evals", "concave")


@dataclass(frozen=True)
class FollowPath(WithoutLambda[PathState, SolutionPath]):
    """Preconditioned L-BFGS along a grid of lam, from the smallest to the largest.

    Arguments:
        lambdas: the grid, ascending, > 0.
        evals: gradient evaluations per image for the whole path.
        stride: None visits every lam of the grid. Otherwise an image begins where its own `automatic_grid` would, and
            skips lam on the way to which it should move by less than this, in root mean square per pixel: short steps
            where x moves most, each image with its own.
        first_share: share of them for the first lam. The others share the rest in proportion to the steps of log lam,
            and what one does not need goes to those after it.
        tolerance: go on to the next lam once the estimated gap to the minimum is below this, in nats.
        memory: steps that L-BFGS keeps.
        model: of the Hessian, to begin with: "local" learns where in the image L bends how much, "global" has the
            prior's mean curvature and the operator, "none" is plain L-BFGS (see `solvers.inverse_hessian`).

    It starts at x0, by default `initial.gaussian`.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> result = aipo.FollowPath((1.0,), evals=20).solve(problem).at(1.0)
        >>> round(result.x.mean().item(), 3), result.status
        (0.75, ['done'])
    """

    state_type = PathState
    capturable = True

    lambdas: tuple[float, ...] = LAMBDAS
    evals: int = 120
    stride: float | None = None
    first_share: float = 0.25
    tolerance: float = 0.1
    memory: int = 40
    model: HessianModel = "local"

    @classmethod
    def automatic(cls, problem: MapProblem, evals: int = 120) -> FollowPath:
        """For a grid that suits the problem, of which each image takes what it needs: `automatic_grid`."""
        return cls(tuple(automatic_grid(problem)), evals, STRIDE)

    def __post_init__(self) -> None:
        grid = self.lambdas
        if not grid or not all(math.isfinite(v) and v > 0 for v in grid) or sorted(set(grid)) != list(grid):
            raise InputError(f"lambdas must be positive, finite and ascending, got {list(grid)}")
        if self.evals < len(grid) or not 0 < self.first_share < 1 or not self.tolerance >= 0:
            raise InputError(
                f"need evals >= {len(grid)} (one per lam), 0 < first_share < 1 and tolerance >= 0, got "
                f"{self.evals}, {self.first_share} and {self.tolerance}"
            )
        if self.stride is not None and not self.stride > 0:
            raise InputError(f"stride must be None or > 0, got {self.stride}")
        _ = self.search  # refuses what it cannot use

    @property
    def search(self) -> QuasiNewton:
        """What happens at one lam."""
        return QuasiNewton(self.memory, self.model)

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return initial.gaussian(problem), 0

    def init(self, problem: MapProblem, x0: Tensor) -> PathState:
        problem.check_start(x0)
        batch, grid = len(x0), len(self.lambdas)
        zero = torch.zeros(batch, dtype=torch.int64, device=x0.device)
        first = zero if self.stride is None else self._first(problem)
        return PathState.fresh(
            x0,
            self.memory,
            index=first,
            last=first,
            spent=zero,
            path_x=x0.new_full((batch, grid, *x0.shape[1:]), torch.nan),
            path_values=x0.new_full((batch, grid, len(COLUMNS)), torch.nan),
        )

    def step(self, problem: MapProblem, state: PathState) -> PathState:
        """One evaluation at the trial point, and where this ends a lam, on to the next one."""
        lam = self.lam(state)
        state = replace(state, spent=state.spent + state.running)
        state, accepted, stalled = self.search.step(problem, state, lam)
        arrived = accepted & (state.gap < self.tolerance)
        over = state.running & (arrived | (state.spent >= self._allowed(state))) | stalled
        if some(over):
            state = self._record(state, over)
            state = self._advance(state, over)
            state = self.search.turn(problem, state, self.lam(state), over)
        return self.search.aim(state)

    def lam(self, state: PathState) -> Tensor:
        """Where each image is (B,)."""
        return self._grid(state.D)[state.index]

    def _grid(self, like: Tensor) -> Tensor:
        return constant(self.lambdas, like.dtype, like.device)

    def _first(self, problem: MapProblem) -> Tensor:
        """Where each image begins, as an index (B,): the grid of a batch may start lower, for the sake of another."""
        lowest = lowest_lam(problem)
        return torch.searchsorted(self._grid(lowest), lowest).clamp(max=len(self.lambdas) - 1)

    def _allowed(self, state: PathState) -> Tensor:
        """How many evaluations an image may spend at its lam: its share of what is left."""
        left = (self.evals - (state.evals - state.spent)).to(state.D.dtype)
        later = len(self.lambdas) - 1 - state.index
        logs = self._grid(state.D).log()
        share = (logs[state.index] - logs[state.last]) / (logs[-1] - logs[state.last])
        share = torch.where(state.index == state.last, self.first_share, share)
        share = torch.where(later == 0, 1.0, share)
        # At least one, and one is left for each lam after this.
        return torch.minimum((share * left).round(), left - later).clamp(min=1)

    def _record(self, state: PathState, which: Tensor) -> PathState:
        lam = self.lam(state)
        counts = (state.evals.to(lam.dtype), state.concave.to(lam.dtype))
        columns = [state.D, state.P, state.gradient(lam).norm(dim=1), state.gap, *counts]
        here = which[:, None] & (torch.arange(len(self.lambdas), device=lam.device) == state.index[:, None])
        values = torch.stack(columns, dim=1)[:, None]
        return replace(
            state,
            path_x=torch.where(here[..., None, None, None], state.x_seen[:, None], state.path_x),
            path_values=torch.where(here[..., None], values, state.path_values),
        )

    def _advance(self, state: PathState, which: Tensor) -> PathState:
        end = state.index == len(self.lambdas) - 1
        state = state.stop(which & end, Status.DONE)
        on = which & ~end
        return replace(
            state,
            index=torch.where(on, self._next(state), state.index),
            last=torch.where(on, state.index, state.last),
            spent=state.spent.masked_fill(on, 0),
            concave=state.concave.masked_fill(on, 0),
        )

    def _next(self, state: PathState) -> Tensor:
        """The lam to go to, as an index (B,)."""
        if self.stride is None:
            return state.index + 1
        logs, rows = self._grid(state.D).log(), torch.arange(len(state.x), device=state.x.device)
        step = logs[state.index] - logs[state.last]
        moved = (state.x_seen - state.path_x[rows, state.last]).flatten(1).square().mean(1).sqrt()
        # As fast as it moved last, and at most twice as far. Of the first step nothing is known: it is the shortest.
        reach = torch.minimum(2 * step, self.stride * step / moved.clamp(min=TINY)).nan_to_num()
        found = torch.searchsorted(logs, logs[state.index] + reach + 1e-6, right=True) - 1
        return torch.maximum(found, state.index + 1).clamp(max=len(logs) - 1)

    def finishing(self, state: PathState) -> Tensor:
        return self.evals - state.evals <= exact_share(self.evals)

    def restate(self, problem: MapProblem, state: PathState) -> PathState:
        state, values = super().restate(problem, state), state.path_values.clone()
        for i, lam in enumerate(self.lambdas):
            # An image has NaN at a lam that it skipped, and so has the evaluation.
            evaluation = problem.evaluate(state.path_x[:, i])
            norm = evaluation.gradient(values.new_full((len(values),), lam)).flatten(1).norm(dim=1)
            values[:, i, :3] = torch.stack([evaluation.D, evaluation.P, norm], dim=1)
        return replace(state, path_values=values)

    def result(self, problem: MapProblem, state: PathState) -> SolutionPath:
        # Each image's own lam, in order, without those it skipped; an image that failed has NaN instead.
        visited = state.visited
        order = (~visited).to(torch.int8).argsort(dim=1, stable=True)[:, : max(1, int(visited.sum(1).max()))]
        rows = torch.arange(len(order), device=order.device)[:, None]
        lam = torch.where(visited, self._grid(state.D), torch.nan)[rows, order]
        columns = {name: state.path_values[rows, order, i] for i, name in enumerate(COLUMNS)}
        return SolutionPath(lam=lam, x=state.path_x[rows, order], status=state.reasons, **columns)

    def budget(self, state: PathState) -> int:
        return self.evals


def follow_path(
    problem: MapProblem,
    lambdas: Sequence[float] | None = None,
    *,
    evals: int = 120,
    x0: Tensor | None = None,
    progress: bool = False,
    callback: Callable[[PathState], None] | None = None,
    checkpoint: str | Path | None = None,
) -> SolutionPath:
    """Solve at every lam of a grid, each started at the solution before it.

    Arguments:
        lambdas: the grid, ascending. By default each image gets its own out of `automatic_grid`, fine where x moves
            most.
        evals: gradient evaluations per image for all of it.
        x0: where to start (B, C, H, W); by default the solution under a Gaussian, `initial.gaussian`.
        checkpoint: a .safetensors file from which a broken run goes on, see `Amortized.solve`.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> path = aipo.follow_path(problem, [0.5, 1.0, 2.0])
        >>> [round(value, 3) for value in path.x.mean(dim=(2, 3, 4))[0].tolist()]  # (1 + lam / 2) / (1 + lam)
        [0.833, 0.75, 0.667]
        >>> path.at(2.0).status
        ['done']
    """
    if lambdas is None:
        solver = FollowPath.automatic(problem, evals)
    else:
        solver = FollowPath(tuple(float(v) for v in lambdas), evals)
    return solver.solve(problem, x0=x0, progress=progress, callback=callback, checkpoint=checkpoint)
