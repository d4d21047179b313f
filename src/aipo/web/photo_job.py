"""What is done to a photograph, as a stream of messages: read, a first look, the whole, and the file.

    status   "running", "done", "stopped" or "failed"
    text     one sentence about it
    share    of the work that is done, from 0 to 1
    size     of the restoration, [width, height]
    patch    [x, y, width, height] of a part that is restored; the bytes that follow are a JPEG of it
    first    whether that part is the first look: restored on its own, in fewer evaluations
    result   the ending and type of the restored file; the bytes that follow are its content
    facts    what was done, and what was not, in sentences
    anyway   whether it would be done if the user insists

Nothing here knows of the page, and nothing is kept.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.images.photograph import ENDINGS, Photograph, read_photograph
from aipo.images.tiles import Tile
from aipo.priors.noise_prior import NoisePrior
from aipo.restore.photos import MeasuredPhoto, measured
from aipo.restore.whole import FinishedTiles, Whole, restore_whole
from aipo.web.decode import PHOTOS, opened
from aipo.web.http import sentence
from aipo.web.photo_request import PhotoRequest

__all__ = ["Stopped", "blend", "look_at", "photo_memory", "read", "restore_photo"]

FIRST_SIDE, FIRST_EVALS = 192, 4  # of the first look; the whole takes more evaluations where one is not enough
CELL = 8  # pixels; where something is missing is looked for in cells of this side
SHOWN_QUALITY = 92  # of what the page shows; the file that is downloaded is another matter
# Measured by tests/web/test_photos.py: a picture, its restoration and what writing it takes, and the tiles on the way.
BYTES_PER_PIXEL, WORKSPACE = 90, 500_000_000
BYTES_TO_SHOW = 50  # per pixel, to read a picture and show it
NOISIER = "assumed for this task; a picture with more noise comes out rough"
TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "TIFF": "image/tiff", "BMP": "image/bmp"}

Tell = Callable[[dict[str, Any], bytes], None]


class Stopped(Exception):
    """Raised by whoever listens: the work is to end. Says why."""


def photo_memory(content: bytes, restored: bool = True, factor: int = 1) -> int:
    """Bytes that it takes at most to read and show a file, or to have it `restored`; known from its header.

    Raises:
        InputError: it is no picture, or too large.
    """
    with opened(content, PHOTOS) as image:
        pixels = image.width * image.height * factor**2
        if pixels > PHOTOS.pixels:
            raise InputError(
                f"enlarged {factor} times the picture would have {pixels / 1e6:.0f} million pixels; the limit is "
                f"{PHOTOS.pixels / 1e6:.0f}"
            )
    return pixels * BYTES_PER_PIXEL + WORKSPACE if restored else pixels * BYTES_TO_SHOW


def read(content: bytes) -> Photograph:
    """A photograph from the content of its file. `InputError` in words that name no file."""
    with opened(content, PHOTOS) as image:
        format = "JPEG" if image.format == "MPO" else str(image.format)
    ending = next(ending for ending, known in ENDINGS.items() if known == format)
    with tempfile.TemporaryDirectory(prefix="aipo-") as folder:  # gone as soon as it is read
        path = Path(folder) / f"picture{ending}"
        path.write_bytes(content)
        try:
            return read_photograph(path)
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{path}: ")) from None


def look_at(content: bytes) -> tuple[dict[str, Any], bytes]:
    """What there is to know about a file before anything is done, and a JPEG of it that every browser can show."""
    photo = read(content)
    channels, height, width = photo.x.shape
    about = f"{width}x{height} pixels, {photo.format}, {photo.bits} bits, {'gray' if channels == 1 else 'color'}"
    facts = {"size": [width, height], "text": about, "transparent": photo.alpha is not None, "notes": list(photo.notes)}
    return facts, _shown(photo, photo.x)


def restore_photo(prior: NoisePrior, request: PhotoRequest, content: bytes, tell: Tell) -> None:
    """Restore a photograph. `tell` gets every message with its bytes, and may raise `Stopped`."""
    try:
        _restore(prior, request, content, tell)
    except Stopped as stopped:
        tell({"status": "stopped", "text": f"{stopped}. There is no file: the picture is not finished."}, b"")
    except InputError as error:
        text, anyway = _in_words(str(error))
        tell({"status": "failed", "text": sentence(InputError(text)), "anyway": anyway}, b"")


def _restore(prior: NoisePrior, request: PhotoRequest, content: bytes, tell: Tell) -> None:
    settings = request.settings
    tell({"status": "running", "text": "Reading the picture …", "share": 0.0}, b"")
    photo = request.with_holes(read(content))

    def go_on() -> None:
        tell({"status": "running", "text": "Measuring the noise …", "share": 0.0}, b"")

    vars(settings)["loaded_prior"] = _Watched(prior.flow, prior.card, go_on)
    work = _Work(photo, request, Path(f"picture.{photo.format.lower()}"), hashlib.sha256(content).hexdigest())
    if photo.x.shape[1] * photo.x.shape[2] > 4 * FIRST_SIDE**2:
        work.first_look(prior, tell)
    item = measured(work.path, work.sha256, photo, settings)
    height, width = item.whole.shape[1:]

    def share(done: float) -> None:
        tell({"status": "running", "text": "Restoring …", "share": done, "size": [width, height]}, b"")

    def show(x: Tensor, left: int, top: int) -> None:
        tell(_patch(x, left, top), _shown(photo, x))

    x, evaluations = restore_whole(prior, item.whole, share=share, finished=_Shown(item.whole, show))
    if not x.isfinite().all():
        raise InputError(f"{prior.name} has no finite density here; try another noise level")
    tell({"status": "running", "text": "Writing the file …", "share": 1.0}, b"")
    if len(item.whole.tiles()) == 1:
        show(x, 0, 0)
    # The ending of the name decides the format, and the format is that of the file.
    ending = next(ending for ending, format in ENDINGS.items() if format == photo.format)
    item = replace(item, path=Path(f"picture{ending}"))
    encoded = item.encode(x, settings)
    tell(
        {
            "status": "done",
            "text": f"Restored {width}x{height} pixels.",
            "size": [width, height],
            "facts": _facts(item, x, evaluations, prior),
            "result": {"ending": ending, "type": TYPES[photo.format]},
        },
        encoded,
    )


@dataclass(frozen=True)
class _Watched(NoisePrior):
    """The same prior, which asks before every density: of a large picture the noise takes a while to be measured."""

    go_on: Callable[[], None] = lambda: None

    def log_prob(self, y: Tensor, s: float | Tensor) -> Tensor:
        self.go_on()
        return super().log_prob(y, s)


@dataclass(frozen=True)
class _Work:
    """A photograph and what is asked for."""

    photo: Photograph
    request: PhotoRequest
    path: Path
    sha256: str

    def first_look(self, prior: NoisePrior, tell: Tell) -> None:
        """Restore the part that the user looks at, with the noise of that part."""
        settings = self.request.settings
        factor = (settings.factor or 2) if settings.task == "superres" else 1
        left, top, side = self._place(FIRST_SIDE // factor // 4 * 4)
        rows, columns = slice(top, top + side), slice(left, left + side)
        alpha = None if self.photo.alpha is None else self.photo.alpha[rows, columns].contiguous()
        if settings.task == "inpaint" and (alpha is None or not ((alpha < 0.5).any() and (alpha >= 0.5).any())):
            return
        part = replace(self.photo, x=self.photo.x[:, rows, columns].contiguous(), alpha=alpha)
        item = measured(self.path, self.sha256, part, settings)
        x, _ = restore_whole(prior, item.whole, FIRST_EVALS)
        size = [factor * self.photo.x.shape[2], factor * self.photo.x.shape[1]]
        tell(_patch(x, factor * left, factor * top) | {"first": True, "size": size}, _shown(self.photo, x))

    def _place(self, side: int) -> tuple[int, int, int]:
        """Left, top and side of the part: where the user looks, or where something is missing."""
        height, width = self.photo.x.shape[1:]
        side = min(side, height, width)
        x, y = self.request.look[0] * width, self.request.look[1] * height
        if self.request.settings.task == "inpaint" and self.photo.alpha is not None:
            holes = F.max_pool2d((self.photo.alpha[None] < 0.5).float(), CELL, ceil_mode=True)[0]
            missing = CELL * holes.nonzero() + CELL / 2
            if len(missing):
                y, x = missing[(missing - torch.tensor([y, x])).square().sum(1).argmin()].tolist()
        # At multiples of 4, so that a mosaic begins with the same color.
        left, top = (int(min(max(0.0, at - side / 2), size - side)) // 4 * 4 for at, size in ((x, width), (y, height)))
        return left, top, side


class _Shown(FinishedTiles):
    """Shows each tile as soon as it is there, and keeps none."""

    def __init__(self, whole: Whole, show: Callable[[Tensor, int, int], None]):
        super().__init__(Path())
        self.whole, self.tiles, self.show = whole, whole.tiles(), show

    def load(self, number: int, shape: tuple[int, ...]) -> Tensor | None:
        return None

    def save(self, number: int, part: Tensor) -> None:
        tile = self.tiles[number]
        left, top = tile.kept_columns.start, tile.kept_rows.start
        if self.whole.observed is not None:  # what is known stays
            observed = tile.cut(self.whole.observed)
            part = torch.where(observed, tile.cut(self.whole.y), part)
        self.show(_inside(tile, part), left, top)


def _inside(tile: Tile, part: Tensor) -> Tensor:
    top, left = tile.kept_rows.start - tile.rows.start, tile.kept_columns.start - tile.columns.start
    height, width = tile.kept_rows.stop - tile.kept_rows.start, tile.kept_columns.stop - tile.kept_columns.start
    return part[:, top : top + height, left : left + width]


def _patch(x: Tensor, left: int, top: int) -> dict[str, Any]:
    return {"status": "running", "patch": [left, top, x.shape[2], x.shape[1]]}


def _shown(photo: Photograph, x: Tensor) -> bytes:
    """A JPEG of a part of the picture, in its colors."""
    profile = {name: value for name, value in photo.kept.items() if name == "icc_profile"}
    channels = max(len(x), len(photo.x))
    return Photograph(x, kept=profile).encode(x.expand(channels, -1, -1), "JPEG", SHOWN_QUALITY)


def _facts(item: MeasuredPhoto, x: Tensor, evaluations: int, prior: NoisePrior) -> list[str]:
    """What was done, and what was not."""
    photo, whole = item.photo, item.whole
    how = {"given": "as you said", "estimated": "measured in the picture", "assumed": NOISIER}.get(item.sigma_from)
    facts = [f"Noise level {whole.sigma:.3f} ({255 * whole.sigma:.1f} of 255), {how}.", *map(_fact, item.notes)]
    if whole.observed is not None and whole.observed.shape[0] == 1:
        missing = int((~whole.observed).sum())
        facts.append(f"{missing} pixels were filled in; all others are unchanged.")
    else:
        facts.append(f"{evaluations} evaluation{'s' if evaluations > 1 else ''} of {prior.name} for each pixel.")
    kept = [photo.format, f"{photo.bits} bits", *_kept(photo)]
    facts.append(f"The file keeps: {', '.join(kept)}.")
    if x.shape[1:] != whole.y.shape[1:]:
        facts.append(f"{x.shape[2]}x{x.shape[1]} pixels instead of {whole.y.shape[2]}x{whole.y.shape[1]}.")
    return facts


def _kept(photo: Photograph) -> list[str]:
    names = {"exif": "the camera's data", "icc_profile": "the color profile"}
    return [names[name] for name in photo.kept if name in names] + (["transparency"] if photo.alpha is not None else [])


def _fact(note: str) -> str:
    return sentence(InputError(_in_words(note)[0]))


def _in_words(text: str) -> tuple[str, bool]:
    """What `aipo restore` says, without its options; and whether it would do it if somebody insists."""
    anyway = "--anyway" in text
    text = re.sub(r" \(--anyway [^)]*\)", "", text).replace("--sigma says otherwise", "set it yourself if you know it")
    text = re.sub(r"--(\w+)", r"\1", text)
    return (f"the picture {text}" if text.startswith(("is ", "has ", "contains ")) else text), anyway


def blend(content: bytes, restored: bytes, share: float) -> bytes:
    """A file between the original and its restoration, in the original's format.

    Raises:
        InputError: they are not of one size.
    """
    photo, other = read(content), read(restored)
    if photo.x.shape[1:] != other.x.shape[1:]:
        raise InputError("the two pictures have different sizes; restore again")
    return photo.encode(torch.lerp(photo.x, other.x.expand_as(photo.x), share))
