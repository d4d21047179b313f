"""Image files, masks and arrays to tensors, and back.

What a file may be, and how it is read:

    8 bits      PNG, JPEG, WebP, BMP or TIFF; levels divided by 255. The orientation tag of a camera is obeyed.
    16 bits     grey: divided by 65535. Colour: the upper 8 bits, which is what Pillow reads, with a note.
    grey        one channel; where a colour picture is asked for, R = G = B.
    palette     its colours.
    alpha       an opaque channel is dropped. Pixels that shine through have no colour of their own: to inpaint they
                are missing, in any other task the picture is refused.
    pages       several frames or pages are refused, but a camera's second picture in a JPEG (MPO) is left out.
    .npy        (H, W), (H, W, C) or (C, H, W) with C = 1 or 3, of uint8, uint16 or floats on the scale [0,1].
    others      CMYK, Lab, 32-bit and float pictures are refused: what colour they mean is not in the file.

Everything else is refused with a line that says how to fix it. Where something was changed there is a note.
"""

import io
import os
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageColor, ImageFile, ImageOps
from torch import Tensor
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.files import write_atomically

__all__ = [
    "SUFFIXES",
    "Opened",
    "color_mask",
    "open_picture",
    "png_bytes",
    "read_image",
    "read_kernel",
    "read_mask",
    "read_numbers",
    "tile",
    "to_uint8",
    "write_image",
]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")  # an MPO comes as a JPEG
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".npy")
MAX_PIXELS = 50_000_000
MASK_TOLERANCE = 32  # levels of 255; JPEG rings by about this much at the edges of a black and white mask
# Of a painted colour, in levels of 255: within the first it is that colour; within the second it may be the soft rim of
# a brush, if it touches the colour.
COLOR_TOLERANCE, RIM_TOLERANCE = 16, 100


@dataclass(frozen=True)
class Opened:
    """A picture as it was in its file.

    Attributes:
        x: (3, H, W), or (1, H, W) if it is grey; float32 in [0,1].
        clear: (1, H, W) of bool, True where the picture is more transparent than opaque; None if it is opaque.
        notes: what was changed on the way in, for people.
    """

    x: Tensor
    clear: Tensor | None = None
    notes: tuple[str, ...] = ()


def open_picture(path: str | Path, noisy: bool = False) -> Opened:
    """Read a picture of any size.

    Args:
        path: See the top of this module.
        noisy: Whether floats in a `.npy` file may lie a little beyond [0,1], as noise makes them.

    Raises:
        InputError: the file is missing, damaged, too large or of another kind, or has values out of range.
    """
    path = _existing_file(path)
    return _open(path, noisy, None)


def read_image(path: str | Path, shape: tuple[int, int, int] = (3, 64, 64)) -> Tensor:
    """Read an opaque picture of the shape (3, H, W), float32 in [0,1]; a grey one gets R = G = B.

    Raises:
        InputError: as for `open_picture`, and when it has another size or is transparent somewhere.
    """
    opened = _open(_existing_file(path), False, shape[1:])
    if opened.clear is not None:
        raise InputError(f"{path}: is transparent in places; put it on a background, or save it without alpha channel")
    return opened.x.expand(3, -1, -1).contiguous()


def read_mask(path: str | Path, size: tuple[int, int] | None = None) -> Tensor:
    """Read a mask as a tensor (1, H, W) of 0 and 1: white pixels (1) are observed, black ones (0) missing.

    Args:
        path: A black and white picture.
        size: The height and width (H, W) the mask must have; any by default.

    Raises:
        InputError: as for `open_picture`, and when a pixel is neither black nor white within 32 levels of
            255 in every channel, or when no pixel is observed.
    """
    opened = _open(_existing_file(path), False, size)
    if opened.clear is not None:
        raise InputError(f"{path}: a mask must not be transparent; paint it in black and white")
    pixels = opened.x * 255
    white = (pixels >= 255 - MASK_TOLERANCE).all(0)
    unclear = torch.nonzero(~(white | (pixels <= MASK_TOLERANCE).all(0)))
    if len(unclear):
        row, column = unclear[0].tolist()
        raise InputError(
            f"{path}: {len(unclear)} mask pixels are neither black nor white, the first at row {row}, column "
            f"{column}; make it so with Pillow: image.convert('L').point(lambda v: 255 * (v >= 128))"
        )
    if not white.any():
        raise InputError(f"{path}: the mask is all black, so nothing is observed; paint what to keep in white")
    return white.unsqueeze(0).float()


def color_mask(x: Tensor, color: str) -> Tensor:
    """The mask (1, H, W), as of `read_mask`, of a picture (3, H, W) in which what is missing was painted in a colour.

    Pixels of the colour are missing, and so is the rim where a soft brush has mixed it with the picture.

    Args:
        color: six hex digits, with or without #, or a name such as magenta.

    Raises:
        InputError: it is no colour, or the picture has no pixel of it, or no other.
    """
    is_hex = len(color) == 6 and all(c in "0123456789abcdefABCDEF" for c in color)
    try:
        rgb = ImageColor.getrgb(f"#{color}" if is_hex else color)[:3]
    except ValueError:
        raise InputError(f"{color} is no colour; give six hex digits such as ff00ff, or a name like magenta") from None
    distance = (x.expand(3, -1, -1) * 255 - torch.tensor(rgb)[:, None, None]).abs().amax(0, keepdim=True)
    painted = distance <= COLOR_TOLERANCE
    if not painted.any():
        raise InputError(f"no pixel has the colour {color}; paint what is missing in it, and save as PNG")
    near = F.max_pool2d(painted.float(), 3, 1, 1) > 0
    missing = painted | (near & (distance <= RIM_TOLERANCE))
    if missing.all():
        raise InputError(f"every pixel has the colour {color}, so nothing is observed; choose another one")
    return (~missing).float()


def read_kernel(path: str | Path) -> Tensor:
    """Read a blur kernel (kh, kw): a `.npy` array, or a grey picture of it.

    Raises:
        InputError: it cannot be read, is in colour, or has no positive sum.
    """
    path = _existing_file(path)
    if path.suffix.lower() == ".npy":
        kernel = read_numbers(path, 2)
    else:
        opened = open_picture(path)
        if opened.clear is not None or (opened.x != opened.x[:1]).any():
            raise InputError(f"{path}: the picture of a kernel must be grey and opaque; or save it as a .npy array")
        kernel = opened.x[0].double()
    if not kernel.sum() > 0:
        raise InputError(f"{path}: the kernel's values add up to 0 or less; they must be positive in sum")
    return kernel


def read_numbers(path: str | Path, dimensions: int) -> Tensor:
    """Read a `.npy` array of finite numbers with so many dimensions, as float64.

    Raises:
        InputError: it cannot be read, or is something else.
    """
    path = _existing_file(path)
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: is not a .npy array; write it with numpy.save")
    array = _mapped(path)
    if array.ndim != dimensions or array.dtype.kind not in "fiu" or not array.size:
        what = {1: "a vector", 2: "a matrix"}[dimensions]
        raise InputError(f"{path}: holds {array.dtype} of shape {array.shape}; give {what} of real numbers")
    if array.size > 4 * MAX_PIXELS:
        raise InputError(f"{path}: {array.size} numbers are too many; give at most {4 * MAX_PIXELS}")
    if not np.isfinite(array).all():
        raise InputError(f"{path}: the array has NaN or infinite values; replace them")
    return torch.from_numpy(array.astype(np.float64))


def to_uint8(x: Tensor) -> Tensor:
    """Round values in [0,1] to the levels 0..255 on the CPU, clamping what lies outside; the shape stays.

    Raises:
        ValueError: a value is NaN, which has no level and must not pass for black.
    """
    x = x.detach().cpu().float()
    if x.isnan().any():
        raise ValueError(f"{int(x.isnan().sum())} of {x.numel()} image values are NaN")
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def png_bytes(x: Tensor, scale: int = 1) -> bytes:
    """Encode a picture (3, H, W) or (1, H, W) in [0,1] as an 8-bit PNG, enlarged `scale` times."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        raise ValueError(f"expected a picture (3, H, W) or (1, H, W), got {tuple(x.shape)}")
    levels = to_uint8(x).repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2)
    picture = Image.fromarray(levels.permute(1, 2, 0).contiguous().squeeze(2).numpy())
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def write_image(path: str | Path, x: Tensor) -> None:
    """Write a picture (3, H, W) or (1, H, W) in [0,1], clamped and rounded, as an 8-bit PNG.

    Raises:
        InputError: the name does not end in `.png`, or the place cannot be written.
    """
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"cannot write {path}: pictures are saved as PNG; give a name that ends in .png")
    write_atomically(path, png_bytes(x))


def tile(images: Tensor | Sequence[Tensor], columns: int, gap: int = 2) -> Tensor:
    """Lay pictures (B, C, H, W) out on one white sheet, row by row, `gap` pixels apart.

    Returns:
        (C, rows * (H + gap) - gap, columns * (W + gap) - gap); unused places stay white.

    Examples:
        >>> import torch
        >>> tile(torch.zeros(3, 3, 64, 64), columns=2).shape
        torch.Size([3, 130, 130])
    """
    _, height, width = images[0].shape
    rows = -(-len(images) // columns)
    sheet = images[0].new_ones(images[0].shape[0], rows * (height + gap) - gap, columns * (width + gap) - gap)
    for i, image in enumerate(images):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def _existing_file(path: str | Path) -> Path:
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise InputError(f"{path}: may not be read; change the permissions of its folder") from None
    except (OSError, ValueError):  # ValueError: a name with a null character
        raise InputError(f"{path}: no such file; check the name") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder; give the name of one picture")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is no file but a pipe or device; save the picture to a file first")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: may not be read; change its permissions")
    return path


def _open(path: Path, noisy: bool, size: tuple[int, ...] | None) -> Opened:
    """Read a picture, of that size (H, W) if one is given."""
    if path.suffix.lower() == ".npy":
        return _read_array(path, noisy, size)
    try:
        with warnings.catch_warnings():
            # Nothing is decoded before the size is checked, and that check says what to do.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                _check_header(path, image, size)
                notes = _notes(image)
                upright = ImageOps.exif_transpose(image)
                opened = _converted(upright, notes)
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: the picture is far too large; make it smaller in an image editor") from error
    except Exception as error:  # decoders of damaged files raise a dozen unrelated types
        raise InputError(
            f"{path}: damaged, or not a PNG, JPEG, WebP, BMP or TIFF picture; "
            "open it in an image editor and save it as PNG"
        ) from error
    _check_size(path, tuple(opened.x.shape[1:]), size)
    return opened


def _check_header(path: Path, image: ImageFile.ImageFile, size: tuple[int, ...] | None) -> None:
    width, height = image.size
    if size and (width, height) != tuple(size):  # EXIF may turn it by 90 degrees
        _check_size(path, (height, width), size)
    if width * height > MAX_PIXELS:
        raise InputError(
            f"{path}: {width}x{height} pixels are far too many, at most {MAX_PIXELS // 1_000_000} million can be "
            "read; make it smaller in an image editor"
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise InputError(f"{path}: holds {frames} pictures (frames or pages); save one of them as PNG")
    if not (image.mode in ("1", "L", "LA", "RGB", "RGBA", "P", "PA") or image.mode.startswith("I;16")):
        kind = {"I": "32-bit", "F": "floating-point"}.get(image.mode, image.mode)
        raise InputError(f"{path}: is a {kind} picture; save it as RGB or grey with 8 or 16 bits, or as .npy")


def _notes(image: ImageFile.ImageFile) -> list[str]:
    notes = []
    # Pillow cuts 16-bit colour down to 8 bits without a word; only the decoder's arguments show it.
    if not image.mode.startswith("I;16") and any(";16" in str(block.args) for block in image.tile):
        notes.append("16 bits per channel: the upper 8 are used")
    if getattr(image, "n_frames", 1) > 1:
        notes.append("holds several pictures: the first is used")
    return notes


def _converted(image: Image.Image, notes: list[str]) -> Opened:
    grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I;16")
    clear = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = np.asarray(image)[..., 3]
        if (alpha == 255).all():
            notes.append("opaque alpha channel: dropped")
        else:
            clear = torch.from_numpy(alpha < 128)[None]
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.float32) / 65535
    else:
        pixels = np.asarray(image.convert("L" if grey and clear is None else "RGB")).astype(np.float32) / 255
    x = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
    return Opened((x[:1] if grey else x).contiguous(), clear, tuple(notes))


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


def _read_array(path: Path, noisy: bool, size: tuple[int, ...] | None) -> Opened:
    array = _mapped(path)
    found = array.shape
    if len(found) == 2:
        array = array[None]
    elif len(found) == 3 and found[2] in (1, 3):
        array = array.transpose(2, 0, 1)
    elif not (len(found) == 3 and found[0] in (1, 3)):
        raise InputError(f"{path}: the array has shape {found}; a picture is (H, W), (H, W, 3) or (3, H, W)")
    _check_size(path, array.shape[1:], size)
    if not array.size or array.size > 3 * MAX_PIXELS:
        raise InputError(f"{path}: the array has shape {found}; give 1 to {MAX_PIXELS // 1_000_000} million pixels")
    scale = {"uint8": 255, "uint16": 65535}.get(array.dtype.name, 1)
    if scale == 1 and array.dtype.kind != "f":
        raise InputError(f"{path}: the array has type {array.dtype}; use uint8, uint16, or floats in [0,1]")
    if not np.isfinite(array).all():
        raise InputError(f"{path}: the array has NaN or infinite values; replace them")
    values = array.astype(np.float32) / np.float32(scale)
    low, high = float(values.min()), float(values.max())
    # Noise takes some values beyond the ends. A third of them, or far below 0 but never above 1, is another scale, such
    # as [-1,1].
    beyond = ((values < 0) | (values > 1)).mean()
    as_noise = -1 <= low and high <= 2 and beyond < 1 / 3 and not (low < -0.75 and high <= 1)
    if (low < 0 or high > 1) and not (noisy and as_noise):
        raise InputError(f"{path}: the array's values span [{low:.4g}, {high:.4g}]; scale or clip them to [0, 1]")
    return Opened(torch.from_numpy(values).contiguous())
