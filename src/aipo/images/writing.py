"""Tensors to image files, and several images on one sheet."""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from aipo.errors import InputError
from aipo.files import write_atomically

__all__ = ["png_bytes", "tile", "to_uint8", "write_image"]


def to_uint8(x: Tensor) -> Tensor:
    """Round values in [0,1] to the levels 0..255 on the CPU, clamping what lies outside; the shape stays.

    Raises:
        InputError: a value is NaN, which has no level and must not become black.
    """
    x = x.detach().cpu().float()
    if x.isnan().any():
        raise InputError(f"{int(x.isnan().sum())} of {x.numel()} image values are NaN")
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def png_bytes(x: Tensor, scale: int = 1) -> bytes:
    """Encode an image (3, H, W) or (1, H, W) in [0,1] as an 8-bit PNG, enlarged `scale` times."""
    if not isinstance(x, Tensor):
        raise InputError(f"expected a torch tensor (3, H, W) or (1, H, W), got {type(x).__name__}")
    if x.ndim != 3 or x.shape[0] not in (1, 3) or not x.numel():
        raise InputError(f"expected an image (3, H, W) or (1, H, W), got {tuple(x.shape)}")
    levels = to_uint8(x).repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2)
    image = Image.fromarray(levels.permute(1, 2, 0).contiguous().squeeze(2).numpy())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def write_image(path: str | Path, x: Tensor) -> None:
    """Write an image (3, H, W) or (1, H, W) in [0,1], clamped and rounded, as an 8-bit PNG.

    Raises:
        InputError: the name does not end in `.png`, or the place cannot be written.
    """
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"cannot write {path}: pictures are saved as PNG; give a name that ends in .png")
    write_atomically(path, png_bytes(x))


def tile(images: Tensor | Sequence[Tensor], columns: int, gap: int = 2) -> Tensor:
    """Lay images (B, C, H, W) out on one white sheet, row by row, `gap` pixels apart.

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
