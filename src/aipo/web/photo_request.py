"""What a user wants done to a photograph, from what the page sends: checked, and with the mask that was painted."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from aipo.errors import InputError
from aipo.images.photograph import Photograph
from aipo.priors.noise_prior import NoisePrior
from aipo.restore.settings import Settings
from aipo.restore.tasks import TASKS as ALL_TASKS

__all__ = ["MAX_HEADER", "TASKS", "PhotoRequest", "Stroke", "parse_header", "parse_request", "settings_for"]

TASKS = tuple(task.name for task in ALL_TASKS.values() if task.whole)
MAX_HEADER = 2_000_000  # bytes; a stroke has about ten for each of its points
MAX_POINTS = 100_000
LARGEST = 100_000.0  # no coordinate of a picture is near it
WIDEST, LONGEST_MOTION = 20.0, 100.0  # pixels; wider blurs leave nothing to restore, and cost memory
OPTIONS: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "sigma": (int, float),
    "factor": int,
    "blur": (int, float),
    "motion": str,
    "pattern": str,
    "anyway": bool,
}


@dataclass(frozen=True)
class Stroke:
    """One line of the brush, in pixels of the picture: its points (n, 2) as x, y, and whether it erases."""

    points: tuple[tuple[float, float], ...]
    radius: float
    erase: bool = False


@dataclass(frozen=True)
class PhotoRequest:
    """What is to be done.

    Attributes:
        settings: as of `aipo restore`.
        strokes: inpaint: what was painted, in its order.
        look: what the user looks at, x and y as shares of the picture; there it is restored first.
    """

    settings: Settings
    strokes: tuple[Stroke, ...] = ()
    look: tuple[float, float] = (0.5, 0.5)

    def with_holes(self, photo: Photograph) -> Photograph:
        """The photograph, transparent where it is to be filled in."""
        if self.settings.task != "inpaint":
            return photo
        painted = painted_pixels(self.strokes, (photo.x.shape[1], photo.x.shape[2]))
        if not painted.any():
            if photo.alpha is None:
                raise InputError("nothing is painted yet: paint over what is missing, then press Restore")
            return photo
        known = torch.ones(photo.x.shape[1:]) if photo.alpha is None else photo.alpha
        return replace(photo, alpha=torch.where(painted, 0.0, known))


def painted_pixels(strokes: tuple[Stroke, ...], size: tuple[int, int]) -> Tensor:
    """Which pixels (H, W) of a picture are painted over."""
    canvas = Image.new("1", (size[1], size[0]))
    draw = ImageDraw.Draw(canvas)
    for stroke in strokes:
        color, r = 0 if stroke.erase else 1, stroke.radius
        if len(stroke.points) > 1:
            draw.line([(x, y) for x, y in stroke.points], fill=color, width=max(1, round(2 * r)))
        for x, y in stroke.points:  # round ends and corners; the smallest brush is a pixel
            if r < 1:
                draw.point((int(x), int(y)), fill=color)
            else:
                draw.ellipse((x - r, y - r, x + r, y + r), fill=color)
    return torch.from_numpy(np.array(canvas))


def settings_for(prior: NoisePrior, **options: Any) -> Settings:
    """Settings with a prior that is loaded already."""
    settings = Settings(prior=prior.name, **options)
    vars(settings)["loaded_prior"] = prior  # which is a cached property
    settings.load()
    return settings


def parse_header(line: bytes) -> dict[str, Any]:
    """The first line of what the page sends: named values in JSON."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise InputError("this is not what the page sends; reload it")
    return header


def parse_request(header: dict[str, Any], prior: NoisePrior) -> PhotoRequest:
    """What the header of a restoration asks for.

    Raises:
        InputError: the page would not send this, or the options do not go together.
    """
    sent = header.get("options")
    options = {name: value for name, value in sent.items() if value is not None} if isinstance(sent, dict) else {}
    for name, value in options.items():
        kind = OPTIONS.get(name)
        if kind is None or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{name} is nothing that the page can say; reload it")
        if isinstance(value, str) and len(value) > 40:
            raise InputError(f"{name} is too long; reload the page")
    if options.get("task") not in TASKS:
        raise InputError(f"unknown task; choose from {', '.join(TASKS)}")
    settings = settings_for(prior, **options)
    if (settings.blur or 0) > WIDEST or (settings.straight_motion or (0,))[0] > LONGEST_MOTION:
        raise InputError("the blur is too wide for anything to be restored")
    return PhotoRequest(settings, _strokes(header.get("strokes")), _look(header.get("look")))


def _strokes(sent: object) -> tuple[Stroke, ...]:
    """Each is [radius, erase, x, y, x, y, ...]."""
    if sent is None:
        return ()
    if not isinstance(sent, list) or sum(len(s) if isinstance(s, list) else 1 for s in sent) > 2 * MAX_POINTS:
        raise InputError("too much was painted for one mask; give it to aipo restore as a file")
    strokes = []
    for stroke in sent:
        if not isinstance(stroke, list) or len(stroke) < 4 or len(stroke) % 2 or not all(map(_is_number, stroke)):
            raise InputError("this is not how the page paints; reload it")
        radius, erase, *values = stroke
        strokes.append(Stroke(tuple(zip(values[::2], values[1::2], strict=True)), min(abs(radius), 500), bool(erase)))
    return tuple(strokes)


def _look(sent: object) -> tuple[float, float]:
    if not (isinstance(sent, list) and len(sent) == 2 and all(map(_is_number, sent))):
        return 0.5, 0.5
    x, y = (min(max(float(value), 0.0), 1.0) for value in sent)
    return x, y


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < LARGEST
