"""Restore image files: check what is asked for, then read, solve and write a few images at a time.

`prepare` refuses options that cannot be used before anything is solved or written. `run` does the rest. What is wrong
with one image stops none of the others, and what is finished stays, whatever happens later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from aipo.files import FolderLock
from aipo.restore.face_restorer import FaceRestorer
from aipo.restore.job import Job, Outcome, Restorer, Watcher
from aipo.restore.listing import list_images
from aipo.restore.outputs import Outputs, check_targets
from aipo.restore.page import write_page
from aipo.restore.photo_restorer import PhotoRestorer
from aipo.restore.settings import Settings

__all__ = ["Job", "Outcome", "Watcher", "prepare", "run"]


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


def run(job: Job, watcher: Watcher, outcome: Outcome | None = None) -> Outcome:
    """Restore all images, a few at a time, and write their results and the report.

    An image that could not be solved gets a record with its status, but no restoration. One that an equal run has
    already restored is left as it is. On an interrupt what is finished is in place, in `outcome` and in the report.

    Raises:
        InputError: another process writes to the output folder, or nobody can.
    """
    start = time.perf_counter()
    outcome = Outcome() if outcome is None else outcome
    outcome.failed += job.listing.failed
    settings = job.settings
    known = {
        image: Outputs(image, job.out, settings.ending(image)).finished(settings.record) for image in job.listing.images
    }
    missing = {image for image, record in known.items() if record is None}
    kind: type[Restorer] = PhotoRestorer if settings.whole else FaceRestorer
    restorer = kind(job, watcher, outcome, missing)
    outcome.resumed = len(known) - len(missing)
    watcher.begin(len(missing))
    with FolderLock(job.out) as lock:
        try:
            for first in range(0, len(known), restorer.together):
                for record in restorer.records(job.listing.images[first : first + restorer.together], lock):
                    known[Path(record.picture)] = record
                watcher.reached(restorer.reached)
            restorer.clear()
        finally:
            # An interrupt comes by here too: the report shows what is finished.
            outcome.records = [record for record in known.values() if record is not None]
            outcome.seconds = time.perf_counter() - start
            if outcome.records:
                lock.acquire()
                write_page(job.out, outcome.records, outcome.failed, job.settings, job.command)
    return outcome
