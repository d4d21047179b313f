"""Image files and arrays to tensors.

What a file may be, and how it is read:

    8 bits      PNG, JPEG, WebP, BMP, TIFF or AVIF; levels divided by 255. A camera's orientation tag is obeyed.
    16 bits     gray: divided by 65535. Color: the upper 8 bits, which is what Pillow reads, with a note.
    10, 12 bits AVIF: read as 8 bits.
    gray        one channel; where a color image is asked for, R = G = B.
    palette     its colors.
    alpha       an opaque channel is dropped. Transparent pixels have no color of their own: for inpainting they are
                missing, in any other task the image is refused.
    pages       several frames or pages are refused, except that a camera's second image in a JPEG (MPO) is ignored.
    .npy        (H, W), (H, W, C) or (C, H, W) with C = 1 or 3, of uint8, uint16 or floats on the scale [0,1].
    others      CMYK, Lab, 32-bit and float images are refused: the file does not say which colors they mean.

Everything else is refused with a line that says how to fix it. Whatever is changed leaves a note.
"""

import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from aipo.errors import InputError

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "OpenedImage",
    "existing_file",
    "open_image",
    "open_picture",
    "read_image",
    "read_kernel",
    "read_numbers",
]

# The only ones that are ever decoded. Pillow knows many more, and for one of them it starts another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "AVIF")  # an MPO comes as a JPEG
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".npy")
MAX_PIXELS = 50_000_000
LEVELS = 2 * 255  # above this with any noise, values are not on a scale of 0..255

_quiet = threading.Lock()  # Python's list of warnings to ignore is one for all threads


@dataclass(frozen=True)
class OpenedImage:
    """An image as it is in its file.

    Attributes:
        x: (3, H, W), or (1, H, W) if it is gray; float32 in [0,1].
        transparent: (1, H, W) of bool, True where a pixel is more transparent than opaque; None if all are opaque.
        notes: what was changed on the way in, for people.
    """

    x: Tensor
    transparent: Tensor | None = None
    notes: tuple[str, ...] = ()


def open_image(path: str | Path, noisy: bool = False, size: tuple[int, ...] | None = None) -> OpenedImage:
    """Read an image of any size, or of one size (H, W).

    Args:
        path: See the top of this module.
        noisy: Whether floats in a `.npy` file may lie a little beyond [0,1], as noise makes them.
        size: The height and width (H, W) the image must have; any by default.

    Raises:
        InputError: the file is missing, damaged, too large or of another kind, or has values out of range.
    """
    path = existing_file(path)
    if path.suffix.lower() == ".npy":
        return _read_array(path, noisy, size)
    with open_picture(path) as image:
        _check_header(path, image, size)
        notes = _notes(image)
        upright = ImageOps.exif_transpose(image)
        opened = _converted(upright, notes)
    _check_size(path, tuple(opened.x.shape[1:]), size)
    return opened


@contextmanager
def open_picture(path: str | Path, max_pixels: int = MAX_PIXELS) -> Iterator[ImageFile.ImageFile]:
    """Open a picture file of one of `FORMATS`, for a `with` block. Its pixels are decoded when they are first used.

    The size is known and checked before that, and no other program is ever started. Pillow's own limit, 179 million
    pixels, holds too. Errors of the decoder inside the block come out as `InputError`. Works in several threads.

    Raises:
        InputError: the file is missing, not a plain file, damaged, of another format or too large.
    """
    path = existing_file(path)
    try:
        with _quiet, warnings.catch_warnings():
            # Nothing is decoded before the size is checked below, and that check says what to do.
            warnings.simplefilter("ignore")
            image = Image.open(path, formats=FORMATS)
        with image:
            width, height = image.size
            if width * height > max_pixels:
                raise InputError(
                    f"{path}: {width}x{height} pixels are too many, the limit is {max_pixels // 1_000_000} million; "
                    "make it smaller in an image editor"
                )
            yield image
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: the picture is much too large; make it smaller in an image editor") from error
    except Exception as error:  # decoders of damaged files raise a dozen unrelated types
        raise InputError(
            f"{path}: damaged, or not a PNG, JPEG, WebP, BMP, TIFF or AVIF picture; "
            "open it in an image editor and save it as PNG"
        ) from error


def read_image(path: str | Path, shape: tuple[int, int, int] = (3, 64, 64)) -> Tensor:
    """Read an opaque image of the shape (3, H, W), float32 in [0,1]; a gray one gets R = G = B.

    Raises:
        InputError: as for `open_image`, and when it has another size or is transparent somewhere.
    """
    opened = open_image(path, size=shape[1:])
    if opened.transparent is not None:
        raise InputError(f"{path}: is partly transparent; put it on a background, or save it without an alpha channel")
    return opened.x.expand(3, -1, -1).contiguous()


def read_numbers(path: str | Path, dimensions: int) -> Tensor:
    """Read a `.npy` array of finite numbers with this many dimensions, as float64.

    Raises:
        InputError: it cannot be read, or is something else.
    """
    path = existing_file(path)
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: is not a .npy array; write it with numpy.save")
    array = _mapped(path)
    if array.ndim != dimensions or array.dtype.kind not in "fiu" or not array.size:
        what = {1: "a vector", 2: "a matrix"}[dimensions]
        raise InputError(f"{path}: contains {array.dtype} of shape {array.shape}; give {what} of real numbers")
    if array.size > 4 * MAX_PIXELS:
        raise InputError(f"{path}: {array.size} numbers are too many; the limit is {4 * MAX_PIXELS}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float64)
        # Solvers compute in float32, where larger numbers are infinite too.
        if not np.isfinite(values.astype(np.float32)).all():
            raise InputError(f"{path}: the array has NaN or infinite values, or some beyond 3e38; replace them")
    return torch.from_numpy(values)


def read_kernel(path: str | Path) -> Tensor:
    """Read a blur kernel (kh, kw): a `.npy` array, or a gray image of it.

    Raises:
        InputError: it cannot be read, is in color, or its values do not add up to more than 0.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        kernel = read_numbers(path, 2)
    else:
        opened = open_image(path)
        if opened.transparent is not None or (opened.x != opened.x[:1]).any():
            raise InputError(f"{path}: a picture of a kernel must be gray and opaque; save it so, or as a .npy array")
        kernel = opened.x[0].double()
    if not kernel.sum() > 0:
        raise InputError(f"{path}: the kernel's values add up to 0 or less; their sum must be positive")
    return kernel


def existing_file(path: str | Path) -> Path:
    """The path of a plain file that can be read: reading a folder fails, and reading a pipe may never end.

    Raises:
        InputError: it is missing, something else, or may not be read.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise InputError(f"{path}: permission denied; change the permissions of its folder") from None
    except (OSError, ValueError):  # ValueError: a name with a null character
        raise InputError(f"{path}: no such file; check the name") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder; give the name of a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is a pipe or a device; save the picture to a file first")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: permission denied; change its permissions")
    return path


def _check_header(path: Path, image: ImageFile.ImageFile, size: tuple[int, ...] | None) -> None:
    width, height = image.size
    if size and (width, height) != tuple(size):  # EXIF may turn it by 90 degrees
        _check_size(path, (height, width), size)
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise InputError(f"{path}: contains {frames} pictures (frames or pages); save one of them as PNG")
    if not (image.mode in ("1", "L", "LA", "RGB", "RGBA", "P", "PA") or image.mode.startswith("I;16")):
        kind = {"I": "32-bit", "F": "floating-point"}.get(image.mode, image.mode)
        raise InputError(f"{path}: is a {kind} picture; save it as RGB or gray with 8 or 16 bits, or as .npy")


def _notes(image: ImageFile.ImageFile) -> list[str]:
    notes = []
    # Pillow reduces 16-bit color to 8 bits without a word; only the decoder's arguments show it.
    if not image.mode.startswith("I;16") and any(";16" in str(block.args) for block in image.tile):
        notes.append("16 bits per channel: only the upper 8 are used")
    if getattr(image, "n_frames", 1) > 1:
        notes.append("several pictures in the file: the first is used")
    return notes


def _converted(image: Image.Image, notes: list[str]) -> OpenedImage:
    gray = image.mode in ("1", "L", "LA") or image.mode.startswith("I;16")
    transparent = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = np.asarray(image)[..., 3]
        if (alpha == 255).all():
            notes.append("opaque alpha channel: dropped")
        else:
            transparent = torch.from_numpy(alpha < 128)[None]
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.float32) / 65535
    else:
        pixels = np.asarray(image.convert("L" if gray and transparent is None else "RGB")).astype(np.float32) / 255
    x = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
    return OpenedImage((x[:1] if gray else x).contiguous(), transparent, tuple(notes))


def _check_size(path: Path, found: tuple[int, ...], size: tuple[int, ...] | None) -> None:
    if size is not None and tuple(found) != tuple(size):
        raise InputError(
            f"{path}: the picture is {found[1]}x{found[0]} pixels (width x height), expected {size[1]}x{size[0]}; "
            f"crop and resize it with Pillow: image.crop(box).resize(({size[1]}, {size[0]}))"
        )


def _mapped(path: Path) -> np.ndarray:
    try:
        # Mapped, so that a header that promises terabytes costs nothing.
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # bad magic, header, length or pickled objects, each with its own type
        raise InputError(f"{path}: not a readable .npy array of numbers; write it with numpy.save") from error


def _read_array(path: Path, noisy: bool, size: tuple[int, ...] | None) -> OpenedImage:
    array = _mapped(path)
    found = array.shape
    if len(found) == 2:
        array = array[None]
    elif len(found) == 3 and found[2] in (1, 3):
        array = array.transpose(2, 0, 1)
    elif not (len(found) == 3 and found[0] in (1, 3)):
        raise InputError(f"{path}: the array has shape {found}; a picture has (H, W), (H, W, 3) or (3, H, W)")
    _check_size(path, array.shape[1:], size)
    if not array.size or array.size > 3 * MAX_PIXELS:
        raise InputError(
            f"{path}: the array has shape {found}; it must have 1 to {MAX_PIXELS // 1_000_000} million pixels"
        )
    scale = {"uint8": 255, "uint16": 65535}.get(array.dtype.name, 1)
    if scale == 1 and array.dtype.kind != "f":
        raise InputError(f"{path}: the array has type {array.dtype}; use uint8, uint16, or floats in [0,1]")
    if not np.isfinite(array).all():
        raise InputError(f"{path}: the array has NaN or infinite values; replace them")
    with np.errstate(over="ignore"):  # what is infinite as float32 is refused below, with its range
        values = array.astype(np.float32) / np.float32(scale)
    low, high = float(values.min()), float(values.max())
    # Noise takes some values beyond the ends. If it is a third of them, or they go far below 0 but never above 1, the
    # scale is another one, such as [-1,1].
    beyond = ((values < 0) | (values > 1)).mean()
    as_noise = -1 <= low and high <= 2 and beyond < 1 / 3 and not (low < -0.75 and high <= 1)
    if (low < 0 or high > 1) and not (noisy and as_noise):
        wanted = "scale or clip them to [0, 1]"
        if 2 < high <= LEVELS and low > -LEVELS / 2:
            wanted = "did you mean values of 0..255? Then divide them by 255"
        elif -2 < low < -0.5 and high < 2:
            wanted = "did you mean values of -1..1? Then take (x + 1) / 2"
        raise InputError(f"{path}: the array's values span [{low:.4g}, {high:.4g}]; {wanted}")
    return OpenedImage(torch.from_numpy(values).contiguous())
