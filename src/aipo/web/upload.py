"""A picture that a stranger has sent becomes one of the prior's size, and travels on as text.

The page gets it back in that form and sends it along when it is used, so nothing is kept here between the two.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np
import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.images import to_uint8
from aipo.images.windows import Window, place_window
from aipo.web.decode import decode

__all__ = ["WORKSPACE", "pack", "read_upload", "unpack"]

PHOTO = 2  # times the prior's size; a larger image may show more than a face
LONGEST_NOTE = 200  # characters
WORKSPACE = 200_000_000  # bytes that `read_upload` takes at most, beside those of the decoder


def read_upload(content: bytes, size: tuple[int, int]) -> tuple[Tensor, str]:
    """The image (3, H, W) in [0,1], and a sentence that says what was done to it.

    In a photo the largest face is rotated and scaled to where the priors expect it. Otherwise the largest square in the
    middle is scaled to `size` (H, W). Transparent pixels become white.

    Raises:
        InputError: it is too large, damaged, or not an image.
    """
    upright, (width, height) = decode(content)
    x = torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous().float().div_(255)
    wanted, found = f"{size[1]}x{size[0]}", f"Your picture has {width}x{height} pixels;"
    if x.shape[1:] == size:
        unchanged = (height, width) == size
        return x, f"Used as it is: {wanted} pixels." if unchanged else f"{found} it was scaled to {wanted}."
    window = _face(x, size)
    if window:
        return window.cut(x).clamp(0, 1), f"{found} its face was found, set upright and scaled to {wanted}."
    crop = "it" if width == height else "the square in its middle"
    return place_window(x, size, "resize").cut(x).clamp(0, 1), f"{found} {crop} was scaled to {wanted}."


def pack(image: Tensor, note: str) -> dict[str, str]:
    """An image (3, H, W) in [0,1] and its sentence as text: 8 bits for each value, row by row, in base64."""
    levels = to_uint8(image).permute(1, 2, 0).contiguous().numpy()
    return {"picture": base64.b64encode(levels.tobytes()).decode("ascii"), "note": note}


def unpack(sent: object, size: tuple[int, int]) -> tuple[Tensor, str]:
    """The inverse of `pack`, up to rounding, for an image of `size` (H, W).

    Raises:
        InputError: it is something else.
    """
    height, width = size
    picture, note = (sent.get("picture"), sent.get("note")) if isinstance(sent, dict) else (None, None)
    if not isinstance(picture, str) or not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise InputError("no picture has arrived; try again")
    try:
        levels = base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError):
        levels = b""
    if len(levels) != height * width * 3:
        raise InputError("the picture did not arrive complete; try again")
    x = torch.from_numpy(np.frombuffer(levels, np.uint8).copy()).view(height, width, 3)
    return x.permute(2, 0, 1).contiguous().float() / 255, note


def _face(x: Tensor, size: tuple[int, int]) -> Window | None:
    """Where the face is in a photo; None if there is none. An image hardly larger than needed counts as a crop."""
    if min(x.shape[1:]) < PHOTO * max(size):
        return None
    try:
        return place_window(x, size, "align")
    except InputError:
        return None
