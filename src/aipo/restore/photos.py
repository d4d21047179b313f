"""From a photograph's file to what is known of it, and from its restoration back to a file of the same kind."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.choose.sigma import automatic_sigma
from aipo.errors import InputError
from aipo.images import color_mask
from aipo.images.photograph import ENDINGS, Photograph, read_photograph
from aipo.restore.operators import mosaic_mask
from aipo.restore.record import SigmaFrom
from aipo.restore.settings import Settings
from aipo.restore.tasks import PATTERNS, TASKS
from aipo.restore.whole import Whole

__all__ = ["MeasuredPhoto", "read_measured"]

FACTOR = 2  # by which a picture is enlarged if nobody says
DEEPEST = 24  # pixels from the rim of a hole to its middle; what lies farther in is made up


@dataclass(frozen=True)
class MeasuredPhoto:
    """A photograph, ready to be restored.

    Attributes:
        path, sha256: its file.
        photo: what the file says.
        whole: what is at hand of it. A photograph without colors has one channel, though its file may have three.
        sigma_from: where the noise level comes from, as in `Record`.
        notes: what was changed, or should be known.
    """

    path: Path
    sha256: str
    photo: Photograph
    whole: Whole
    sigma_from: SigmaFrom
    notes: tuple[str, ...]

    def encode(self, x: Tensor, settings: Settings) -> bytes:
        """A restoration as the content of a file."""
        channels = max(len(x), len(self.photo.x)) if settings.task != "demosaic" else 3
        return self.photo.encode(x.expand(channels, -1, -1), ENDINGS[settings.ending(self.path)], settings.quality)


def read_measured(path: Path, settings: Settings) -> MeasuredPhoto:
    """Read a photograph for the task of the settings. `InputError`, beginning with its name, if it cannot be used."""
    try:
        photo = read_photograph(path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return _measured(path, sha256, photo, settings)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    except OSError as error:  # gone, or unreadable, since it was first looked at
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the file") from None


def _measured(path: Path, sha256: str, photo: Photograph, settings: Settings) -> MeasuredPhoto:
    task, notes = TASKS[settings.task], list(photo.notes)
    y = _without_copies(photo.x)
    observed, kernel, factor = None, None, 1
    if task.name == "inpaint":
        observed = _observed(photo, settings)
        photo = _opaque(photo, settings)
        y = torch.where(observed, y, 0.5)
    elif task.name == "superres":
        factor = settings.factor or FACTOR
    elif task.name == "deblur":
        kernel = settings.kernel_for((len(y), *y.shape[1:]))
    elif task.name == "demosaic":
        if len(y) != 1:
            raise InputError("is in color; a mosaic has one value for each pixel")
        shape = (3, *y.shape[1:])
        observed = mosaic_mask(shape, settings.pattern or PATTERNS[0]).bool()
        y = torch.where(observed, y, 0.5)
    sigma, sigma_from = _noise(y, observed, settings, notes)
    whole = Whole(y.contiguous(), sigma, factor, kernel, observed)
    return MeasuredPhoto(path, sha256, photo, whole, sigma_from, tuple(notes))


def _without_copies(x: Tensor) -> Tensor:
    """One channel of an image that is gray but stored in three: its noise is the same in all of them."""
    return x[:1] if len(x) == 3 and torch.equal(x, x[:1].expand_as(x)) else x


def _observed(photo: Photograph, settings: Settings) -> Tensor:
    """Which pixels are known (1, H, W)."""
    height, width = photo.x.shape[1:]
    if settings.mask is not None:
        mask = settings.files["mask"]
        if mask.shape[1:] != photo.x.shape[1:]:
            raise InputError(
                f"is {width}x{height} pixels, the mask {mask.shape[2]}x{mask.shape[1]}; they must have the same size"
            )
        observed = mask.bool()
    elif settings.mask_color is not None:
        observed = color_mask(photo.x, settings.mask_color).bool()
    elif photo.alpha is not None:
        observed = photo.alpha[None] >= 0.5
        if not observed.any():
            raise InputError("is transparent everywhere, so there is nothing to go by; check the picture")
    else:
        raise InputError(
            "it is not clear which pixels are missing; give --mask, black where they are, or --mask-color, or make "
            "them transparent"
        )
    if not settings.anyway and _depth(observed) > DEEPEST:
        raise InputError(
            f"has a hole whose middle is more than {DEEPEST} pixels from anything that is known; whatever was put "
            "there would be made up (--anyway does it)"
        )
    return observed


def _depth(observed: Tensor) -> int:
    """How far the missing pixel that is farthest from any known one is from it, counted up to `DEEPEST` + 1."""
    missing, depth = (~observed).float()[None], 0
    while missing.any() and depth <= DEEPEST:
        missing = -F.max_pool2d(-missing, 3, 1, 1)
        depth += 1
    return depth


def _opaque(photo: Photograph, settings: Settings) -> Photograph:
    """Pixels that were transparent because they were missing are there now."""
    if settings.mask is not None or settings.mask_color is not None:
        return photo
    return Photograph(photo.x, None, photo.format, photo.bits, photo.kept, photo.notes)


def _noise(y: Tensor, observed: Tensor | None, settings: Settings, notes: list[str]) -> tuple[float, SigmaFrom]:
    """The noise level, within what the prior knows, and where it comes from."""
    low, high = settings.photo_prior.levels
    if settings.sigma is not None:
        if settings.sigma > high:
            raise InputError(f"--sigma is {settings.sigma:g}; {settings.photo_prior.name} knows noise up to {high:g}")
        if settings.sigma < low:
            notes.append(f"{settings.photo_prior.name} knows noise from {low:g} on, so {low:g} is used")
        return max(settings.sigma, low), "given"
    assumed = TASKS[settings.task].sigma
    if assumed is not None:
        return assumed, "assumed"
    sigma, found = automatic_sigma(settings.photo_prior, y[None])
    notes += found
    return sigma, "estimated"
