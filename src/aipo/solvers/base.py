"""What a solver is: a frozen dataclass of options, and pure functions of an explicit state.

    step(problem, state) -> state       one gradient evaluation for every running image
    result(problem, state) -> outcome   what to hand back

An image is done when its status in the state says so. Because the state is plain tensors, any solve can be saved,
resumed and inspected, and an image that finishes or fails never disturbs the others. How a solve begins is up to the
two kinds of solvers in `solve`: those that need a lam and those that do not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.engine.engine import Evaluation
from aipo.problem.map_problem import MapProblem

__all__ = ["R", "S", "Solver", "State", "Status", "exact_share"]

# Of a solve in fast precision, the share that is left for exact steps at its end, and how many are enough of them.
FINISH, ENOUGH = 0.1, 40


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

    @property
    def reasons(self) -> list[str]:
        """The status of every image, for people."""
        return [Status(code).text for code in self.status.tolist()]

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


S = TypeVar("S", bound=State)
R = TypeVar("R")


class Solver(Generic[S, R]):
    """Base of all solvers. S is the state that it steps, R the outcome that it hands back.

    Attributes:
        state_type: the class S.
        capturable: whether `step` never looks at values on the host, so that a GPU can record it
            (`engine.kernels.graphs`).
    """

    state_type: type[S]
    capturable: ClassVar[bool] = False

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        """The default x0 (B, C, H, W), and the evaluations that finding it took."""
        raise NotImplementedError

    def step(self, problem: MapProblem, state: S) -> S:
        """One gradient evaluation for every running image."""
        raise NotImplementedError

    def result(self, problem: MapProblem, state: S) -> R:
        """What to hand back; the problem is in exact precision."""
        raise NotImplementedError

    def budget(self, state: S) -> int:
        """About how many evaluations an image will need in all, from x0 to its end, for the progress bar."""
        raise NotImplementedError

    def finishing(self, state: S) -> Tensor:
        """Which images are near their end (B,): a solve in fast precision goes on in exact precision there."""
        return torch.zeros_like(state.running)

    def restate(self, problem: MapProblem, state: S) -> S:
        """The state with its values evaluated anew, by a problem of another precision."""
        evaluation = problem.evaluate(state.x_seen)
        seen = ~state.D.isnan()
        return replace(state, D=torch.where(seen, evaluation.D, state.D), P=torch.where(seen, evaluation.P, state.P))


def exact_share(steps: Tensor | int) -> Tensor:
    """How many of these steps a solve in fast precision does exactly, the last ones."""
    return (FINISH * torch.as_tensor(steps)).clamp(max=ENOUGH)
