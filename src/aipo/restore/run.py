"""Restore image files: check what is asked for, then read, solve and write a few images at a time.

`prepare` refuses options that cannot be used before anything is solved or written. `run` does the rest. What is wrong
with one image stops none of the others, and what is finished stays, whatever happens later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from aipo.choose.lam import Choice
from aipo.errors import InputError
from aipo.files import FolderLock, is_storage_error
from aipo.images import open_image, png_bytes
from aipo.problem.map_problem import MapProblem
from aipo.restore.inputs import MeasuredImage, Reader
from aipo.restore.listing import Listing, list_images
from aipo.restore.outputs import Outputs, check_targets
from aipo.restore.page import rounded, write_page
from aipo.restore.record import Record
from aipo.restore.settings import Settings
from aipo.restore.solve import finite, image_results, make_problem, path_points, solve
from aipo.restore.strip import make_strip
from aipo.solvers.result import Result

__all__ = ["Job", "Outcome", "Watcher", "prepare", "run"]

CHUNK = 8  # images solved together; an interrupt costs at most these


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


def prepare(arguments: Sequence[Path], out: Path, settings: Settings) -> Job:
    """Find the images, and check everything that concerns all of them.

    Arguments:
        arguments: image files, and folders of them.
        out: where the results go: NAME.restored.png, NAME.strip.png and NAME.json for each image, and report.html.

    Raises:
        InputError: something cannot be used; nothing has been written then.
    """
    others = [path for path in (settings.mask, settings.kernel, settings.matrix) if path]
    listing = list_images(arguments, others)
    listing = listing.without(check_targets(listing.images, out, others))
    settings.load()
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
    known = {image: Outputs(image, job.out).finished(job.settings.record) for image in job.listing.images}
    restorer = _Restorer(job, watcher, outcome, {image for image, record in known.items() if record is None})
    outcome.resumed = len(known) - len(restorer.missing)
    watcher.begin(len(restorer.missing))
    with FolderLock(job.out) as lock:
        try:
            for first in range(0, len(known), CHUNK):
                items = restorer.read(job.listing.images[first : first + CHUNK])
                if items:
                    lock.acquire()
                for group in _by_operator(items):
                    for record in restorer.restore(group):
                        known[Path(record.picture)] = record
                watcher.reached(restorer.reached)
        finally:
            # An interrupt comes by here too: the report shows what is finished.
            outcome.records = [record for record in known.values() if record is not None]
            outcome.seconds = time.perf_counter() - start
            if outcome.records:
                lock.acquire()
                write_page(job.out, outcome.records, outcome.failed, job.settings, job.command)
    return outcome


def _by_operator(items: Sequence[MeasuredImage]) -> list[list[MeasuredImage]]:
    """Images that can be solved together, because they share an operator."""
    groups: dict[int, list[MeasuredImage]] = {}
    for item in items:
        groups.setdefault(id(item.operator), []).append(item)
    return list(groups.values())


class _Restorer:
    """Reads, solves and writes images of one run, and counts those that are through.

    Images that are solved together share their rounding. So those that an earlier run has finished are solved once more
    with their neighbors: what comes out is the same as if that run had never stopped. They are not written again.
    """

    def __init__(self, job: Job, watcher: Watcher, outcome: Outcome, missing: set[Path]):
        self.job, self.watcher, self.outcome, self.missing = job, watcher, outcome, missing
        self.reader = Reader(job.settings)
        self.reached = 0

    def read(self, images: Sequence[Path]) -> list[MeasuredImage]:
        """The images that are to be solved together; none if none of them is missing."""
        wanted = [image for image in images if image in self.missing]
        items = {image: item for image in wanted if (item := self._read(image)) is not None}
        if items:
            finished = [image for image in images if image not in self.missing]
            items |= {image: item for image in finished if (item := self._read(image)) is not None}
        return [items[image] for image in images if image in items]

    def restore(self, items: Sequence[MeasuredImage]) -> Iterator[Record]:
        """Solve images that share an operator, write the files of those that are missing, and yield their records."""
        count = sum(item.path in self.missing for item in items)
        if not count:
            return
        start = time.perf_counter()
        try:
            problem = make_problem(items, self.job.settings)
            self.watcher.say(f"solving {len(items)} together: {problem.operator!r}, {problem.prior.name}")
            result, choice = solve(problem, self.job.settings, partial(self._solving, count))
        except InputError as error:
            if len(items) > 1:  # perhaps not all of them are to blame
                for item in items:
                    yield from self.restore([item])
                return
            self._fail(items[0].path, f"{items[0].path}: {error}")
        else:
            seconds = round(time.perf_counter() - start, 3)
            yield from self._write(items, problem, result, choice, seconds)

    def _read(self, image: Path) -> MeasuredImage | None:
        try:
            item = self.reader.read(image)
        except InputError as error:
            self._fail(image, str(error))
            return None
        notes = "".join(f"; {note}" for note in item.notes)
        self.watcher.say(f"{image}: sigma {item.sigma:.4f}, {item.sigma_from}{notes}")
        return item

    def _write(
        self,
        items: Sequence[MeasuredImage],
        problem: MapProblem,
        result: Result,
        choice: Choice | None,
        seconds: float,
    ) -> Iterator[Record]:
        points = path_points(problem, choice.path) if choice else [()] * len(items)
        for i, (item, values) in enumerate(zip(items, image_results(problem, result), strict=True)):
            if item.path not in self.missing:
                continue
            along = list(zip(points[i], choice.path.x[i], strict=False)) if choice else []
            tiles, strip = make_strip(item.view, values, result.x[i], along)
            record = Record(
                **vars(values),
                **_provenance(item, choice, i),
                rule=choice.rule if choice else "fixed",
                target_chi2=finite(choice.target[i]) if choice else None,
                path=points[i] or None,
                tiles=tiles,
                seconds=seconds,
                batch=len(items),
                settings=self.job.settings.record,
            )
            try:
                restored = _restored(item, result.x[i], self.job.settings) if values.done else {}
                record = Outputs(item.path, self.job.out).write({"strip": strip, **restored}, record)
            except (InputError, OSError) as error:
                if isinstance(error, OSError) and is_storage_error(error):
                    raise
                self._fail(item.path, f"{item.path}: {error}")
                continue
            self.reached += 1
            lam = rounded(record.lam, 3)
            self.watcher.say(f"{record.picture}: {record.status}, lam {lam}, {record.evaluations} evaluations")
            yield record

    def _solving(self, count: int, share: float) -> None:
        self.watcher.reached(self.reached + share * count)

    def _fail(self, image: Path, reason: str) -> None:
        if image in self.missing:
            self.outcome.failed.append((image, reason))
            self.reached += 1


def _provenance(item: MeasuredImage, choice: Choice | None, i: int) -> dict[str, Any]:
    """The fields of a record that were known before anything was solved, and what choosing lam found out."""
    if choice is not None and choice.sigma_replaced[i]:
        found = choice.sigma[i].item()
        wrong = f"the picture contradicts sigma {item.sigma:.3g}; {found:.3g} is used (--trust-sigma keeps yours)"
        item = replace(item, sigma=found, sigma_from="corrected", notes=(*item.notes, wrong))
    if choice is not None and choice.at_end[i]:
        item = replace(item, notes=(*item.notes, "lam is at the end of its range; a better one may lie beyond"))
    return {
        "picture": str(item.path),
        "picture_sha256": item.sha256,
        "sigma": item.sigma,
        "sigma_from": item.sigma_from,
        "noise_gain": item.noise_gain,
        "notes": item.notes,
    }


def _restored(item: MeasuredImage, x: Tensor, settings: Settings) -> dict[str, bytes]:
    """The result as PNG: the part that was restored, and with --fit align the whole image with that part in it.

    In an inpainted image only the missing pixels are replaced: the others are known, and finer.
    """
    if settings.fit != "align" or item.window is None:
        return {"restored": png_bytes(x)}
    # Read again rather than kept: photos are large, and eight of them wait here.
    whole = open_image(item.path, noisy=True).x.expand(3, -1, -1)
    result = item.window.paste(whole, x.cpu().clamp(0, 1))
    if item.observed is not None:
        result = torch.where(item.observed, whole, result)
    return {"restored": png_bytes(result), "face": png_bytes(x)}
