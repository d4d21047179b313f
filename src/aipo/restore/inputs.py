"""From a file to the measurement that the solver sees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.choose.sigma import SMALLEST, estimate_sigma
from aipo.errors import InputError
from aipo.images import OpenedImage, color_mask, open_image, read_numbers
from aipo.images.faces import find_faces
from aipo.images.windows import Window, place_window
from aipo.operators import Grayscale, Inpainting, LinearOperator
from aipo.restore.record import SigmaFrom
from aipo.restore.settings import Settings
from aipo.restore.tasks import FACTORS, TASKS

__all__ = ["MeasuredImage", "Reader", "naming", "observed_pixels", "without_gray_copies"]

ROUNDING = 0.5 / 255  # less noise than this cannot be told from rounding to 8 bits
ROOM = 32  # pixels around a picture that is all face, without which it is not found


@dataclass(frozen=True)
class MeasuredImage:
    """One image, ready to be solved.

    Attributes:
        path: its file.
        sha256: of the file.
        y: the measurement, without the batch.
        operator: how it was measured; images with the same object are solved together.
        sigma: its noise, in the units of y.
        sigma_from: "given", "estimated" or "assumed" (the task's default).
        noise_gain: the factor by which fitting changed the noise; contained in sigma. An assumed sigma stands for more
            than noise, and stays.
        view: the measurement as an image (3, H, W), for people.
        window: where it was cut from a larger image, if it was.
        observed: which pixels of that larger image must stay because they are not missing, (1, H, W) of bool; None if
            all of it is to be restored.
        notes: what was changed, or should be known.
    """

    path: Path
    sha256: str
    y: Tensor
    operator: LinearOperator
    sigma: float
    sigma_from: SigmaFrom
    view: Tensor
    noise_gain: float = 1.0
    window: Window | None = None
    observed: Tensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """What is restored of an image: x (1 or 3, H, W) of the prior's size; `observed` (1, H, W) is None if all is."""

    x: Tensor
    observed: Tensor | None
    notes: tuple[str, ...] = ()


class Reader:
    """Reads the images of one run. Those with the same operator get the same object, so they can be solved together."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.task = TASKS[settings.task]
        self.shape = settings.face_prior.image_shape
        self._operators: dict[object, LinearOperator] = {}

    def read(self, path: Path) -> MeasuredImage:
        """One image. `InputError`, beginning with its name, if it cannot be used."""
        with naming(path):
            if self.task.input == "vector":
                return self._read_vector(path)
            opened = open_image(path, noisy=True)
            if opened.transparent is not None and (self.task.name != "inpaint" or self._has_mask):
                raise InputError("is partly transparent; put it on a background, or save it without an alpha channel")
            return self._read_small(path, opened) if self.task.input == "small image" else self._read(path, opened)

    def _read_vector(self, path: Path) -> MeasuredImage:
        y = read_numbers(path, 1).float()
        rows = self.settings.files["matrix"].shape[0] if self.settings.matrix else None
        if rows is not None and rows != len(y):
            raise InputError(f"contains {len(y)} measurements, but the matrix has {rows} rows; they must agree")
        operator = self._operator(measurements=len(y))
        sigma, sigma_from, _ = self._noise(y, None)
        view = operator.A_dagger(y[None])[0].clamp(0, 1)
        return MeasuredImage(path, _sha256(path), y, operator, sigma, sigma_from, view)

    def _read_small(self, path: Path, opened: OpenedImage) -> MeasuredImage:
        """An image to be enlarged, to exactly the prior's size."""
        _, height, width = self.shape
        possible = [factor for factor in FACTORS if height % factor == width % factor == 0]
        factors = possible if self.settings.factor is None else [self.settings.factor]
        for factor in factors:
            if tuple(opened.x.shape[1:]) == (height // factor, width // factor):
                operator, y = self._operator(factor=factor), opened.x.expand(3, -1, -1).contiguous()
                sigma, sigma_from, _ = self._noise(y, None)
                view = operator.A_dagger(y[None])[0]
                return MeasuredImage(path, _sha256(path), y, operator, sigma, sigma_from, view, notes=opened.notes)
        sizes = " or ".join(f"{width // f}x{height // f} (factor {f})" for f in factors)
        raise InputError(f"is {_size(opened.x)} pixels; to be enlarged to {width}x{height} it must be {sizes}")

    def _read(self, path: Path, opened: OpenedImage) -> MeasuredImage:
        """An image of the prior's size, or one from which a part of that size is cut."""
        mask = self._mask(opened)
        window = self._window(opened)
        part = _Part(opened.x, mask) if window is None else self._cut(opened, mask, window)
        if self.task.name == "colorize":
            self._check_colorless(part.x)
        y, channel_notes = self._with_channels(part.x)
        operator, view = self._measured(y, part.observed)
        sigma, sigma_from, gain = self._noise(opened.x, window)
        notes = (*opened.notes, *part.notes, *channel_notes)
        if gain != 1:
            notes = (*notes, f"fitting multiplied the noise by {gain:.2f}")
        return MeasuredImage(
            path=path,
            sha256=_sha256(path),
            y=y,
            operator=operator,
            sigma=sigma,
            sigma_from=sigma_from,
            view=view,
            noise_gain=gain,
            window=window,
            observed=mask.bool() if window and mask is not None else None,
            notes=notes,
        )

    @property
    def _has_mask(self) -> bool:
        return self.settings.mask is not None or self.settings.mask_color is not None

    def _mask(self, opened: OpenedImage) -> Tensor | None:
        """Which pixels of the image in its file are observed (1, H, W); None unless it is to be inpainted."""
        if self.task.name != "inpaint":
            return None
        return observed_pixels(opened.x, opened.transparent, self.settings)

    def _window(self, opened: OpenedImage) -> Window | None:
        """Where to cut a part of the prior's size; None if the image has that size."""
        size = self.shape[1:]
        if self.settings.fit is not None:
            if tuple(opened.x.shape[1:]) == size and self.settings.fit != "align":
                return None
            return place_window(opened.x.expand(3, -1, -1), size, self.settings.fit)
        if tuple(opened.x.shape[1:]) != size:
            raise InputError(
                f"is {_size(opened.x)} pixels, but the prior needs {size[1]}x{size[0]}; {self._ways(opened)}"
            )
        return None

    def _ways(self, opened: OpenedImage) -> str:
        """What to do with an image of another size than the prior's."""
        if self.task.name != "colorize":
            return (
                "choose --fit crop (the middle), resize (the middle square, scaled) or align (the largest face), or "
                "with --prior a prior for photographs, which restores all of it"
            )
        if find_faces(opened.x.expand(3, -1, -1)):
            return "--fit align colors the largest face"
        return "it knows the colors of faces, and none was found here"

    def _check_colorless(self, part: Tensor) -> None:
        """Ask back before something is colored that has colors, or that the prior does not know."""
        if self.settings.anyway:
            return
        if len(part) == 3 and (part != part[:1]).any():
            raise InputError("is in color already; --anyway takes its brightness, and colors that anew")
        around = F.pad(part[:1].expand(3, -1, -1)[None], (ROOM,) * 4, "replicate")[0]
        if self.settings.fit != "align" and not find_faces(around):
            raise InputError(
                f"no face was found in it, and {self.settings.face_prior.name} knows the colors of faces; --anyway "
                "colors it all the same"
            )

    def _cut(self, opened: OpenedImage, mask: Tensor | None, window: Window) -> _Part:
        observed, notes = None, window.notes
        if mask is not None:
            outside = window.paste(torch.zeros_like(mask), torch.ones(1, *window.size)) < 0.5
            if (~mask.bool() & outside).any():
                notes = (*notes, "missing pixels elsewhere in the picture stay as they are")
            observed = (window.cut(mask) > 0.999).float()
        # The other windows lie in the image, though at its very edge their kernel may reach a little beyond.
        if self.settings.fit == "align":
            inside = window.inside(opened.x).float()
            if not inside.any():
                raise InputError("the face lies beyond the border of the picture; crop it by hand")
            if not inside.all():
                # What lies beyond the image is missing, whatever the task.
                observed = inside if observed is None else observed * inside
                notes = (*notes, f"{1 - inside.mean():.0%} of the restored part lies beyond the border of the picture")
        return _Part(window.cut(opened.x), observed, notes)

    def _with_channels(self, x: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """x (1 or 3, H, W) with the channels that the task's measurement has, and notes about it."""
        if self.task.name != "colorize":
            return x.expand(3, -1, -1).contiguous(), ("gray: taken as R = G = B",) if len(x) == 1 else ()
        if len(x) == 1:
            return x, ()
        notes = ("in color: only its brightness is used",) if (x != x[:1]).any() else ()
        return Grayscale(self.shape).A(x[None])[0], notes

    def _measured(self, y: Tensor, observed: Tensor | None) -> tuple[LinearOperator, Tensor]:
        """The operator of a measurement of the prior's size, and how the measurement looks (3, H, W)."""
        if observed is None:
            return self._operator(), y.expand(3, -1, -1)
        if not observed.any():
            raise InputError("every pixel that is to be restored is missing; check the mask")
        return self._masked(observed), torch.where(observed > 0, y, 0.5).expand(3, -1, -1)

    def _operator(self, **known: int) -> LinearOperator:
        key = tuple(known.items())
        if key not in self._operators:
            self._operators[key] = self.settings.operator(**known)
        return self._operators[key]

    def _masked(self, observed: Tensor) -> LinearOperator:
        key = observed.to(torch.bool).numpy().tobytes()
        if key not in self._operators:
            if self.task.name == "colorize":
                self._operators[key] = self._operator().subset(observed)
            else:
                self._operators[key] = Inpainting(observed, self.shape)
        return self._operators[key]

    def _noise(self, x: Tensor, window: Window | None) -> tuple[float, SigmaFrom, float]:
        """sigma of the measurement, where it comes from, and the factor of the window that it contains."""
        if self.settings.sigma is None and self.task.sigma is not None:
            return self.task.sigma, "assumed", 1.0
        gain = 1.0 if window is None else window.noise_gain(x)
        if self.settings.sigma is not None:
            return gain * self.settings.sigma, "given", gain
        return max(gain * _estimate(x, window), ROUNDING), "estimated", gain


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What goes wrong with a file comes out as an `InputError` that begins with its name."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    except OSError as error:  # gone, or unreadable, since it was first looked at
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the file") from None


def observed_pixels(x: Tensor, transparent: Tensor | None, settings: Settings) -> Tensor:
    """Which pixels of an image (C, H, W) to be inpainted are known: (1, H, W) of 0 and 1."""
    if settings.mask_color is not None:
        return color_mask(x, settings.mask_color)
    if settings.mask is not None:
        mask = settings.files["mask"]
        if mask.shape[1:] != x.shape[1:]:
            raise InputError(f"is {_size(x)} pixels, the mask {_size(mask)}; they must have the same size")
        return mask
    if transparent is None:
        raise InputError(
            "it is not clear which pixels are missing; give --mask, black where they are, or --mask-color, or make "
            "them transparent"
        )
    if transparent.all():
        raise InputError("is transparent everywhere, so there is nothing to go by; check the picture")
    return (~transparent).float()


def _estimate(x: Tensor, window: Window | None) -> float:
    """The noise of the image as it is in its file, near the window if that is large enough."""
    part = x
    if window:
        height, width = window.size
        corners = torch.tensor([(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)], dtype=torch.float64)
        spots = window.on_image(corners)
        (x0, y0), (x1, y1) = spots.amin(0).long().clamp(min=0).tolist(), spots.amax(0).long().clamp(min=0).tolist()
        near = x[:, y0 : y1 + 1, x0 : x1 + 1]
        part = near if min(near.shape[1:]) >= SMALLEST else x
    if min(part.shape[1:]) < SMALLEST:
        raise InputError("is too small for its noise to be estimated; give --sigma, its standard deviation in 0..1")
    sigma = estimate_sigma(without_gray_copies(part)[None]).item()
    if not sigma > 0:
        raise InputError("its noise cannot be estimated; give --sigma, its standard deviation in 0..1")
    return sigma


def without_gray_copies(x: Tensor) -> Tensor:
    """One channel of an image that is gray but stored as RGB: its colors have no noise to be measured."""
    return x[:1] if len(x) == 3 and torch.equal(x, x[:1].expand_as(x)) else x


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _size(x: Tensor) -> str:
    return f"{x.shape[2]}x{x.shape[1]}"
