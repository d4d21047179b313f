"""What is written for an image, and the care not to overwrite anything that we did not write.

A record (NAME.json) names the other files of its image with their SHA-256. From it a later run knows which files it may
replace, and which images are already done.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aipo.errors import InputError
from aipo.files import fitting_stem, write_atomically
from aipo.images.reading import existing_file
from aipo.report.html import is_report
from aipo.restore.record import NOISE_LEVELS, Record
from aipo.restore.strip import strip_shows

__all__ = ["KINDS", "REPORT", "Outputs", "check_targets", "earlier_records"]

REPORT = "report.html"
# restored: the result. face: the part of it that was cut and restored, with --fit align. strip: the measurement and the
# restorations over lam, side by side. classical: what a classical method makes of the same photograph.
KINDS = ("restored", "face", "strip", "classical")
WRITING = "being written"


class Outputs:
    """The files of one image in the output folder.

    Arguments:
        ending: of the restored image and the classical one; the others are PNG.
    """

    def __init__(self, image: Path, out: Path, ending: str = ".png"):
        self.image, self.out = image, out
        endings = {kind: f".{kind}{ending if kind in ('restored', 'classical') else '.png'}" for kind in KINDS}
        self.name = fitting_stem(image.stem, max(endings.values(), key=len), out)
        self.record_file = out / f"{self.name}.json"
        self.targets = {kind: out / f"{self.name}{end}" for kind, end in endings.items()}

    @property
    def files(self) -> list[Path]:
        """All that may be written."""
        return [self.record_file, *self.targets.values()]

    def finished(self, settings: Mapping[str, object]) -> Record | None:
        """The record of an earlier run, if it did everything that a run with these settings would do."""
        document = self._earlier()
        if document is None:
            return None
        try:
            record = Record.from_json(document)
        except InputError:  # damaged: it is made again
            return None
        if not record.done or record.settings != settings or record.picture_sha256 != _sha256(self.image):
            return None
        written = {kind: path for kind, path in self.targets.items() if path.name in record.files}
        intact = all(_sha256(path) == record.files[path.name] for path in written.values())
        if not intact or "restored" not in written or len(written) < len(record.files):
            return None
        if record.rule != NOISE_LEVELS and "strip" not in written:
            return None
        if "strip" in written and not strip_shows(
            written["strip"], len(record.tiles), written.get("face", written["restored"])
        ):
            return None
        # That run may have been started in another folder, and have named the files from there.
        return self._with_paths(replace(record, picture=str(self.image)), written)

    def check(self) -> None:
        """Refuse to replace what no earlier run has written."""
        document = self._earlier()
        if document is None and os.path.exists(self.record_file):
            raise InputError(_not_ours(self.record_file))
        files = document["files"] if document else {}
        for target in self.targets.values():
            if os.path.isdir(target):
                raise InputError(f"cannot write {target}: it is a folder; choose another --out")
            if (document and document.get("status") == WRITING) or not os.path.exists(target):
                continue
            if files.get(target.name) != _sha256(target):
                raise InputError(_not_ours(target))

    def write(self, images: Mapping[str, bytes], record: Record) -> Record:
        """Write PNG files by kind, then the record, completed with their names. Older files of other kinds go."""
        earlier = self._earlier() or {"files": {}}
        hashes = {self.targets[kind].name: hashlib.sha256(png).hexdigest() for kind, png in images.items()}
        record = self._with_paths(replace(record, files=hashes), images)
        # Should the run end between two files, the next one must know that they are ours.
        self._write_document(record.to_json() | {"status": WRITING})
        for kind, png in images.items():
            write_atomically(self.targets[kind], png)
        self._write_document(record.to_json())
        for kind, target in self.targets.items():
            if kind not in images:
                target.unlink(missing_ok=True)  # `check` has seen that it is ours
        for name, sha256 in earlier["files"].items():
            # Of another format, for example.
            if name not in hashes and (self.out / name).name == name and _sha256(self.out / name) == sha256:
                (self.out / name).unlink()
        return record

    def _with_paths(self, record: Record, written: Container[str]) -> Record:
        return _named(record, [self.targets[kind] if kind in written else None for kind in KINDS])

    def _earlier(self) -> dict[str, Any] | None:
        """What an earlier run wrote about the image of this name; None if there is nothing, or it is not ours."""
        if not os.path.isfile(self.record_file):  # reading a pipe may never end
            return None
        try:
            document = json.loads(self.record_file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        ours = isinstance(document, dict) and isinstance(document.get("files"), dict) and "settings" in document
        return document if ours else None

    def _write_document(self, document: dict[str, Any]) -> None:
        write_atomically(self.record_file, (json.dumps(document, indent=2) + "\n").encode())


def earlier_records(out: Path, names: Container[str]) -> list[Record]:
    """What other runs have restored in this folder, oldest first, as far as it is still there as they wrote it.

    Arguments:
        names: of records to be left out.
    """
    found = []
    for file in out.glob("*.json"):
        with suppress(InputError, OSError, ValueError, RecursionError):
            if file.name in names or not file.is_file():
                continue
            record = Record.from_json(json.loads(file.read_bytes()))
            paths = [None if path is None else out / Path(path).name for path in map(partial(getattr, record), KINDS)]
            if record.done and all(path is None or record.files.get(path.name) == _sha256(path) for path in paths):
                found.append((file.stat().st_mtime, file.name, _named(record, paths)))
    return [record for *_, record in sorted(found, key=lambda entry: entry[:2])]


def check_targets(
    images: Sequence[Path], out: Path, others: Sequence[Path], ending: Callable[[Path], str] = lambda image: ".png"
) -> list[tuple[list[Path], str]]:
    """Refuse what would overwrite an input, another result or something of the user's, before any work is done.

    Arguments:
        others: files besides the images that are read.
        ending: of the restored image of a file.

    Returns:
        Images whose results cannot be written, and why, in a line that names them; the others can be restored.

    Raises:
        InputError: none of them can, or an input would be overwritten.
    """
    if os.path.exists(out) and not os.path.isdir(out):
        raise InputError(f"cannot create the folder {out}: a file has that name; choose another --out")
    by_name: dict[str, list[Outputs]] = {}
    for image in images:
        outputs = Outputs(image, out, ending(image))
        # Some file systems do not tell upper from lower case, or one way to write an accent from another.
        by_name.setdefault(unicodedata.normalize("NFC", outputs.name.casefold()), []).append(outputs)
    report = out / REPORT
    _check_inputs([report, *(path for same in by_name.values() for path in same[0].files)], [*images, *others])
    if os.path.exists(report) and not (os.path.isfile(report) and is_report(report)):
        raise InputError(_not_ours(report))
    refused = []
    for same in by_name.values():
        if len(same) > 1:
            names = " and ".join(str(outputs.image) for outputs in same)
            number = "both" if len(same) == 2 else "all"
            reason = f"{names} would {number} be written as {same[-1].name}; restore them one by one"
            refused.append(([outputs.image for outputs in same], reason))
            continue
        try:
            same[0].check()
        except InputError as error:
            refused.append(([same[0].image], str(error)))
    return refused


def _named(record: Record, paths: Sequence[Path | None]) -> Record:
    """A record with the files of `KINDS`."""
    restored, face, strip, classical = (None if path is None else str(path) for path in paths)
    return replace(record, restored=restored, face=face, strip=strip, classical=classical)


def _check_inputs(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    read = {os.path.realpath(path) for path in inputs}
    for target in targets:
        if os.path.realpath(target) in read:
            raise InputError(f"{target} is an input and would be overwritten; choose another --out")


def _not_ours(path: Path) -> str:
    return f"{path} already exists and is not an unchanged result of aipo; move it, or choose another --out"


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(existing_file(path).read_bytes()).hexdigest()
    except (InputError, OSError):
        return ""
