"""NAME.strip.png: the measurement and the restorations over lam, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from aipo.images import open_image, png_bytes, tile
from aipo.images.reading import open_picture
from aipo.restore.record import ImageResult, PathPoint, Record, Tile

__all__ = ["make_strip", "read_strip", "strip_shows"]

LENGTH = 9  # restorations of a path, at most; the chosen one comes on top


def make_strip(
    view: Tensor, chosen: ImageResult, x: Tensor, path: Sequence[tuple[PathPoint, Tensor]]
) -> tuple[tuple[Tile, ...], bytes]:
    """The strip as PNG, and what each of its restorations is.

    Arguments:
        view: the measurement as an image (3, H, W).
        chosen, x: the restoration (3, H, W); left out unless it is done.
        path: others, with lam ascending; some are dropped if there are many.
    """
    path = path[:: max(1, math.ceil(len(path) / LENGTH))]
    shown = [(Tile(point.lam, point.chi2, chosen=False), image) for point, image in path]
    if chosen.done and chosen.lam is not None:
        position = sum(point.lam <= chosen.lam for point, _ in path)
        shown.insert(position, (Tile(chosen.lam, chosen.chi2, chosen=True), x))
    images = [view, *(image for _, image in shown)]
    return tuple(what for what, _ in shown), png_bytes(tile([image.cpu() for image in images], len(images), gap=0))


def read_strip(record: Record) -> tuple[Tensor, list[tuple[Tile, Tensor]]]:
    """The measurement (3, H, W) and the restorations, each with what it is."""
    assert record.strip is not None
    strip = open_image(record.strip).x.expand(3, -1, -1)
    measured, *restored = strip.tensor_split(len(record.tiles) + 1, dim=2)
    return measured, list(zip(record.tiles, restored, strict=True))


def strip_shows(strip: Path, restorations: int, one: Path) -> bool:
    """Whether a strip is as wide as the measurement and so many restorations, each as wide as this one."""
    with open_picture(strip) as whole, open_picture(one) as part:
        return whole.width == (restorations + 1) * part.width
