"""From a photograph's file to what is known of it, and from its restoration back to a file of the same kind."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.choose.sigma import automatic_sigma
from aipo.errors import InputError
from aipo.images.photograph import ENDINGS, Photograph, read_photograph
from aipo.images.reading import existing_file
from aipo.restore.inputs import naming, observed_pixels, without_gray_copies
from aipo.restore.operators import mosaic_mask
from aipo.restore.record import SigmaFrom
from aipo.restore.settings import Settings
from aipo.restore.tasks import PATTERNS, TASKS
from aipo.restore.whole import Whole

__all__ = ["MeasuredPhoto", "measured", "read_measured"]

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
        channels = max(len(x), len(self.photo.x))  # gray may have been stored in three
        return self.photo.encode(x.expand(channels, -1, -1), ENDINGS[settings.ending(self.path)], settings.quality)


def read_measured(path: Path, settings: Settings) -> MeasuredPhoto:
    """Read a photograph for the task of the settings. `InputError`, beginning with its name, if it cannot be used."""
    with naming(path):
        sha256 = hashlib.sha256(existing_file(path).read_bytes()).hexdigest()
        return measured(path, sha256, read_photograph(path), settings)


def measured(path: Path, sha256: str, photo: Photograph, settings: Settings) -> MeasuredPhoto:
    """What is at hand of a photograph for the task of the settings."""
    task, notes = TASKS[settings.task], list(photo.notes)
    y = without_gray_copies(photo.x)
    observed, kernel, factor = None, None, 1
    if task.name == "inpaint":
        observed = _observed(photo, settings)
        if settings.mask is None and settings.mask_color is None:
            photo = replace(photo, alpha=None)  # what was transparent because it was missing is there now
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
    sigma, sigma_from, white = _noise(y, settings, notes)
    whole = Whole(y.contiguous(), sigma, factor, kernel, observed, white)
    return MeasuredPhoto(path, sha256, photo, whole, sigma_from, tuple(notes))


def _observed(photo: Photograph, settings: Settings) -> Tensor:
    """Which pixels are known (1, H, W)."""
    transparent = None if photo.alpha is None else photo.alpha[None] < 0.5
    observed = observed_pixels(photo.x, transparent, settings).bool()
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


def _noise(y: Tensor, settings: Settings, notes: list[str]) -> tuple[float, SigmaFrom, bool]:
    """The noise level, within what the prior knows, where it comes from, and whether the noise is white."""
    low, high = settings.photo_prior.levels
    if settings.sigma is not None:
        if settings.sigma > high:
            raise InputError(f"--sigma is {settings.sigma:g}; {settings.photo_prior.name} knows noise up to {high:g}")
        if settings.sigma < low:
            notes.append(f"{settings.photo_prior.name} knows noise from {low:g} on, so {low:g} is used")
        return max(settings.sigma, low), "given", True
    assumed = TASKS[settings.task].sigma
    if assumed is not None:
        return assumed, "assumed", True
    sigma, white, found = automatic_sigma(settings.photo_prior, y[None].to(settings.photo_prior.weights))
    notes += found
    return sigma, "estimated", white
