"""What a run of `aipo restore` is: the job, who watches it, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aipo.files import FolderLock
from aipo.restore.listing import Listing
from aipo.restore.record import Record
from aipo.restore.settings import Settings

__all__ = ["Job", "Outcome", "Restorer", "Watcher"]


class Watcher(Protocol):
    """Is told how a run is going."""

    def begin(self, total: int) -> None:
        """`total` images are to be solved."""

    def reached(self, images: float) -> None:
        """How many are done; a fraction for those under way."""

    def say(self, text: str) -> None:
        """Something about one image or a few."""


@dataclass(frozen=True)
class Job:
    """What is to be done: files and folders as they were named, and the images found there."""

    arguments: Sequence[Path]
    out: Path
    settings: Settings
    listing: Listing

    @property
    def command(self) -> str:
        """The command line that does the same again."""
        return self.settings.command(self.arguments, self.out)


@dataclass
class Outcome:
    """What a run has done so far.

    Attributes:
        records: of all images that could be read, including those of an earlier run.
        failed: images and folders that could not be used, and why, in a line that names them.
        resumed: how many of the records an equal earlier run has written.
        seconds: what this run took.
    """

    records: list[Record] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return sum(record.done for record in self.records)


class Restorer:
    """Restores the pictures of a run, some at a time, and counts those that are through.

    Arguments:
        missing: the pictures that no earlier run has finished.
    """

    together = 1  # how many pictures at a time

    def __init__(self, job: Job, watcher: Watcher, outcome: Outcome, missing: set[Path]):
        self.job, self.watcher, self.outcome, self.missing = job, watcher, outcome, missing
        self.reached = 0

    def records(self, images: Sequence[Path], lock: FolderLock) -> Iterator[Record]:
        """Restore those that are missing, and yield the record of each when its files are written."""
        raise NotImplementedError

    def clear(self) -> None:
        """Called when all pictures are through: remove what was kept for the case of an interrupt."""

    def solving(self, count: float) -> None:
        """Say that so many of the pictures under way are done."""
        self.watcher.reached(self.reached + count)

    def fail(self, image: Path, reason: str) -> None:
        if image in self.missing:
            self.outcome.failed.append((image, reason))
            self.reached += 1
