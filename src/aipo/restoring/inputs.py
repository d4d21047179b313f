"""From file names to measurements: which pictures there are, and what the solver sees of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from aipo.align import Window, lay_window
from aipo.errors import InputError
from aipo.images import SUFFIXES, Opened, color_mask, open_picture, read_numbers
from aipo.operators import Grayscale, Inpainting, LinearOperator
from aipo.operators.kept import keep
from aipo.restoring.settings import Settings
from aipo.sigma import estimate_sigma
from aipo.tasks import FACTORS

__all__ = ["Item", "Listing", "Reader", "list_pictures"]

MADE_HERE = (".restored.png", ".face.png", ".strip.png")  # results, which are no input for another run
SMALLEST_ESTIMATE = 16  # pixels on a side, for the noise to be estimated
ROUNDING = 0.5 / 255  # less noise than this cannot be told from rounding to 8 bits


@dataclass(frozen=True)
class Listing:
    """The pictures that were named or lie in the folders that were; what else lies there; what cannot be read."""

    pictures: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)


def list_pictures(arguments: Sequence[Path], others: Sequence[Path] = ()) -> Listing:
    """Files as they are named; of a folder all that has the suffix of a picture, in the order of names.

    Folders in folders, hidden files, earlier results and `others` (a mask may lie beside its pictures) are left out.
    """
    listing = Listing()
    used, seen = {os.path.realpath(path) for path in others}, set(arguments)
    for argument in dict.fromkeys(arguments):  # named twice is restored once
        if not os.path.isdir(argument):
            listing.pictures.append(argument)
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
            and not path.name.endswith(MADE_HERE)
            and os.path.realpath(path) not in used
        ]
        listing.pictures.extend(path for path in found if path not in seen)
        seen.update(found)
        listing.skipped.extend(path for path in names if path not in seen)
        if not found:
            kinds = ", ".join(SUFFIXES)
            listing.failed.append((argument, f"{argument}: no pictures in this folder; they end in {kinds}"))
    return listing


@dataclass(frozen=True)
class Item:
    """One picture, ready to be solved.

    Attributes:
        path: where it came from.
        sha256: of the file.
        y: the measurement, without the batch.
        operator: how it was measured; pictures with the same object are solved together.
        sigma: its noise, in the units of y.
        sigma_from: "given", "estimated" or "assumed" (the task's default).
        noise_gain: what fitting did to the noise; it is contained in sigma. An assumed sigma stands for more than
            noise, and stays.
        view: the measurement as a picture (3, H, W), for people.
        window: where it was cut from a larger picture, if it was.
        observed: what of that picture is not to be changed, because it was not missing (1, H, W) of bool; None if all
            of it is to be restored.
        notes: what was changed or should be known.
    """

    path: Path
    sha256: str
    y: Tensor
    operator: LinearOperator
    sigma: float
    sigma_from: str
    view: Tensor
    noise_gain: float = 1.0
    window: Window | None = None
    observed: Tensor | None = None
    notes: tuple[str, ...] = ()


class Reader:
    """Reads pictures for one run, and gives those that were measured alike the same operator."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.shape = settings.loaded.image_shape
        self._operators: dict[object, LinearOperator] = {}

    def read(self, path: Path) -> Item:
        """One picture. `InputError`, beginning with its name, if it cannot be used."""
        try:
            item = self._sensed(path) if self.settings.task == "sense" else self._picture(path)
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
        return replace(item, sha256=hashlib.sha256(path.read_bytes()).hexdigest())

    def _operator(self, **known: int) -> LinearOperator:
        key = tuple(known.items())
        if key not in self._operators:
            self._operators[key] = self.settings.operator(**known)
        return self._operators[key]

    def _item(self, path: Path, y: Tensor, operator: LinearOperator, view: Tensor, notes: tuple[str, ...] = ()) -> Item:
        """An item with the noise that was given or is assumed; an estimate is filled in later."""
        given = self.settings.sigma
        sigma = self.settings.about.sigma if given is None else given
        source = "given" if given is not None else "assumed" if sigma is not None else "estimated"
        return Item(path, "", y, operator, sigma or 0.0, source, view, notes=notes)

    def _sensed(self, path: Path) -> Item:
        y = read_numbers(path, 1).float()
        rows = self.settings.files["matrix"].shape[0] if self.settings.matrix else None
        if rows is not None and rows != len(y):
            raise InputError(f"holds {len(y)} measurements, but the matrix has {rows} rows; they must agree")
        operator = self._operator(measurements=len(y))
        view = operator.A_dagger(y[None])[0].clamp(0, 1)
        return self._item(path, y, operator, view)

    def _picture(self, path: Path) -> Item:
        opened = open_picture(path, noisy=True)
        if opened.clear is not None and (self.settings.task != "inpaint" or self._has_mask):
            raise InputError("is transparent in places; put it on a background, or save it without alpha channel")
        if self.settings.task == "superres":
            return self._small(path, opened)
        mask = self._mask(opened)
        window = self._window(opened)
        notes = opened.notes + (window.notes if window else ())
        x, shown, gain = opened.x, None, 1.0
        if window:
            gain = window.noise_gain(opened.x)
            x = window.cut(opened.x)
        # The other windows lie in the picture, though at its very edge their kernel may reach a little beyond.
        if window and self.settings.fit == "align":
            shown = window.inside(opened.x).float()
            if not shown.any():
                raise InputError("the face lies beyond the border of the picture; crop it by hand")
        observed = None
        if window and mask is not None:
            observed = mask.bool()
            if (~observed & (window.paste(torch.zeros_like(mask), torch.ones(1, *window.size)) < 0.5)).any():
                notes = (*notes, "what is missing elsewhere in the picture is left as it is")
            mask = (window.cut(mask) > 0.999).float()
        item = self._full_size(path, x, mask, shown, notes)
        if item.sigma_from == "estimated":
            item = replace(item, sigma=max(gain * _estimate(opened.x, window), ROUNDING), noise_gain=gain)
        elif item.sigma_from == "given":
            item = replace(item, sigma=gain * item.sigma, noise_gain=gain)
        if item.noise_gain != 1:
            item = replace(item, notes=(*item.notes, f"fitting multiplied the noise by {gain:.2f}"))
        return replace(item, window=window, observed=observed)

    def _small(self, path: Path, opened: Opened) -> Item:
        """A picture to be enlarged, to exactly the prior's size."""
        _, height, width = self.shape
        factors = FACTORS if self.settings.factor is None else (self.settings.factor,)
        for factor in factors:
            if tuple(opened.x.shape[1:]) == (height // factor, width // factor):
                operator, x = self._operator(factor=factor), opened.x.expand(3, -1, -1).contiguous()
                return self._item(path, x, operator, operator.A_dagger(x[None])[0], opened.notes)
        sizes = " or ".join(f"{width // f}x{height // f} (factor {f})" for f in factors)
        raise InputError(f"is {_size(opened.x)} pixels; to be enlarged to {width}x{height} it must be {sizes}")

    @property
    def _has_mask(self) -> bool:
        return self.settings.mask is not None or self.settings.mask_color is not None

    def _mask(self, opened: Opened) -> Tensor | None:
        """What is observed of the picture as it is in its file (1, H, W); None if not to be inpainted."""
        if self.settings.task != "inpaint":
            return None
        if self.settings.mask_color is not None:
            return color_mask(opened.x, self.settings.mask_color)
        if self.settings.mask is not None:
            mask = self.settings.files["mask"]
            if mask.shape[1:] != opened.x.shape[1:]:
                raise InputError(f"is {_size(opened.x)} pixels, the mask {_size(mask)}; they must have the same size")
            return mask
        if opened.clear is None:
            raise InputError(
                "nothing says what is missing; give --mask, black where pixels are missing, or --mask-color, or make "
                "them transparent"
            )
        if opened.clear.all():
            raise InputError("is transparent everywhere, so nothing is observed")
        return (~opened.clear).float()

    def _window(self, opened: Opened) -> Window | None:
        size = self.shape[1:]
        if self.settings.fit is not None:
            if tuple(opened.x.shape[1:]) == size and self.settings.fit != "align":
                return None
            return lay_window(opened.x.expand(3, -1, -1), size, self.settings.fit)
        if tuple(opened.x.shape[1:]) != size:
            raise InputError(
                f"is {_size(opened.x)} pixels, the prior's pictures are {size[1]}x{size[0]}; choose --fit crop (the "
                "middle), resize (the middle square, scaled) or align (the largest face)"
            )
        return None

    def _full_size(
        self, path: Path, x: Tensor, mask: Tensor | None, shown: Tensor | None, notes: tuple[str, ...]
    ) -> Item:
        """x (1 or 3, H, W) of the prior's size; `shown` is 0 where a window reaches beyond the picture."""
        if self.settings.task == "colorize":
            if len(x) == 3:
                if (x != x[:1]).any():
                    notes = (*notes, "in colour: only its brightness is used")
                x = Grayscale(self.shape).A(x[None])[0]
        else:
            if len(x) == 1:
                notes = (*notes, "grey: taken as R = G = B")
            x = x.expand(3, -1, -1).contiguous()
        if mask is None and (shown is None or shown.all()):
            return self._item(path, x, self._operator(), x.expand(3, -1, -1), notes)
        # What lies beyond the picture is missing, whatever the task.
        observed = torch.ones(1, *self.shape[1:]) if mask is None else mask
        if shown is not None and not shown.all():
            observed = observed * shown
            notes = (*notes, f"{1 - shown.mean():.0%} of what is restored lies beyond the border of the picture")
        if not observed.any():
            raise InputError("nothing is observed where it is to be restored; check the mask")
        view = torch.where(observed > 0, x, 0.5).expand(3, -1, -1)
        return self._item(path, x, self._masked(observed), view, notes)

    def _masked(self, observed: Tensor) -> LinearOperator:
        key = observed.to(torch.bool).numpy().tobytes()
        if key not in self._operators:
            if self.settings.task == "colorize":
                self._operators[key] = cast(LinearOperator, keep(self._operator(), observed))
            else:
                self._operators[key] = Inpainting(observed, self.shape)
        return self._operators[key]


def _estimate(x: Tensor, window: Window | None) -> float:
    """The noise of the picture as it is in its file, near the window if that is large enough."""
    part = x
    if window:
        height, width = window.size
        corners = torch.tensor([(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)], dtype=torch.float64)
        spots = corners @ window.turn.T + window.shift
        (x0, y0), (x1, y1) = spots.amin(0).long().clamp(min=0).tolist(), spots.amax(0).long().clamp(min=0).tolist()
        near = x[:, y0 : y1 + 1, x0 : x1 + 1]
        part = near if min(near.shape[1:]) >= SMALLEST_ESTIMATE else x
    if min(part.shape[1:]) < SMALLEST_ESTIMATE:
        raise InputError("is too small for its noise to be estimated; give --sigma, its standard deviation in 0..1")
    sigma = estimate_sigma(_without_grey_copies(part)[None]).item()
    if not sigma > 0:
        raise InputError("its noise cannot be estimated; give --sigma, its standard deviation in 0..1")
    return sigma


def _without_grey_copies(x: Tensor) -> Tensor:
    """One channel of a picture that is grey but stored as RGB: its colours have no noise to be measured."""
    return x[:1] if len(x) == 3 and torch.equal(x, x[:1].expand_as(x)) else x


def _size(x: Tensor) -> str:
    return f"{x.shape[2]}x{x.shape[1]}"
