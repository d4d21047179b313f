"""Who computes at the moment: each user at most one job, and all jobs together no more than the machine has cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aipo.errors import InputError

__all__ = ["Cores", "Jobs"]


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


class Jobs:
    """The job of every user, running or waiting, so that it can be stopped from another request.

    Arguments:
        limit: how many there may be; more are told to come back.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._stops: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def begin(self, user: str) -> threading.Event:
        """A new job; the one this user may have had is stopped. The event says when to stop."""
        with self._lock:
            if user in self._stops:
                self._stops.pop(user).set()
            if len(self._stops) >= self.limit:
                raise InputError("too many people are waiting; try again in a minute")
            stop = self._stops[user] = threading.Event()
        return stop

    def current(self, user: str) -> threading.Event:
        """The stop of the job that was begun."""
        with self._lock:
            if user not in self._stops:
                raise InputError("too many people are waiting; try again in a minute")
            return self._stops[user]

    def stop(self, user: str) -> None:
        """Stop this user's job, if there is one."""
        with self._lock:
            if user in self._stops:
                self._stops[user].set()

    def leave(self, user: str) -> None:
        """Stop it and forget it: the user is gone, and a job that was still waiting will never run."""
        with self._lock:
            if user in self._stops:
                self._stops.pop(user).set()

    def end(self, user: str, stop: threading.Event) -> None:
        """Forget a job that is over, unless the user has begun another one since."""
        with self._lock:
            if self._stops.get(user) is stop:
                del self._stops[user]

    def __len__(self) -> int:
        return len(self._stops)
