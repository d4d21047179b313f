"""What is written for a picture, and the care not to write over anything that is not a result of ours.

A record (NAME.json) names the other files of its picture with their SHA-256. By it a later run knows which files it may
replace, and which pictures are done already.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.report import is_report

__all__ = ["KINDS", "REPORT", "Outputs", "check_targets"]

REPORT = "report.html"
# restored: the result. face: the part of it that was cut and restored, with --fit align. strip: the measurement and the
# restorations over lam, side by side.
KINDS = ("restored", "face", "strip")
WRITING = "being written"


class Outputs:
    """The files of one picture in the output folder."""

    def __init__(self, picture: Path, out: Path):
        self.picture = picture
        self.record_file = out / f"{picture.stem}.json"
        self.targets = {kind: out / f"{picture.stem}.{kind}.png" for kind in KINDS}

    def record(self) -> dict[str, Any] | None:
        """What an earlier run wrote about the picture of this name, if one did."""
        try:
            record = json.loads(self.record_file.read_bytes())
        except (OSError, ValueError):
            return None
        known = isinstance(record, dict) and isinstance(record.get("files"), dict) and "settings" in record
        return record if known else None

    def finished(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The record of an earlier run, if it did all that a run with these settings would do."""
        record = self.record()
        if record is None or record.get("status") != "done" or record["settings"] != settings:
            return None
        if record.get("picture_sha256") != _sha256(self.picture) or not record["files"]:
            return None
        folder = self.record_file.parent
        intact = all(_sha256(folder / name) == content for name, content in record["files"].items())
        if not intact:
            return None
        # That run may have been started in another folder, and have named the files from there.
        paths = {kind: str(path) for kind, path in self.targets.items() if path.name in record["files"]}
        return record | paths | {"picture": str(self.picture)}

    def check(self) -> None:
        """Refuse to replace what no earlier run has written."""
        if os.path.exists(self.record_file) and self.record() is None:
            raise InputError(f"{self.record_file} exists and is no result of aipo; move it, or choose another --out")
        record = self.record() or {"files": {}}
        for target in self.targets.values():
            if os.path.isdir(target):
                raise InputError(f"cannot write {target}: it is a folder; choose another --out")
            if record.get("status") == WRITING or not os.path.exists(target):
                continue
            if record["files"].get(target.name) != _sha256(target):
                raise InputError(f"{target} exists and is no result of aipo; move it, or choose another --out")

    def write(self, pictures: dict[str, bytes], record: dict[str, Any]) -> dict[str, Any]:
        """Write PNG files by kind, then the record, completed with their names; what an earlier run left goes."""
        record = record | {kind: str(self.targets[kind]) if kind in pictures else None for kind in KINDS}
        record["files"] = {self.targets[kind].name: hashlib.sha256(png).hexdigest() for kind, png in pictures.items()}
        # Should it end between two files, the next run must know that they are ours.
        self._write_record(record | {"status": WRITING})
        for kind, png in pictures.items():
            write_atomically(self.targets[kind], png)
        self._write_record(record)
        for kind, target in self.targets.items():
            if kind not in pictures:
                target.unlink(missing_ok=True)  # `check` has seen that it is ours
        return record

    def _write_record(self, record: dict[str, Any]) -> None:
        write_atomically(self.record_file, (json.dumps(record, indent=2) + "\n").encode())


def check_targets(pictures: Sequence[Path], out: Path, others: Sequence[Path]) -> None:
    """Refuse what would overwrite an input, another result or something of the user's, before any work is done.

    Arguments:
        others: files besides the pictures that are read.
    """
    if os.path.exists(out) and not os.path.isdir(out):
        raise InputError(f"cannot create the folder {out}: a file is in the way; choose another one")
    seen: dict[str, Path] = {}
    for picture in pictures:
        # Some file systems do not tell upper from lower case.
        other = seen.setdefault(picture.stem.casefold(), picture)
        if other is not picture:
            raise InputError(f"{other} and {picture} would both be written as {picture.stem}; restore them one by one")
    inputs = {os.path.realpath(path) for path in (*pictures, *others)}
    targets = [out / REPORT]
    for picture in pictures:
        outputs = Outputs(picture, out)
        targets += [outputs.record_file, *outputs.targets.values()]
    for target in targets:
        if os.path.realpath(target) in inputs:
            raise InputError(f"{target} is an input and would be overwritten; choose another --out")
    report = out / REPORT
    if os.path.exists(report) and not is_report(report):
        raise InputError(f"{report} exists and is no report of aipo; move it, or choose another --out")
    for picture in pictures:
        Outputs(picture, out).check()


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
