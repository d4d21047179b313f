"""All solutions x*(lam) along a grid of lam for about the price of one: quasi-Newton, each started at the last.

Each solution is a good start for the next, and L-BFGS begins with a good model of the Hessian,

    H(lam) = W (J^T J / sigma^2 + lam S) W.

S is the mean curvature of the prior (`Surrogate`), diagonal in frequency; the bracket is solved in closed form or by
conjugate gradients at almost no cost beside a gradient of the flow. W is diagonal in space. A flow bends far more
where an image is flat than where it is textured, and the steps taken so far show where: W^2 is the local ratio of the
curvature they met to that of the bracket. Because L is linear in lam, the stored steps are kept with the changes of
both gradients and re-weighted exactly when lam changes.

Every image has its own line search, history and schedule. One step of the iteration is one gradient evaluation, of a
trial point that is then accepted or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import ClassVar, Literal

import torch
from torch import Tensor

from aipo import initial
from aipo.batch import constant, per_image, some
from aipo.discrepancy import expected_chi2
from aipo.engine import Evaluation
from aipo.errors import InputError
from aipo.iterate import Result, Solver, State, Status, exact_share
from aipo.path import Path
from aipo.problem import MapProblem
from aipo.solvers.quasi_newton import TINY, local_curvature, newest, put, two_loop

__all__ = ["FollowPath", "automatic_grid", "follow_path"]

ARMIJO = 1e-4
# A step this short means that the stored steps contradict each other, as they do where L is not convex: forget them.
DOUBTFUL_STEP = 1e-2
SHORTEST_STEP = 1e-6
LAMBDAS = (0.3, 0.5, 1.0, 1.5, 2.0)  # the paper's
STRIDE = 0.01
STEPS_PER_DECADE, LAST_STEP = 12, 6  # of the automatic grid: lam = 10^(step / 12), up to 3.2


@dataclass(frozen=True)
class PathState(State):
    """x is the trial point, x_seen the iterate; D, P, grad_D, grad_P belong to the iterate.

    Attributes:
        index: which lam of the grid each image is at (B,).
        last: which one it was at before (B,).
        spent: evaluations spent at that lam (B,).
        direction, slope, step: the line search from the iterate; slope is the derivative of L along the direction.
        S, Y_D, Y_P: the last steps of the iterate and the changes of both gradients, (B, memory, n).
        SS: the prior's mean curvature times those steps, likewise.
        pairs: how many pairs an image has stored so far (B,); the newest is at (pairs - 1) % memory.
        concave: at how many steps the curvature of L was not positive, at this lam (B,).
        path_*: what is known at each lam so far, (B, L, ...).
    """

    index: Tensor
    last: Tensor
    spent: Tensor
    grad_D: Tensor
    grad_P: Tensor
    direction: Tensor
    slope: Tensor
    step: Tensor
    S: Tensor
    SS: Tensor
    Y_D: Tensor
    Y_P: Tensor
    pairs: Tensor
    concave: Tensor
    path_x: Tensor
    path_values: Tensor


# What path_values holds for each image and lam.
COLUMNS = ("D", "P", "gradient_norm", "gap", "evals", "concave")


@dataclass(frozen=True)
class FollowPath(Solver[PathState]):
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
        memory: pairs that L-BFGS keeps.
        model: of the Hessian: "local" is all of the above, "global" has W = 1, "none" is plain L-BFGS.

    It starts at x0, by default `initial.gaussian`.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> result = aipo.FollowPath((1.0,), evals=20).solve(problem, lam=1.0).at(1.0)
        >>> round(result.x.mean().item(), 3), result.status
        (0.75, ['done'])
    """

    state_type: ClassVar = PathState
    capturable: ClassVar = True

    lambdas: tuple[float, ...] = LAMBDAS
    evals: int = 120
    stride: float | None = None
    first_share: float = 0.25
    tolerance: float = 0.1
    memory: int = 40
    model: Literal["local", "global", "none"] = "local"

    def __post_init__(self) -> None:
        grid = self.lambdas
        if not grid or not all(math.isfinite(v) and v > 0 for v in grid) or sorted(set(grid)) != list(grid):
            raise InputError(f"lambdas must be positive, finite and ascending, got {list(grid)}")
        if self.evals < len(grid) or not 0 < self.first_share < 1 or self.memory < 1 or self.tolerance < 0:
            raise InputError(
                f"need evals >= {len(grid)} (one per lam), 0 < first_share < 1, memory >= 1 and tolerance >= 0, got "
                f"{self.evals}, {self.first_share}, {self.memory} and {self.tolerance}"
            )
        if self.stride is not None and not self.stride > 0:
            raise InputError(f"stride must be None or > 0, got {self.stride}")

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        return initial.gaussian(problem), 0

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> PathState:
        problem.operator.check_image(x0)
        batch, grid = len(x0), len(self.lambdas)
        zero = torch.zeros(batch, dtype=torch.int64, device=x0.device)
        first = zero if self.stride is None else self._first(problem)
        history = x0.new_zeros(batch, self.memory, x0[0].numel())
        return PathState.start(
            x0,
            index=first,
            last=first,
            spent=zero,
            grad_D=torch.zeros_like(x0),
            grad_P=torch.zeros_like(x0),
            direction=torch.zeros_like(x0),
            slope=x0.new_zeros(batch),
            step=x0.new_ones(batch),
            S=history,
            SS=history,
            Y_D=history,
            Y_P=history,
            pairs=zero,
            concave=zero,
            path_x=x0.new_full((batch, grid, *x0.shape[1:]), torch.nan),
            path_values=x0.new_full((batch, grid, len(COLUMNS)), torch.nan),
        )

    def step(self, problem: MapProblem, state: PathState) -> PathState:
        evaluation = problem.evaluate(state.x)
        state = replace(state, evals=state.evals + state.running, spent=state.spent + state.running)
        state, accepted = self._judge(problem, state, evaluation)
        failed = state.running & ~accepted
        doubtful = failed & (state.step < DOUBTFUL_STEP) & (state.pairs > 0)
        # A search that stalls without a history has found what can be found at this lam in this precision.
        stalled = failed & (state.step < SHORTEST_STEP) & ~doubtful
        if some(doubtful):
            state = self._forget(state, doubtful)
        # The direction is needed anew where the iterate moved or lam will change.
        state = self._turn(problem, state, accepted | doubtful)
        over = state.running & (accepted & (self._gap(state) < self.tolerance) | (state.spent >= self._allowed(state)))
        over = over | stalled
        if some(over):
            state = self._record(state, over)
            state = self._advance(state, over)
            state = self._turn(problem, state, over)
        moving = per_image(state.running, state.x)
        trial = state.x_seen + per_image(state.step, state.x) * state.direction
        return replace(state, x=torch.where(moving, trial, state.x))

    def _first(self, problem: MapProblem) -> Tensor:
        """Where each image begins, as an index (B,): the grid of a batch may start lower, for the sake of another."""
        # Half a step lower: the grid is rounded.
        lowest = 10 ** ((_first_steps(problem) - 0.5) / STEPS_PER_DECADE)
        return torch.searchsorted(self._grid(lowest), lowest).clamp(max=len(self.lambdas) - 1)

    def _grid(self, like: Tensor) -> Tensor:
        return constant(self.lambdas, like.dtype, like.device)

    def _lam(self, state: PathState) -> Tensor:
        return self._grid(state.D)[state.index]

    def _gradient(self, state: PathState, lam: Tensor) -> Tensor:
        """Of L at the iterate (B, n)."""
        return (state.grad_D + per_image(lam, state.x) * state.grad_P).flatten(1)

    def _judge(self, problem: MapProblem, state: PathState, evaluation: Evaluation) -> tuple[PathState, Tensor]:
        """Accept the trial points that lower L enough; the first evaluation of all is accepted if it is finite."""
        lam = self._lam(state)
        first = state.D.isnan()
        finite = evaluation.finite
        L = state.D + lam * state.P
        # Near the minimum the decrease drowns in the rounding of two large terms; a step must not fail for that.
        rounding = 2 * torch.finfo(L.dtype).eps * (state.D.abs() + lam * state.P.abs())
        enough = evaluation.loss(lam) <= L + ARMIJO * state.step * state.slope + rounding + lam * problem.uncertainty
        accepted = state.running & finite & (first | enough)
        state = self._remember(problem, state, evaluation, accepted & ~first, lam)

        def take(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(per_image(accepted, old), new, old)

        # Where the trial failed: the minimum of the parabola through what is known, within bounds.
        rise = evaluation.loss(lam) - L - state.step * state.slope
        parabola = (-state.slope * state.step.square() / (2 * rise)).nan_to_num(0.0)
        shorter = torch.where(finite, torch.clamp(parabola, 0.1 * state.step, 0.5 * state.step), 0.1 * state.step)
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

    def _remember(
        self, problem: MapProblem, state: PathState, evaluation: Evaluation, moved: Tensor, lam: Tensor
    ) -> PathState:
        """Store the step and the changes of both gradients, where the curvature along the step is positive."""
        s = (state.x - state.x_seen).flatten(1)
        y_D = (evaluation.grad_D - state.grad_D).flatten(1)
        y_P = (evaluation.grad_P - state.grad_P).flatten(1)
        y = y_D + lam[:, None] * y_P
        good = moved & ((s * y).sum(1) > 1e-8 * s.norm(dim=1) * y.norm(dim=1))

        def stored(history: Tensor, new: Tensor) -> Tensor:
            return put(history, state.pairs, new, good)

        return replace(
            state,
            S=stored(state.S, s),
            SS=stored(state.SS, problem.prior.surrogate.curvature.apply(s.view_as(state.x)).flatten(1)),
            Y_D=stored(state.Y_D, y_D),
            Y_P=stored(state.Y_P, y_P),
            pairs=state.pairs + good,
            concave=state.concave + (moved & ((s * y).sum(1) <= 0)),
        )

    def _forget(self, state: PathState, which: Tensor) -> PathState:
        rows = which[:, None, None]
        return replace(
            state,
            S=state.S.masked_fill(rows, 0),
            SS=state.SS.masked_fill(rows, 0),
            Y_D=state.Y_D.masked_fill(rows, 0),
            Y_P=state.Y_P.masked_fill(rows, 0),
            pairs=state.pairs.masked_fill(which, 0),
        )

    def _turn(self, problem: MapProblem, state: PathState, which: Tensor) -> PathState:
        """A new direction for some images: minus the inverse Hessian, as far as it is known, times the gradient."""
        lam = self._lam(state)
        gradient = self._gradient(state, lam)
        Y = state.Y_D + lam[:, None, None] * state.Y_P
        r = two_loop(state.S, Y, state.pairs, gradient, lambda q: self._inverse_model(problem, state, Y, q, lam))
        # Inexact solves can in principle spoil the descent; the gradient itself never does.
        downhill = (gradient * r).sum(1) > 0
        r = torch.where(downhill[:, None], r, 0.1 * gradient / gradient.abs().amax(1, keepdim=True).clamp(min=TINY))
        slope = -(gradient * r).sum(1)
        here = per_image(which, state.x)
        return replace(
            state,
            direction=torch.where(here, -r.view_as(state.x), state.direction),
            slope=torch.where(which, slope, state.slope),
            step=torch.where(which, self._first_step(r), state.step),
        )

    def _inverse_model(self, problem: MapProblem, state: PathState, Y: Tensor, q: Tensor, lam: Tensor) -> Tensor:
        """The inverse of the model Hessian times q, scaled to the curvature along the newest step."""
        s, y = newest(state.S, state.pairs), newest(Y, state.pairs)
        known = (state.pairs > 0) & ((s * y).sum(1) > 0)
        if self.model == "none":
            scale = (s * y).sum(1) / y.square().sum(1).clamp(min=TINY)
            fallback = 0.1 / q.abs().amax(1).clamp(min=TINY)
            return torch.where(known, scale, fallback)[:, None] * q
        precision = 1 / problem.noise.variance(problem.y)
        spectrum = problem.prior.surrogate.curvature
        W = torch.ones_like(state.x[:, :1])
        if self.model == "local":
            modelled = state.Y_D + lam[:, None, None] * state.SS
            W = local_curvature(Y, modelled, state.pairs, state.x.shape[1:])
        # Both right-hand sides at once: the operator may have large matrices to read.
        W = W.repeat(2, 1, 1, 1)
        b = torch.cat([q, y]).view(-1, *state.x.shape[1:]) / W
        twice = (precision.repeat(2), lam.repeat(2), spectrum, state.x_seen.repeat(2, 1, 1, 1))
        inverse_q, inverse_y = (problem.operator.solve_regularised(b, *twice) / W).flatten(1).chunk(2)
        scale = torch.where(known, (s * y).sum(1) / (y * inverse_y).sum(1).clamp(min=TINY), 1)
        return scale[:, None] * inverse_q

    def _first_step(self, r: Tensor) -> Tensor:
        """1, but no pixel may move by more than half its range at once."""
        return (0.5 / r.abs().amax(1).clamp(min=TINY)).clamp(max=1.0)

    def _gap(self, state: PathState) -> Tensor:
        """How far L is above its minimum, if the quasi-Newton model is right (B,)."""
        return -state.slope / 2

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
        lam = self._lam(state)
        gradient = self._gradient(state, lam)
        counts = (state.evals.to(lam.dtype), state.concave.to(lam.dtype))
        columns = [state.D, state.P, gradient.norm(dim=1), self._gap(state), *counts]
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

    def result(self, problem: MapProblem, state: PathState) -> Path:  # type: ignore[override]
        # Each image's own lam, in order, without those it skipped; an image that failed has NaN instead.
        visited = ~state.path_values[..., 0].isnan()
        order = (~visited).to(torch.int8).argsort(dim=1, stable=True)[:, : max(1, int(visited.sum(1).max()))]
        rows = torch.arange(len(order), device=order.device)[:, None]
        lam = torch.where(visited, self._grid(state.D), torch.nan)[rows, order]
        columns = {name: state.path_values[rows, order, i] for i, name in enumerate(COLUMNS)}
        status = [Status(code).text for code in state.status.tolist()]
        return Path(lam=lam, x=state.path_x[rows, order], status=status, **columns)

    def budget(self, state: PathState) -> int:
        return self.evals


def automatic_grid(problem: MapProblem) -> list[float]:
    """Twelve lam per decade, up to 3.2, where detail is lost, and from where a restoration still follows the noise.

    Around the best restoration chi^2 was 0.5 to about 4 lam in our measurements, so its lam is hardly ever below a
    quarter of the expected chi^2. A path that starts much lower spends its evaluations on fitting noise.

    A batch has one grid, which starts with the image that has to start lowest.
    """
    first = int(_first_steps(problem).min())
    return [float(f"{10 ** (i / STEPS_PER_DECADE):.4g}") for i in range(first, LAST_STEP + 1)]


def _first_steps(problem: MapProblem) -> Tensor:
    """Where the automatic grid of each image alone starts, in steps from lam = 1 (B,)."""
    return (STEPS_PER_DECADE * (0.25 * expected_chi2(problem).double()).log10()).round()


def follow_path(
    problem: MapProblem,
    lambdas: Sequence[float] | None = None,
    *,
    evals: int = 120,
    x0: Tensor | None = None,
    progress: bool = False,
    callback: Callable[[PathState], None] | None = None,
    checkpoint: str | FilePath | None = None,
) -> Path:
    """Solve at every lam of a grid, each started at the solution before it.

    Arguments:
        lambdas: the grid, ascending. By default each image gets its own out of `automatic_grid`, fine where x moves
            most.
        evals: gradient evaluations per image for all of it.
        x0: where to start (B, C, H, W); by default the solution under a Gaussian, `initial.gaussian`.
        checkpoint: a .safetensors file from which a broken run goes on, see `Solver.solve`.

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
        solver = FollowPath(tuple(automatic_grid(problem)), evals, STRIDE)
    else:
        solver = FollowPath(tuple(float(v) for v in lambdas), evals)
    result: Result | Path = solver.solve(
        problem, solver.lambdas[-1], x0, progress=progress, callback=callback, checkpoint=checkpoint
    )
    assert isinstance(result, Path)
    return result
