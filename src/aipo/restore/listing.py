"""Which files are to be restored: those that were named, and the images in the folders that were."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aipo.images import SUFFIXES

__all__ = ["Listing", "list_images"]

RESULTS = (
    ".restored",
    ".face",
    ".strip",
    ".classical",
)  # ends of the stems of earlier results; not to be restored again


@dataclass(frozen=True)
class Listing:
    """What the arguments of a command stand for.

    Attributes:
        images: the image files.
        skipped: other files in the folders.
        failed: arguments that cannot be used, and why, in a line that names them.
    """

    images: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)

    def without(self, refused: Sequence[tuple[Sequence[Path], str]]) -> Listing:
        """The same without some of the images, which go to `failed` with the reason that several may share."""
        gone = {image for images, _ in refused for image in images}
        failed = [*self.failed, *((images[-1], reason) for images, reason in refused)]
        return replace(self, images=[image for image in self.images if image not in gone], failed=failed)


def list_images(arguments: Sequence[Path], others: Sequence[Path] = ()) -> Listing:
    """Files as they are named; from a folder every file with the suffix of an image, in the order of names.

    Folders in folders, hidden files, earlier results and `others` (a mask may lie beside its images) are left out.
    """
    listing = Listing()
    used, seen = {os.path.realpath(path) for path in others}, set(arguments)
    for argument in dict.fromkeys(arguments):  # named twice is restored once
        if not os.path.isdir(argument):
            listing.images.append(argument)
            continue
        try:
            entries = sorted(argument.iterdir())
        except OSError as error:
            listing.failed.append((argument, f"{argument}: the folder cannot be read: {error.strerror}"))
            continue
        names = [path for path in entries if os.path.isfile(path) and not path.name.startswith(".")]
        found = [
            path
            for path in names
            if path.suffix.lower() in SUFFIXES
            and not path.stem.endswith(RESULTS)
            and os.path.realpath(path) not in used
        ]
        listing.images.extend(path for path in found if path not in seen)
        seen.update(found)
        listing.skipped.extend(path for path in names if path not in seen)
        if not found:
            endings = ", ".join(SUFFIXES)
            listing.failed.append((argument, f"{argument}: no pictures in this folder; their names end in {endings}"))
    return listing
