"""Image files and masks to tensors, and back.

Nothing is resized, converted or clipped on the way in: a picture that does not fit is refused with a
line that says how to fix it, because a silent conversion would change what the prior is shown.
"""

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from aipo.errors import InputError
from aipo.files import write_atomically

__all__ = ["png_bytes", "read_image", "read_mask", "tile", "to_uint8", "write_image"]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
MASK_TOLERANCE = 32  # levels of 255; JPEG rings by about this much at the edges of a black and white mask


def read_image(path: str | Path, shape: tuple[int, int, int] = (3, 64, 64)) -> Tensor:
    """Read a colour picture as a tensor (3, H, W), float32 in [0,1].

    Args:
        path: PNG, JPEG, WebP, BMP or TIFF with 8 bits per channel; or `.npy` holding (H, W, 3) or
            (3, H, W), either uint8 or floats in [0,1].
        shape: The shape (3, H, W) the picture must have.

    Raises:
        InputError: the file is missing, damaged, of another size or kind, or has values out of range.
    """
    path = _existing_file(path)
    if path.suffix.lower() == ".npy":
        return _read_array(path, shape)
    pixels = _read_pixels(path, size=shape[1:], modes=("RGB",))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float() / 255


def read_mask(path: str | Path, size: tuple[int, int]) -> Tensor:
    """Read a mask as a tensor (1, H, W) of 0 and 1: white pixels (1) are observed, black ones (0) missing.

    Args:
        path: A black and white picture, stored as 1-bit, grey or RGB.
        size: The height and width (H, W) the mask must have.

    Raises:
        InputError: as for `read_image`, and when a pixel is neither black nor white within 32 levels of
            255 in every channel, or when no pixel is observed.
    """
    path = _existing_file(path)
    pixels = _read_pixels(path, size=size, modes=("1", "L", "RGB"))
    white = (pixels >= 255 - MASK_TOLERANCE).all(axis=2)
    black = (pixels <= MASK_TOLERANCE).all(axis=2)
    unclear = np.argwhere(~(white | black))
    if len(unclear):
        row, column = (int(i) for i in unclear[0])
        raise InputError(
            f"{path}: {len(unclear)} mask pixels are neither black nor white, the first at row {row}, column "
            f"{column}; make it so with Pillow: image.convert('L').point(lambda v: 255 * (v >= 128))"
        )
    if not white.any():
        raise InputError(f"{path}: the mask is all black, so nothing is observed; paint what to keep in white")
    return torch.from_numpy(white).unsqueeze(0).float()


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
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of one picture")
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the name")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: may not be read; change its permissions")
    return path


def _read_pixels(path: Path, size: tuple[int, int], modes: tuple[str, ...]) -> np.ndarray:
    """Decode (H, W, channels) uint8, having checked everything the header tells before decoding."""
    try:
        with warnings.catch_warnings():
            # Nothing is decoded before the size is checked, and that check says what to do.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                _check_header(path, image, size, modes)
                upright = ImageOps.exif_transpose(image)
                pixels = np.asarray(upright if upright.mode != "1" else upright.convert("L"))
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: the picture is far too large; {_how_to_resize(size)}") from error
    except Exception as error:  # decoders of damaged files raise a dozen unrelated types
        raise InputError(
            f"{path}: damaged, or not a PNG, JPEG, WebP, BMP or TIFF picture; "
            "open it in an image editor and save it as PNG"
        ) from error
    _check_size(path, pixels.shape[:2], size)
    return pixels.reshape(*size, -1).copy()  # a copy, because Pillow's buffer is read-only


def _check_header(path: Path, image: ImageFile.ImageFile, size: tuple[int, int], modes: tuple[str, ...]) -> None:
    width, height = image.size
    if (height, width) != tuple(size) and (width, height) != tuple(size):  # EXIF may turn it by 90 degrees
        _check_size(path, (height, width), size)
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise InputError(f"{path}: holds {frames} pictures (frames or pages); save one of them as PNG")
    if image.has_transparency_data:
        raise InputError(f"{path}: has an alpha channel; drop it with Pillow: image.convert('RGB')")
    # Pillow cuts 16-bit colour down to 8 bits without a word; only the decoder's arguments show it.
    if ";16" in image.mode or any(";16" in str(block.args) for block in image.tile):
        raise InputError(f"{path}: has 16 bits per channel; save it with 8, or as floats in [0,1] in a .npy file")
    if image.mode not in modes:
        kind = {"L": "greyscale", "1": "1-bit", "P": "palette"}.get(image.mode, image.mode)
        raise InputError(f"{path}: is a {kind} picture, not RGB; convert it with Pillow: image.convert('RGB')")


def _check_size(path: Path, found: tuple[int, ...], size: tuple[int, int]) -> None:
    if tuple(found) != tuple(size):
        raise InputError(
            f"{path}: the picture is {found[1]}x{found[0]} pixels (width x height), "
            f"expected {size[1]}x{size[0]}; {_how_to_resize(size)}"
        )


def _how_to_resize(size: tuple[int, int]) -> str:
    return f"crop and resize it with Pillow: image.crop(box).resize(({size[1]}, {size[0]}))"


def _read_array(path: Path, shape: tuple[int, int, int]) -> Tensor:
    try:
        # Mapped, so that a header that promises terabytes costs nothing.
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # bad magic, header, length or pickled objects, each with its own type
        raise InputError(f"{path}: not a readable .npy array of numbers; write it with numpy.save") from error
    channels, height, width = shape
    found = array.shape
    if found == (height, width, channels) and found != shape:
        array = array.transpose(2, 0, 1)
    elif found != shape:
        raise InputError(
            f"{path}: the array has shape {found}, expected ({height}, {width}, {channels}) or {shape}; "
            "crop and resize it"
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(array.astype(np.float32) / 255).contiguous()
    if array.dtype.kind != "f":
        raise InputError(f"{path}: the array has type {array.dtype}; use uint8, or floats in [0,1]")
    if not np.isfinite(array).all():
        raise InputError(f"{path}: the array has NaN or infinite values; replace them")
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        raise InputError(f"{path}: the array's values span [{low:.4g}, {high:.4g}]; scale or clip them to [0, 1]")
    return torch.from_numpy(array.astype(np.float32)).contiguous()
