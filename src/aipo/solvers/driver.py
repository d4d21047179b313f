"""How any solver runs: step by step until every image is done, as a stream of states.

`run` is a whole solve. In fast precision it has two phases: coarse steps until every image is near its end, then exact
ones. `iterate` is one phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields, replace

import torch
from torch import Tensor

from aipo.batch import CHECK_EVERY
from aipo.engine.kernels.graphs import Graph
from aipo.problem.map_problem import MapProblem
from aipo.solvers.base import R, S, Solver, Status
from aipo.solvers.checkpoint import Checkpoint

__all__ = ["iterate", "run"]

SMALL_BATCH = 16  # images that a GPU evaluates in hardly more time than one


def run(
    solver: Solver[S, R],
    problem: MapProblem,
    begin: Callable[[], S],
    checkpoint: Checkpoint | None = None,
    checkpoint_every: int = 100,
) -> Iterator[S]:
    """The states of a solve, from the one that `begin` makes, or that was saved, to the last.

    A state is saved every so many steps, once the next one is asked for, and at the end.
    """
    saved = checkpoint.load(solver.state_type, problem.y.device) if checkpoint else None
    state, phase = saved or (begin(), problem.precision)
    every = math.ceil(checkpoint_every / _stride(problem))

    def follow(states: Iterator[S], phase: str) -> Generator[S, None, S]:
        """The states of a phase, saved now and then; returns the last."""
        for number, state in enumerate(states):
            yield state
            if checkpoint and number > 0 and number % every == 0:
                checkpoint.save(state, phase)
        return state

    exact = problem.exactly()
    if phase != "exact":
        state = yield from follow(iterate(solver, problem, state, solver.finishing), phase)
        state = solver.restate(exact, state)
        # Half precision overflows where single precision does not: what failed goes on from its last finite point.
        state = replace(state, status=state.status.masked_fill(state.status == Status.NON_FINITE, Status.RUNNING))
    state = yield from follow(iterate(solver, exact, state), "exact")
    if checkpoint:
        checkpoint.save(state, "exact")


def iterate(
    solver: Solver[S, R], problem: MapProblem, state: S, until: Callable[[S], Tensor] | None = None
) -> Iterator[S]:
    """The state of all images before the first step and after every few, until no image runs.

    With `until`, an image is also ready when that says so, and the steps end as soon as all are.

    Images that are done leave the batch, so that the last ones do not pay for all. Which images are in it depends on
    the state alone and changes only where a state is handed out, so a solve that goes on from any of these states has
    the same batches.

    On a GPU a step is recorded as a graph, once for each size of the batch, so only a few sizes are used.
    """
    everyone, rows = state, torch.arange(problem.batch, device=problem.y.device)
    part, step = problem, None
    while True:
        # A graph overwrites its state, so on a GPU what is handed out is a copy.
        whole = len(rows) == problem.batch and not problem.y.is_cuda
        everyone = state if whole else everyone.put(rows, state)
        yield everyone
        running = state.running
        if until:
            running = running & ~until(state)
        left = int(running.sum())
        if problem.y.is_cuda:
            left = _batch_size(left, problem.batch)
        if left == 0:
            return
        if left < len(rows):
            # Those that still run, and as many of the others as fill the batch.
            stay = running.logical_not().to(torch.int8).argsort(stable=True)[:left].sort().values
            rows, state = rows[stay], state.take(stay)
            # The memory of the old step's graph is free before the new one is made.
            part, step = problem.take(rows), None
        step = step or _stepper(solver, part, state)
        for _ in range(_stride(problem)):
            state = step(state)


def _stride(problem: MapProblem) -> int:
    """Steps from one state that is handed out to the next: looking at one makes a GPU wait."""
    return CHECK_EVERY if problem.y.is_cuda else 1


def _batch_size(running: int, all_of_them: int) -> int:
    """How many images to keep in the batch on a GPU, where a new size costs: two sizes per power of two."""
    if running == 0:
        return 0
    power = 2 ** max(running - 1, SMALL_BATCH - 1).bit_length()
    size = 3 * power // 4 if SMALL_BATCH < running <= 3 * power // 4 else power
    return min(size, all_of_them)


def _stepper(solver: Solver[S, R], problem: MapProblem, state: S) -> Callable[[S], S]:
    """`solver.step` for this problem; on a GPU recorded and replayed, where all that takes part allows it."""
    parts = (solver, problem.operator, problem.noise)
    recordable = all(part.capturable for part in parts) and getattr(problem.engine, "capturable", True)
    if not problem.y.is_cuda or not recordable:
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
