"""A picture that came from a stranger, made to fit: checked before it is decoded, cropped and scaled after."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from aipo.align import Window, lay_window
from aipo.errors import InputError

__all__ = ["MAX_BYTES", "MAX_PIXELS", "read_upload", "sent_bytes"]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000  # a large photograph; decoding it takes 160 MB
LONGEST_SIDE = 1600  # more detail than any face of the priors has
PHOTOGRAPH = 2  # times the prior's size


def sent_bytes(sent: object) -> bytes:
    """The content of a file as the page sends it, {"bytes": its length, "data": base64}: never a name or a path.

    Of a file that is too large the page only tells the length.
    """
    if not isinstance(sent, dict):
        raise InputError("nothing was sent; try again")
    length, data = sent.get("bytes"), sent.get("data")
    if isinstance(length, int) and length > MAX_BYTES:
        raise InputError(_too_many(length))
    try:
        return base64.b64decode(data, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, ValueError):
        raise InputError("the file did not arrive whole; try again") from None


def read_upload(content: bytes, size: tuple[int, int]) -> tuple[Tensor, str]:
    """The picture (3, H, W) in [0,1], and a sentence that says what was done to it.

    In a photograph the face is looked for and turned and scaled to where the priors expect it; otherwise the largest
    square in the middle is scaled to `size` (H, W). Transparent pixels are laid on white.

    Raises:
        InputError: it is too large, damaged, or no picture.
    """
    if len(content) > MAX_BYTES:
        raise InputError(_too_many(len(content)))
    try:
        with warnings.catch_warnings():
            # The size is checked below, before anything is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                return _fitted(image, size)
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise InputError(_too_large()) from None
    except Exception as error:  # decoders of damaged files raise a dozen unrelated types
        raise InputError("this is no picture, or a damaged one; give a PNG, JPEG, WebP, BMP or TIFF file") from error


def _fitted(image: Image.Image, size: tuple[int, int]) -> tuple[Tensor, str]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InputError(f"the picture is {width}x{height}; {_too_large()}")
    if image.mode.startswith(("I", "F")):
        raise InputError("the picture has more than 8 bits per pixel; save it with 8")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    upright = ImageOps.exif_transpose(image).convert("RGB")
    width, height = upright.size
    wanted, found = f"{size[1]}x{size[0]}", f"Your picture has {width}x{height} pixels;"
    upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    x = torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous().float() / 255
    if x.shape[1:] == size:
        return x, f"Taken as it is: {wanted} pixels." if (
            height,
            width,
        ) == size else f"{found} it was scaled to {wanted}."
    window = _face(x, size)
    if window:
        return window.cut(x).clamp(0, 1), f"{found} its face was found, set upright and scaled to {wanted}."
    crop = "it" if width == height else "the square in its middle"
    return lay_window(x, size, "resize").cut(x).clamp(0, 1), f"{found} {crop} was scaled to {wanted}."


def _face(x: Tensor, size: tuple[int, int]) -> Window | None:
    """Where the face is in a photograph. A picture hardly larger than needed is taken to be a crop already."""
    if min(x.shape[1:]) < PHOTOGRAPH * max(size):
        return None
    try:
        return lay_window(x, size, "align")
    except InputError:
        return None


def _too_many(length: int) -> str:
    return f"the file has {length / 1e6:.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are taken"


def _too_large() -> str:
    return f"at most {MAX_PIXELS / 1e6:.0f} million pixels are taken; make it smaller"
