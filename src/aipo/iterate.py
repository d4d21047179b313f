"""How any solver runs: an explicit per-image state, one driver, one kind of result.

A solver is a frozen dataclass of options with four methods and no memory of its own:

    start(problem) -> x0, evaluations  where to begin if the user does not say
    init(problem, lam, x0) -> state    the first state
    step(problem, state) -> state      one gradient evaluation for every running image
    result(problem, state) -> result   what to hand back

and an image is done when its status in the state says so. Because the state is plain tensors, any solve can be saved,
resumed and inspected, and an image that finishes or fails never disturbs the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from aipo.batch import CHECK_EVERY, per_image
from aipo.engine import Evaluation
from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.kernels.graphs import Graph
from aipo.problem import MapProblem

__all__ = ["Result", "Solver", "State", "Status", "drive", "exact_share", "make_result"]

# Of a solve in fast precision, the share that is left for exact steps at its end, and how many are enough of them.
FINISH, ENOUGH = 0.1, 40
SMALL_BATCH = 16  # images that a GPU evaluates in hardly more time than one


class Status(IntEnum):
    """Why an image stopped (its name, in lower case and with spaces, is what people read)."""

    RUNNING = 0
    DONE = 1
    NON_FINITE = 2
    MAX_EVALUATIONS = 3
    ASSUMPTION_VIOLATED = 4

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class State:
    """What every solver carries, one row per image.

    x is where the next evaluation happens; x_seen is the last point with finite values, and D, P belong to it.
    """

    x: Tensor
    x_seen: Tensor
    D: Tensor
    P: Tensor
    evals: Tensor
    status: Tensor

    @classmethod
    def start(cls, x: Tensor, evals: int = 0, **extra: Tensor) -> Self:
        """All images running at x; `evals` is what the solver has spent to get ready."""
        nan = x.new_full((len(x),), torch.nan)
        zero = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        x = x.detach()
        return cls(x, x, nan, nan, zero + evals, zero, **extra)

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING

    def observe(self, problem: MapProblem) -> tuple[Self, Evaluation]:
        """Evaluate at x. An image that turns non-finite goes back to its last finite point and stays there."""
        evaluation = problem.evaluate(self.x)
        good = self.running & evaluation.finite
        bad = self.running & ~evaluation.finite
        x_seen = torch.where(per_image(good, self.x), self.x, self.x_seen)
        state = replace(
            self,
            x=torch.where(per_image(bad, self.x), x_seen, self.x),
            x_seen=x_seen,
            D=torch.where(good, evaluation.D, self.D),
            P=torch.where(good, evaluation.P, self.P),
            evals=self.evals + self.running,
            status=self.status.masked_fill(bad, Status.NON_FINITE),
        )
        return state, evaluation

    def take(self, rows: Tensor) -> Self:
        """The state of some images alone."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def put(self, rows: Tensor, part: Self) -> Self:
        """This state with some images replaced: the inverse of `take`."""
        return replace(
            self, **{f.name: getattr(self, f.name).index_copy(0, rows, getattr(part, f.name)) for f in fields(self)}
        )

    def stop(self, which: Tensor, why: Status) -> Self:
        """Mark the running images among `which` as finished."""
        return replace(self, status=self.status.masked_fill(which & self.running, why))


@dataclass(frozen=True)
class Result:
    """What a solve returns, one entry per image.

    Attributes:
        x: reconstructions (B, C, H, W); not clipped to [0, 1].
        lam: the weight solved for (B,).
        loss, D, P: L = D + lam * P and its terms at x (B,), in nats.
        evals: gradient evaluations spent (B,).
        status: one reason per image: "done", "non finite", "max evaluations", "assumption violated".
        trajectory: solver-specific history, by name; empty where a solver keeps none.
        info: solver-specific facts, such as the constants of `Certified`.
    """

    x: Tensor
    lam: Tensor
    loss: Tensor
    D: Tensor
    P: Tensor
    evals: Tensor
    status: list[str]
    trajectory: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


S = TypeVar("S", bound=State)


class Solver(Generic[S]):
    """Base of all solvers: `solve` is `init`, then `step` until every image is done, then `result`."""

    state_type: ClassVar[type[State]]
    capturable: ClassVar[bool] = False  # whether `step` never looks at values on the host, see `Graph`

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        """The default x0, and the evaluations that finding it took."""
        raise NotImplementedError

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> S:
        raise NotImplementedError

    def step(self, problem: MapProblem, state: S) -> S:
        raise NotImplementedError

    def result(self, problem: MapProblem, state: S) -> Result:
        raise NotImplementedError

    def finishing(self, state: S) -> Tensor:
        """Which images are near their end (B,): a solve in fast precision goes on in exact precision there."""
        return torch.zeros_like(state.running)

    def restate(self, problem: MapProblem, state: S) -> S:
        """The state with its values evaluated anew, by a problem of another precision."""
        evaluation = problem.evaluate(state.x_seen)
        seen = ~state.D.isnan()
        return replace(state, D=torch.where(seen, evaluation.D, state.D), P=torch.where(seen, evaluation.P, state.P))

    def budget(self, state: S) -> int:
        """About how many evaluations an image will need in all, from x0 to its end, for the progress bar."""
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
        path = Path(checkpoint) if checkpoint else None
        identity = self._identity(problem, lam) if path else {}
        # A solve in fast precision ends in exact precision: a checkpoint tells which of the two it is from.
        phase: str = problem.precision
        state: S
        if path and path.exists():
            tensors, phase = _load(path, identity, problem.y.device)
            state = self.state_type(**tensors)  # type: ignore[assignment]
        else:
            spent: Tensor | int = 0
            if x0 is None:
                x0, spent = self.start(problem, progress)
            state = self.init(problem, lam, x0)
            state = replace(state, evals=state.evals + spent)

        def keep(state: S, phase: str = "exact") -> None:
            if path:
                _save(path, state, identity | {"phase": phase})

        coarse, problem = problem, problem if problem.precision == "exact" else problem.exactly()
        if phase != "exact":
            keep_coarse = partial(keep, phase=phase)
            state = drive(self, coarse, state, progress, callback, keep_coarse, checkpoint_every, until=self.finishing)
            state = self.restate(problem, state)
            # Half precision overflows where single precision does not: what failed goes on from its last finite point.
            state = replace(state, status=state.status.masked_fill(state.status == Status.NON_FINITE, Status.RUNNING))
        state = drive(self, problem, state, progress, callback, keep, checkpoint_every)
        keep(state)
        return self.result(problem, state)

    def _identity(self, problem: MapProblem, lam: float | Tensor) -> dict[str, str]:
        """What a checkpoint has to agree in."""
        return {
            "solver": repr(self),
            "problem": problem.fingerprint(),
            "precision": problem.precision,
            "lam": str(problem.lam_tensor(lam).tolist()),
        }


def exact_share(steps: Tensor | int) -> Tensor:
    """How many of these steps a solve in fast precision does exactly, the last ones."""
    return (FINISH * torch.as_tensor(steps)).clamp(max=ENOUGH)


def make_result(state: State, lam: Tensor, **extra: Any) -> Result:
    status = [Status(code).text for code in state.status.tolist()]
    return Result(state.x_seen, lam, state.D + lam * state.P, state.D, state.P, state.evals, status, **extra)


def drive(
    solver: Solver[S],
    problem: MapProblem,
    state: S,
    progress: bool,
    callback: Callable[[S], None] | None,
    keep: Callable[[S], None],
    keep_every: int,
    until: Callable[[S], Tensor] | None = None,
) -> S:
    """Step until no image runs: shows progress, calls back, and keeps a checkpoint every so many steps.

    With `until`, an image is also ready when that says so, and the steps end as soon as all are.

    Images that are done leave the batch, so that the last ones do not pay for all. Which images are in it depends on
    the state alone and changes only at a look; checkpoints are kept at looks, so a resumed run has the same batches.

    On a GPU a step is recorded as a graph, once for each size of the batch, so only a few sizes are used.
    """
    look_every = CHECK_EVERY if problem.y.is_cuda else 1
    everyone, rows = state, torch.arange(problem.batch, device=problem.y.device)
    part, step = problem, None
    with _Bar(progress, int(state.evals.max()), solver.budget(state)) as bar:
        iteration, kept = 0, 0
        while True:
            if iteration % look_every == 0:
                running = state.running
                if until:
                    running = running & ~until(state)
                count, due = int(running.sum()), iteration - kept >= keep_every
                left = _batch_size(count, problem.batch) if problem.y.is_cuda else count
                ended = left < len(rows)
                if ended or due or callback:
                    everyone = everyone.put(rows, state)
                bar.update(state)
                if callback:
                    callback(everyone)
                if left == 0:
                    return everyone
                if due:
                    keep(everyone)
                    kept = iteration
                if ended:
                    # Those that still run, and as many of the others as fill the batch.
                    stay = running.logical_not().to(torch.int8).argsort(stable=True)[:left].sort().values
                    rows, state = rows[stay], state.take(stay)
                    # The memory of the old step's graph is free before the new one is made.
                    part, step = problem.take(rows), None
            step = step or _stepper(solver, part, state)
            state = step(state)
            iteration += 1


def _batch_size(running: int, all_of_them: int) -> int:
    """How many images to keep in the batch on a GPU, where a new size costs: two sizes per power of two."""
    if running == 0:
        return 0
    power = 2 ** max(running - 1, SMALL_BATCH - 1).bit_length()
    size = 3 * power // 4 if SMALL_BATCH < running <= 3 * power // 4 else power
    return min(size, all_of_them)


def _stepper(solver: Solver[S], problem: MapProblem, state: S) -> Callable[[S], S]:
    """`solver.step` for this problem; on a GPU recorded and replayed, where all that takes part allows it."""
    parts = (solver, problem.operator, problem.noise)
    if not problem.y.is_cuda or not all(part.capturable for part in parts):
        return lambda state: solver.step(problem, state)
    names = [f.name for f in fields(state)]

    def step(*tensors: Tensor) -> list[Tensor]:
        new = solver.step(problem, replace(state, **dict(zip(names, tensors, strict=True))))
        return [getattr(new, name) for name in names]

    graph = Graph(step, [getattr(state, name) for name in names], feedback=True)

    def replay(_: S) -> S:
        # The graph holds the state: what comes in is what went out.
        return replace(state, **dict(zip(names, graph.iterate(), strict=True)))

    return replay


def _save(path: Path, state: State, identity: dict[str, str]) -> None:
    tensors = {f.name: getattr(state, f.name).detach().cpu().clone() for f in fields(state)}
    # One metadata entry: several would be written in random order, and equal states must give equal bytes.
    write_atomically(path, save(tensors, {"identity": json.dumps(identity)}))


def _load(path: Path, identity: dict[str, str], device: torch.device) -> tuple[dict[str, Tensor], str]:
    """The tensors of a state, and the precision it was in."""
    try:
        with safe_open(path, "pt") as file:
            found = json.loads((file.metadata() or {}).get("identity", "{}"))
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error}); delete it to start anew") from None
    for key, value in identity.items():
        if found.get(key) != value:
            raise InputError(f"{path}: this checkpoint belongs to another {key}; choose another file or delete it")
    return tensors, found.get("phase", identity["precision"])


class _Bar:
    """A rich progress bar over gradient evaluations, or nothing."""

    def __init__(self, show: bool, spent: int, budget: int):
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("evaluations"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            disable=not show,
            transient=True,
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("starting", completed=spent, total=spent + budget)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, state: State) -> None:
        if not self.bar.disable and not state.D.isnan().all():
            losses = state.D.nanmean().item(), state.P.nanmean().item()
            text = f"{int(state.running.sum())} running  D {losses[0]:.0f}  P {losses[1]:.0f}"
            self.bar.update(self.task, completed=int(state.evals.max()), description=text)
