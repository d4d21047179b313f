"""Independent pieces of work, spread over processes: results as they come, and a process that dies costs nothing else.

    for outcome in spread(restore_chunk, chunks, Processes(4)):
        print(outcome.index, outcome.value if outcome.failure is None else outcome.failure)

A piece whose process dies, for want of memory for example, is tried once more after all others. If that process dies
too, the piece is reported as failed. An exception is reported at once: it would come again. What a piece returns must
depend on its arguments only; then it does not matter how many processes there are, which of them it meets, or whether
it was begun twice.

`spread_ray.Cluster` takes the place of `Processes` where there are several machines.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from aipo.errors import InputError

__all__ = ["Answer", "Machines", "Outcome", "Processes", "Team", "attempt", "fitting_processes", "spread"]

TRIES = 2  # of a piece whose process dies
# What a process is worth starting for, as it takes some seconds and has its own copy of everything.
CORES, MEMORY, PIECES = 2, 2 * 2**30, 8


@dataclass(frozen=True)
class Answer:
    """What became of one try.

    Attributes:
        value: what the function has returned.
        failure: why there is none, in one line; or None.
        details: the traceback of an exception that is no `InputError`.
        died: whether the process died, so that another may have more luck.
    """

    value: Any = None
    failure: str | None = None
    details: str = ""
    died: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a piece: `value`, or why there is none. `index` is its place among the pieces."""

    index: int
    value: Any
    failure: str | None
    details: str


class Team(Protocol):
    """Workers who are there, and wait for pieces."""

    def free(self) -> bool:
        """Whether one more piece can be begun."""
        ...

    def begin(self, index: int, piece: tuple[Any, ...]) -> None:
        """Begin a piece, and do not wait for it."""
        ...

    def finished(self) -> list[tuple[int, Answer]]:
        """Wait until something is done, and return it; at once if nothing has been begun."""
        ...


class Machines(Protocol):
    """Where work can be done."""

    def team(self, function: Callable[..., Any]) -> AbstractContextManager[Team]:
        """Workers who can compute the function. When the context ends, they stop whatever they are doing."""
        ...


def spread(function: Callable[..., Any], pieces: Iterable[tuple[Any, ...]], machines: Machines) -> Iterator[Outcome]:
    """Compute `function(*piece)` for every piece, and yield the outcomes in the order in which they are ready.

    Pieces are taken as workers become free, so there may be millions. Ctrl-C stops all workers, and so does closing the
    iterator: use `contextlib.closing` if the loop may end before the last outcome.

    Arguments:
        function: a function that a module names, so that another process can import it.
        pieces: the arguments of each call.
        machines: where to compute, e.g. `Processes(4)`.
    """
    coming, again = enumerate(pieces), deque[tuple[int, tuple[Any, ...]]]()
    begun: dict[int, tuple[Any, ...]] = {}
    tried_before = set[int]()
    with machines.team(function) as team:
        while True:
            while team.free() and (item := next(coming, None) or (again.popleft() if again else None)):
                begun[item[0]] = item[1]
                team.begin(*item)
            if not begun:
                return
            for index, answer in team.finished():
                piece = begun.pop(index)
                if answer.died and index not in tried_before:
                    tried_before.add(index)
                    again.append((index, piece))
                    continue
                failure = f"{answer.failure}, in {TRIES} tries" if answer.died else answer.failure
                yield Outcome(index, answer.value, failure, answer.details)


def attempt(function: Callable[..., Any], piece: tuple[Any, ...], threads: int) -> Answer:
    """One try, in the process that is to make it. One bad piece must not cost others, so every exception is caught."""
    import torch

    torch.set_num_threads(threads)
    try:
        return Answer(function(*piece))
    except InputError as error:
        return Answer(failure=str(error))
    except Exception as error:
        return Answer(failure=_one_line(error), details=traceback.format_exc())


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, which share its cores evenly.

    Python imports the main module in each of them: a script needs `if __name__ == "__main__":` around what it does.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"the number of processes is {self.count}; it must be at least 1")

    @contextmanager
    def team(self, function: Callable[..., Any]) -> Iterator[Team]:
        team = _Processes(function, self.count, max(1, _cores() // self.count))
        try:
            yield team
        finally:
            team.stop()


def fitting_processes(pieces: int) -> int:
    """How many processes are worth starting for so many pieces, of this machine's cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else MEMORY
    return max(1, min(_cores() // CORES, memory // MEMORY, pieces // PIECES))


@dataclass(eq=False)
class _Worker:
    """A process, our end of the pipe to it, and the piece that it works on."""

    process: BaseProcess
    pipe: Connection
    index: int | None = None

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()  # files are written whole or not at all, so it can die at any moment
        self.process.join()


@dataclass(eq=False)
class _Processes:
    """The team of `Processes`: started when there is work for them, and replaced when they die."""

    function: Callable[..., Any]
    count: int
    threads: int
    workers: list[_Worker] = field(default_factory=list)

    def free(self) -> bool:
        return len(self.workers) < self.count or any(worker.index is None for worker in self.workers)

    def begin(self, index: int, piece: tuple[Any, ...]) -> None:
        worker = next((worker for worker in self.workers if worker.index is None), None) or self._start()
        worker.index = index
        with suppress(BrokenPipeError, ConnectionError):  # it has died: `finished` will notice
            worker.pipe.send((self.function, piece, self.threads))

    def finished(self) -> list[tuple[int, Answer]]:
        busy = [worker for worker in self.workers if worker.index is not None]
        if not busy:
            return []
        # A pipe may outlive its worker, in the hands of a process that the worker has started.
        ready = set(wait([part for worker in busy for part in (worker.pipe, worker.process.sentinel)]))
        return [
            self._answer_of(worker) for worker in busy if not ready.isdisjoint({worker.pipe, worker.process.sentinel})
        ]

    def stop(self) -> None:
        while self.workers:
            self.workers.pop().stop()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        pipe, theirs = context.Pipe()
        # Daemons end with us, even if nobody closes the iterator.
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()
        self.workers.append(_Worker(process, pipe))
        return self.workers[-1]

    def _answer_of(self, worker: _Worker) -> tuple[int, Answer]:
        index, worker.index = worker.index, None
        assert index is not None
        try:
            if worker.pipe.poll():
                return index, worker.pipe.recv()
        except (EOFError, ConnectionError):  # it died, perhaps in the middle of its answer
            pass
        self.workers.remove(worker)
        worker.stop()
        return index, Answer(failure=_how_it_ended(worker.process.exitcode), died=True)


def _work(pipe: Connection) -> None:
    """A worker's life."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):
        while True:
            answer = attempt(*pipe.recv())
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, ValueError, RuntimeError) as error:  # what cannot be pickled
                pipe.send(Answer(failure=_one_line(error), details=traceback.format_exc()))


def _end_with_parent() -> None:
    """A worker must not write anything after the process that has locked the folder is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """What is started here does not see Ctrl-C, which terminals send to all processes: we stop it ourselves."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # multiprocessing's own helper; when it is started, it would undo the next line
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how_it_ended(code: int | None) -> str:
    if code == -9:
        return "its process was killed, perhaps because memory ran out"
    return f"its process ended with code {code}"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
