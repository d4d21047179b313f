"""A picture file from a stranger: checked before it is decoded, and decoded with little more memory than its pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageOps

from aipo.errors import InputError

__all__ = ["FACES", "MAX_BYTES", "MAX_PIXELS", "PHOTOS", "Limits", "decode", "decoding_memory", "opened"]


@dataclass(frozen=True)
class Limits:
    """What a file may have: so many bytes and pixels, and `deep` if also more than 8 bits per channel."""

    bytes: int
    pixels: int
    deep: bool = False


MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000  # a large photo
FACES = Limits(MAX_BYTES, MAX_PIXELS)  # only a small copy of it is used
PHOTOS = Limits(60_000_000, 24_000_000, deep=True)  # all of its pixels are
LONGEST_SIDE = 1600  # more detail than any face of the priors has
MAX_SCANS = 100  # of a progressive JPEG; cameras write about ten, and each takes time for the whole picture
# What a decoder takes at most; tests/web/test_uploads.py measures it. libjpeg keeps the coefficients of a progressive
# file and libtiff a whole strip; WebP's decoder keeps two frames, and Pillow copies the result twice.
BYTES_PER_PIXEL = {"PNG": 5, "BMP": 5, "JPEG": 12, "TIFF": 13, "WEBP": 18}
TILES = (322, 323)  # TIFF's tags for the width and height of its tiles


def decoding_memory(content: bytes) -> int:
    """Bytes of memory that `decode` takes at most, known from the file's header alone.

    Raises:
        InputError: it is too large, or not a picture.
    """
    with opened(content) as image:
        # A JPEG with several pictures calls itself MPO.
        return image.width * image.height * BYTES_PER_PIXEL.get(image.format or "", BYTES_PER_PIXEL["JPEG"])


def decode(content: bytes) -> tuple[Image.Image, tuple[int, int]]:
    """The picture upright, in RGB, its longest side at most `LONGEST_SIDE`; and its (width, height) in the file.

    Transparent pixels become white.

    Raises:
        InputError: it is too large, damaged, or not a picture.
    """
    with opened(content) as image:
        width, height = image.size
        factor = max(1, max(width, height) // LONGEST_SIDE)
        image.draft("RGB", (max(1, width // factor), max(1, height // factor)))  # of a JPEG, decode no more than that
        small = _reduced(image)
        # After decoding: in a PNG the orientation may come last.
        small.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
        upright = ImageOps.exif_transpose(small)
    turned = (upright.width > upright.height) != (small.width > small.height)
    return upright, (height, width) if turned else (width, height)


@contextmanager
def opened(content: bytes, limits: Limits = FACES) -> Iterator[Image.Image]:
    """The picture, not decoded yet. What goes wrong with it becomes an `InputError`."""
    if len(content) > limits.bytes:
        raise InputError(f"the file has {len(content) / 1e6:.0f} MB; the limit is {limits.bytes / 1e6:.0f} MB")
    try:
        with warnings.catch_warnings():
            # The size is checked below, before anything is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(content), formats=tuple(BYTES_PER_PIXEL))
        with image:
            _check(image, content, limits)
            yield image
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise InputError(_too_large(limits)) from None
    except Exception as error:  # decoders of damaged files raise a dozen unrelated types
        raise InputError("this is not a picture, or it is damaged; give a PNG, JPEG, WebP, BMP or TIFF file") from error


def _check(image: Image.Image, content: bytes, limits: Limits) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        raise InputError(f"the picture is {width}x{height}; {_too_large(limits)}")
    tile_width, tile_height = (getattr(image, "tag_v2", {}).get(tag, 0) for tag in TILES)
    if tile_width * tile_height > max(width * height, 1024**2):  # small pictures may have one tile that is larger
        raise InputError("the picture is stored in tiles larger than itself; save it as PNG")
    if image.mode.startswith(("I", "F")) and not limits.deep:
        raise InputError("the picture has more than 8 bits per channel; save it with 8")
    if image.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MAX_SCANS:
        raise InputError(f"the picture is stored in more than {MAX_SCANS} passes; save it as a plain JPEG or PNG")


def _reduced(image: Image.Image) -> Image.Image:
    """In RGB on white and no longer than `LONGEST_SIDE`, tile by tile: never a second copy at full size."""
    factor = max(1, max(image.size) // LONGEST_SIDE)
    width, height = image.size
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    side = factor * max(1, 1024 // factor)  # so that no average reaches into the next tile
    for top in range(0, height, side):
        for left in range(0, width, side):
            tile = image.crop((left, top, min(left + side, width), min(top + side, height)))
            small.paste(_on_white(tile).reduce(factor), (left // factor, top // factor))
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return small


def _on_white(tile: Image.Image) -> Image.Image:
    if not tile.has_transparency_data:
        return tile.convert("RGB")
    white = Image.new("RGBA", tile.size, "white")
    white.alpha_composite(tile.convert("RGBA"))
    return white.convert("RGB")


def _too_large(limits: Limits) -> str:
    return f"the limit is {limits.pixels / 1e6:.0f} million pixels; make it smaller"
