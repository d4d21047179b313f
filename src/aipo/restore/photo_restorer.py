"""Restore whole photographs, one at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from aipo.errors import InputError
from aipo.files import FolderLock, is_storage_error
from aipo.restore.classical import classical
from aipo.restore.faces import with_small_faces
from aipo.restore.job import Restorer
from aipo.restore.outputs import Outputs
from aipo.restore.photos import MeasuredPhoto, read_measured
from aipo.restore.record import NOISE_LEVELS, Record
from aipo.restore.whole import FinishedTiles, restore_whole

__all__ = ["PhotoRestorer"]

TILES = ".aipo-tiles-"  # folders in the output folder with the tiles of pictures that are not finished


class PhotoRestorer(Restorer):
    """Reads, restores and writes one photograph after the other; an interrupt costs at most a tile."""

    def records(self, images: Sequence[Path], lock: FolderLock) -> Iterator[Record]:
        for image in images:
            if image not in self.missing:
                continue
            try:
                item = read_measured(image, self.job.settings)
            except InputError as error:
                self.fail(image, str(error))
                continue
            self._say(item)
            lock.acquire()
            try:
                record = self._restore(item)
            except (InputError, OSError) as error:
                if isinstance(error, OSError) and is_storage_error(error):
                    raise
                self.fail(image, f"{image}: {error}")
            else:
                self.reached += 1
                yield record

    def clear(self) -> None:
        for folder in self.job.out.glob(f"{TILES}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _restore(self, item: MeasuredPhoto) -> Record:
        settings, start = self.job.settings, time.perf_counter()
        key = json.dumps([settings.record, item.sha256], sort_keys=True)
        finished = FinishedTiles(self.job.out / f"{TILES}{hashlib.sha256(key.encode()).hexdigest()[:16]}")
        x, evaluations = restore_whole(settings.photo_prior, item.whole, share=self.solving, finished=finished)
        if not x.isfinite().all():
            raise InputError(f"{settings.photo_prior.name} has no finite density here; try another --sigma")
        found: tuple[str, ...] = ()
        if settings.faces:
            faces = settings.small_face_prior
            x, found = with_small_faces(x, item.whole.y, item.whole.sigma, settings.photo_prior, faces)
        outputs = Outputs(item.path, self.job.out, settings.ending(item.path))
        record = self._record(item, evaluations, round(time.perf_counter() - start, 3), found)
        images = {"restored": item.encode(x, settings)}
        if settings.compare:
            images["classical"] = item.encode(classical(item.whole), settings)
        record = outputs.write(images, record)
        shutil.rmtree(finished.folder, ignore_errors=True)
        self.watcher.say(f"{record.picture}: {record.status}, {record.evaluations} evaluations")
        return record

    def _record(self, item: MeasuredPhoto, evaluations: int, seconds: float, found: tuple[str, ...]) -> Record:
        return Record(
            status="done",
            lam=None,
            loss=None,
            D=None,
            P=None,
            chi2=None,
            evaluations=evaluations,
            picture=str(item.path),
            picture_sha256=item.sha256,
            sigma=item.whole.sigma,
            sigma_from=item.sigma_from,
            noise_gain=1.0,
            rule=NOISE_LEVELS,
            target_chi2=None,
            path=None,
            tiles=(),
            notes=(*item.notes, *found),
            seconds=seconds,
            batch=1,
            settings=self.job.settings.record,
        )

    def _say(self, item: MeasuredPhoto) -> None:
        notes = "".join(f"; {note}" for note in item.notes)
        self.watcher.say(f"{item.path}: sigma {item.whole.sigma:.4f}, {item.sigma_from}{notes}")
