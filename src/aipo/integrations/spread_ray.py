"""Pieces of work spread over the machines of a Ray cluster: the same as `Processes`, for `spread`.

    for outcome in spread(restore_chunk, chunks, Cluster("auto")):
        ...

All machines need AIPO and the same files at the same place, by a file system that they share. A node that dies costs
no more than a process that dies: its pieces are tried once more on the others.

Reference: P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", OSDI 2018.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aipo.errors import InputError, how_to_install
from aipo.integrations.spread import Answer, Team, attempt

__all__ = ["Cluster"]

AHEAD = 2  # pieces for each that can be computed at a time: a node that is done never waits for us
SECONDS_TO_ANSWER = 10.0


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that is running already.

    Attributes:
        address: where its head is, "host:port"; "auto" finds the one that this machine belongs to.
        cpus: cores for each piece, which are also its threads.
        gpus: GPUs for each piece; 0.25 lets four pieces share one.
    """

    address: str = "auto"
    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise InputError(f"the number of cores for each piece is {self.cpus}; it must be at least 1")
        if not 0 <= self.gpus < float("inf"):
            raise InputError(f"the number of GPUs for each piece is {self.gpus}; it must be finite and at least 0")

    @contextmanager
    def team(self, function: Callable[..., Any]) -> Iterator[Team]:
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            # Ray writes what it has lost to stdout, where a command's own output goes; the pieces say it themselves.
            ray._private.worker._worker_logs_enabled = False
            try:
                _knock(self.address)
                ray.init(address=self.address, log_to_driver=False, logging_level="error")
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"no Ray cluster at {self.address} ({reason}); start one with: ray start --head"
                ) from None
        team = _Cluster(ray, self, function)
        try:
            yield team
        finally:
            team.stop()
            if ours:
                ray.shutdown()


def attempt_there(folder: str, function: Callable[..., Any], piece: tuple[Any, ...], threads: int) -> Answer:
    """`attempt`, in the folder where we were asked, as paths may be relative. A worker serves nobody but us."""
    with suppress(OSError):  # a machine without that folder can do with paths that are not
        os.chdir(folder)
    return attempt(function, piece, threads)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    try:
        import ray
    except ImportError:
        raise InputError(f"a Ray cluster needs Ray: {how_to_install('ray')}") from None
    return ray


def _knock(address: str) -> None:
    """`OSError` if nobody listens at host:port: Ray itself would try again for minutes."""
    found = re.fullmatch(r"([^:/]+):(\d{1,5})", address)
    if found:
        socket.create_connection((found[1], int(found[2])), SECONDS_TO_ANSWER).close()


@dataclass(eq=False)
class _Cluster:
    """The team of `Cluster`: Ray finds a place for each piece."""

    ray: Any
    cluster: Cluster
    function: Callable[..., Any]
    begun: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Trying again is not left to Ray, which would not tell us, and not stop at the second time for results it lost.
        self._attempt = self.ray.remote(max_retries=0, num_cpus=self.cluster.cpus, num_gpus=self.cluster.gpus)(
            attempt_there
        )

    def free(self) -> bool:
        return len(self.begun) < AHEAD * max(1, self._places())

    def begin(self, index: int, piece: tuple[Any, ...]) -> None:
        self.begun[self._attempt.remote(os.getcwd(), self.function, piece, self.cluster.cpus)] = index

    def finished(self) -> list[tuple[int, Answer]]:
        if not self.begun:
            return []
        first, _ = self.ray.wait(list(self.begun), num_returns=1)
        return [(self.begun.pop(reference), self._answer_to(reference)) for reference in first]

    def stop(self) -> None:
        for reference in self.begun:
            with suppress(Exception):  # whatever cannot be stopped any more has stopped
                self.ray.cancel(reference, force=True)
        self.begun.clear()

    def _answer_to(self, reference: Any) -> Answer:
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:  # what it returned cannot be sent
            return Answer(failure=" ".join(str(error.cause).split()), details=str(error))
        except errors.RayError as error:
            return Answer(failure=f"its worker was lost ({type(error).__name__})", died=True)

    def _places(self) -> int:
        """How many pieces can be computed at a time, by the nodes that are there now."""
        there = self.ray.cluster_resources()
        places = there.get("CPU", 0) // self.cluster.cpus
        return int(min(places, there.get("GPU", 0) // self.cluster.gpus) if self.cluster.gpus else places)
