"""Restore images of the prior's size, or such a part of larger ones, several at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aipo.choose.lam import Choice
from aipo.errors import InputError
from aipo.files import FolderLock, is_storage_error
from aipo.images import open_image, png_bytes
from aipo.problem.map_problem import MapProblem
from aipo.restore.inputs import MeasuredImage, Reader
from aipo.restore.job import Job, Outcome, Restorer, Watcher
from aipo.restore.outputs import Outputs
from aipo.restore.page import rounded
from aipo.restore.record import Record
from aipo.restore.settings import Settings
from aipo.restore.solve import finite, image_results, make_problem, path_points, solve
from aipo.restore.strip import make_strip
from aipo.solvers.result import Result

__all__ = ["FaceRestorer"]


def _by_operator(items: Sequence[MeasuredImage]) -> list[list[MeasuredImage]]:
    """Images that can be solved together, because they share an operator."""
    groups: dict[int, list[MeasuredImage]] = {}
    for item in items:
        groups.setdefault(id(item.operator), []).append(item)
    return list(groups.values())


class FaceRestorer(Restorer):
    """Reads, solves and writes images of one run, a few together; an interrupt costs at most these.

    Images that are solved together share their rounding. So those that an earlier run has finished are solved once more
    with their neighbors: what comes out is the same as if that run had never stopped. They are not written again.
    """

    together = 8

    def __init__(self, job: Job, watcher: Watcher, outcome: Outcome, missing: set[Path]):
        super().__init__(job, watcher, outcome, missing)
        self.reader = Reader(job.settings)

    def records(self, images: Sequence[Path], lock: FolderLock) -> Iterator[Record]:
        items = self.read(images)
        if items:
            lock.acquire()
        for group in _by_operator(items):
            yield from self.restore(group)

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
            self.fail(items[0].path, f"{items[0].path}: {error}")
        else:
            seconds = round(time.perf_counter() - start, 3)
            yield from self._write(items, problem, result, choice, seconds)

    def _read(self, image: Path) -> MeasuredImage | None:
        try:
            item = self.reader.read(image)
        except InputError as error:
            self.fail(image, str(error))
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
                self.fail(item.path, f"{item.path}: {error}")
                continue
            self.reached += 1
            lam = rounded(record.lam, 3)
            self.watcher.say(f"{record.picture}: {record.status}, lam {lam}, {record.evaluations} evaluations")
            yield record

    def _solving(self, count: int, share: float) -> None:
        self.solving(share * count)


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
