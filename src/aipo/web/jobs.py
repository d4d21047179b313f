"""Who is computing at the moment: each user has at most one job, and all jobs together share the machine's cores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from aipo.errors import InputError

__all__ = ["Cores", "Job", "Jobs"]

ABANDONED = 10.0  # seconds after which a job that nobody listens to is given up


class Cores:
    """The processor's cores, shared evenly by the jobs that run at the moment."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self.jobs = 0
        self._lock = threading.Lock()

    @contextmanager
    def job(self) -> Iterator[None]:
        with self._lock:
            self.jobs += 1
        try:
            yield
        finally:
            with self._lock:
                self.jobs -= 1

    def take_share(self) -> None:
        """Set the threads of the calling job. Asked before every step, because jobs come and go."""
        torch.set_num_threads(max(1, self.count // max(1, self.jobs)))


@dataclass(eq=False)
class Job:
    """One restoration, waiting or running.

    Attributes:
        user: whose it is.
        stop: set when it is to end.
        gone: set when nobody will see how it ends.
        heard: the time at which somebody last listened to it, or at which it began.
    """

    user: str
    heard: float
    stop: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The jobs of all users, in the order in which they began.

    A job counts only while somebody listens to what it says. One that nobody listens to does not get its turn, makes
    room when room is needed, and is given up after `ABANDONED` seconds. So nobody can take places and leave them.

    Arguments:
        limit: how many there may be; further users are asked to come back.
        clock: the time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._listeners: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, user: str) -> Job:
        """A new job at the end of the line; an older one of this user is stopped."""
        with self._lock:
            self._remove(self._jobs.get(user))
            self._give_up_abandoned()
            if len(self._jobs) >= self.limit:
                self._remove(min(self._unheard(), key=lambda job: job.heard, default=None))
            if len(self._jobs) >= self.limit:
                raise InputError("too many people are waiting; try again in a minute")
            job = self._jobs[user] = Job(user, self._clock())
        return job

    def ahead(self, job: Job) -> int | None:
        """How many jobs are in front of this one; None while nobody listens to it."""
        with self._lock:
            self._give_up_abandoned()
            line = [other for other in self._jobs.values() if other.user in self._listeners]
            return line.index(job) if job in line else None

    def is_over(self, job: Job) -> bool:
        """Whether it is to end, because the user said so or is gone."""
        with self._lock:
            self._give_up_abandoned()
        return job.stop.is_set()

    @contextmanager
    def listening(self, user: str) -> Iterator[None]:
        """While this user's messages are being fetched."""
        with self._lock:
            self._listeners.add(user)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.discard(user)
                if user in self._jobs:
                    self._jobs[user].heard = self._clock()

    def stop(self, user: str) -> None:
        """Stop this user's job, if there is one; how it ended will be told."""
        with self._lock:
            if user in self._jobs:
                self._jobs[user].stop.set()

    def leave(self, user: str) -> None:
        """The user is gone: stop the job and free its place."""
        with self._lock:
            self._remove(self._jobs.get(user))

    def end(self, job: Job) -> None:
        """Forget a job that is over, unless the user has begun another one since."""
        with self._lock:
            if self._jobs.get(job.user) is job:
                del self._jobs[job.user]

    def close(self) -> None:
        """Stop them all."""
        with self._lock:
            for job in list(self._jobs.values()):
                self._remove(job)

    def __len__(self) -> int:
        return len(self._jobs)

    def _unheard(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.user not in self._listeners]

    def _give_up_abandoned(self) -> None:
        now = self._clock()
        for job in self._unheard():
            if now - job.heard >= ABANDONED:
                self._remove(job)

    def _remove(self, job: Job | None) -> None:
        if job is not None:
            job.gone.set()
            job.stop.set()
            del self._jobs[job.user]
