"""Masks: which pixels are observed, from a file of its own or painted into the image."""

from contextlib import suppress
from pathlib import Path

import torch
from PIL import ImageColor
from torch import Tensor
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.images.reading import open_image

__all__ = ["color_mask", "read_mask"]

MASK_TOLERANCE = 32  # levels of 255; JPEG rings by about this much at the edges of a black and white mask
# Distance from the painted color in levels of 255: within the first a pixel has that color; within the second it may be
# the soft rim of a brush, if it touches the color.
COLOR_TOLERANCE, RIM_TOLERANCE = 16, 100


def read_mask(path: str | Path, size: tuple[int, int] | None = None) -> Tensor:
    """Read a mask as a tensor (1, H, W) of 0 and 1: white pixels (1) are observed, black ones (0) missing.

    Args:
        path: A black and white image.
        size: The height and width (H, W) the mask must have; any by default.

    Raises:
        InputError: as for `open_image`, and when a pixel is neither black nor white within 32 levels of
            255 in every channel, or when no pixel is observed.
    """
    opened = open_image(path, size=size)
    if opened.transparent is not None:
        raise InputError(f"{path}: a mask must not be transparent; paint it in black and white")
    pixels = opened.x * 255
    white = (pixels >= 255 - MASK_TOLERANCE).all(0)
    unclear = torch.nonzero(~(white | (pixels <= MASK_TOLERANCE).all(0)))
    if len(unclear):
        row, column = unclear[0].tolist()
        raise InputError(
            f"{path}: {len(unclear)} mask pixels are neither black nor white, the first at row {row}, column "
            f"{column}; convert it with Pillow: image.convert('L').point(lambda v: 255 * (v >= 128))"
        )
    if not white.any():
        raise InputError(f"{path}: the mask is all black, so no pixel would be kept; paint the pixels to keep in white")
    return white.unsqueeze(0).float()


def color_mask(x: Tensor, color: str) -> Tensor:
    """The mask (1, H, W), as in `read_mask`, of an image (3, H, W) whose missing pixels are painted in one color.

    Pixels of that color are missing, and so is the rim where a soft brush has mixed it with the image.

    Args:
        color: six hex digits, with or without #, or a name such as magenta.

    Raises:
        InputError: it is not a color, or no pixel has it, or every pixel has it.
    """
    is_hex = len(color) == 6 and all(c in "0123456789abcdefABCDEF" for c in color)
    rgb: tuple[int, ...] = ()
    with suppress(ValueError, OverflowError):
        rgb = ImageColor.getrgb(f"#{color}" if is_hex else color)[:3]
    if len(rgb) != 3 or not all(0 <= level <= 255 for level in rgb):  # rgb(999,0,0) is read too
        raise InputError(f"{color} is not a color; give six hex digits such as ff00ff, or a name such as magenta")
    distance = (x.expand(3, -1, -1) * 255 - torch.tensor(rgb)[:, None, None]).abs().amax(0, keepdim=True)
    painted = distance <= COLOR_TOLERANCE
    if not painted.any():
        raise InputError(f"no pixel has the color {color}; paint the missing pixels in it, and save as PNG")
    near = F.max_pool2d(painted.float(), 3, 1, 1) > 0
    missing = painted | (near & (distance <= RIM_TOLERANCE))
    if missing.all():
        raise InputError(f"every pixel has the color {color}, so none would be kept; choose another one")
    return (~missing).float()
