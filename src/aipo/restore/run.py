"""Restore image files: check what is asked for, then read, solve and write a few images at a time.

`prepare` refuses options that cannot be used before anything is solved or written. `run` does the rest. What is wrong
with one image stops none of the others, and what is finished stays, whatever happens later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from aipo.files import FolderLock
from aipo.restore.face_restorer import FaceRestorer
from aipo.restore.job import Job, Outcome, Restorer, Watcher
from aipo.restore.listing import Listing, list_images
from aipo.restore.outputs import Outputs, check_targets, earlier_records
from aipo.restore.page import write_page
from aipo.restore.photo_restorer import PhotoRestorer
from aipo.restore.record import Record
from aipo.restore.settings import Settings

__all__ = ["Job", "Outcome", "Watcher", "prepare", "restore_piece", "run"]

# A function and the arguments of many calls of it -> what became of each: index, value, failure.
Spread = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]


def prepare(arguments: Sequence[Path], out: Path, settings: Settings) -> Job:
    """Find the images, and check everything that concerns all of them.

    Arguments:
        arguments: image files, and folders of them.
        out: where the results go: NAME.restored.png (or another ending), NAME.strip.png and NAME.json for each
            image, and report.html.

    Raises:
        InputError: something cannot be used; nothing has been written then.
    """
    others = [path for path in (settings.mask, settings.kernel, settings.matrix) if path]
    listing = list_images(arguments, others)
    settings.load()
    listing = listing.without(check_targets(listing.images, out, others, settings.ending))
    return Job(arguments, out, settings, listing)


def run(job: Job, watcher: Watcher, outcome: Outcome | None = None, spread: Spread | None = None) -> Outcome:
    """Restore all images, a few at a time, and write their results and the report.

    An image that could not be solved gets a record with its status, but no restoration. One that an equal run has
    already restored is left as it is. On an interrupt what is finished is in place, in `outcome` and in the report.

    Arguments:
        spread: computes pieces elsewhere, in other processes for example, see `aipo.integrations.spread`. The files
            are the same.

    Raises:
        InputError: another process writes to the output folder, or nobody can.
    """
    start = time.perf_counter()
    outcome = Outcome() if outcome is None else outcome
    outcome.failed += job.listing.failed
    settings, images = job.settings, job.listing.images
    known = {image: Outputs(image, job.out, settings.ending(image)).finished(settings.record) for image in images}
    missing = {image for image, record in known.items() if record is None}
    restorer = _restorer(job, watcher, outcome, missing)
    outcome.resumed = len(known) - len(missing)
    watcher.begin(len(missing))
    groups = [images[first : first + restorer.together] for first in range(0, len(images), restorer.together)]
    with FolderLock(job.out) as lock:
        try:
            work = _elsewhere(restorer, groups, lock, spread) if spread else _here(restorer, groups, lock)
            for record in work:
                known[Path(record.picture)] = record
            if lock.held:  # otherwise what is there may be somebody else's
                restorer.clear()
        finally:
            # An interrupt comes by here too: the report shows what is finished.
            outcome.records = [record for record in known.values() if record is not None]
            outcome.seconds = time.perf_counter() - start
            if outcome.records:
                lock.acquire()
                ours = {Outputs(image, job.out, settings.ending(image)).record_file.name for image in images}
                earlier = earlier_records(job.out, ours)
                write_page(job.out, outcome.records, outcome.failed, settings, job.command, earlier)
    return outcome


def _restorer(job: Job, watcher: Watcher, outcome: Outcome, missing: set[Path]) -> Restorer:
    return (PhotoRestorer if job.settings.whole else FaceRestorer)(job, watcher, outcome, missing)


def _here(restorer: Restorer, groups: Sequence[list[Path]], lock: FolderLock) -> Iterator[Record]:
    for group in groups:
        yield from restorer.records(group, lock)
        restorer.watcher.reached(restorer.reached)


def _elsewhere(restorer: Restorer, groups: Sequence[list[Path]], lock: FolderLock, spread: Spread) -> Iterator[Record]:
    job, outcome = restorer.job, restorer.outcome
    wanted = [(group, [image for image in group if image in restorer.missing]) for group in groups]
    pieces = [(job.settings, job.out, group, missing) for group, missing in wanted if missing]
    if pieces:
        lock.acquire()  # for all who work on them
    for done in spread(restore_piece, pieces):
        *_, missing = pieces[done.index]
        if done.failure is None:
            records, failed = done.value
        else:
            records, failed = [], [(image, f"{image}: {done.failure}") for image in missing]
        outcome.failed += failed
        yield from records
        restorer.reached += len(missing)
        restorer.watcher.reached(restorer.reached)
    place = {image: i for i, image in enumerate(job.listing.images)}
    outcome.failed.sort(key=lambda entry: place.get(entry[0], -1))  # as they would have come one after the other


def restore_piece(
    settings: Settings, out: Path, images: list[Path], missing: list[Path]
) -> tuple[list[Record], list[tuple[Path, str]]]:
    """Restore images that belong together, in a process whose parent holds the folder's lock.

    Returns:
        The records of those that were missing, and why others failed.
    """
    job, outcome = Job(images, out, _ready(settings), Listing(images)), Outcome()
    records = list(_restorer(job, _Nobody(), outcome, set(missing)).records(images, _Locked(out)))
    return records, outcome.failed


@lru_cache(maxsize=1)
def _ready(settings: Settings) -> Settings:
    """The same settings, always as the same object, which keeps the prior and the files it has read."""
    return settings


class _Nobody:
    """Watches a piece of work."""

    def begin(self, total: int) -> None: ...

    def reached(self, images: float) -> None: ...

    def say(self, text: str) -> None: ...


class _Locked(FolderLock):
    """A lock that somebody else holds for us."""

    def acquire(self) -> None: ...
