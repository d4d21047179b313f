"""Training images: a folder of pictures, a folder of mosaics, or an array, as one uint8 tensor (N, 3, S, S)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aipo.errors import InputError

__all__ = ["load_images"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".avif", ".bmp", ".tif", ".tiff"}
# A mosaic of 4096 tiles of 64x64 has 17 million pixels; anything far beyond that is no picture of ours.
MAX_PIXELS = 2**28
# Lossy codecs leave a level or two of noise on a flat tile.
FLAT = 8


def load_images(source: str | Path, size: int = 64, limit: int | None = None, mosaics: bool = False) -> Tensor:
    """Read up to `limit` images of `size` x `size` from `source`, in the order of the files' names.

    A picture is cropped to its centre square and resized. With `mosaics`, every picture is a sheet of tiles of
    `size` x `size` instead, read row by row; black or otherwise flat tiles (the unused end of a sheet) are skipped.
    """
    source = Path(source)
    if source.suffix in {".npy", ".npz"}:
        images = _read_array(source, size)
    else:
        files = sorted(p for p in source.iterdir() if p.suffix.lower() in SUFFIXES) if source.is_dir() else [source]
        if not files:
            raise InputError(f"{source}: no pictures found; expected {', '.join(sorted(SUFFIXES))}, .npy or .npz")
        images = _read_files(files, _read_mosaic if mosaics else _read_picture, size, limit)
    return images[:limit]


def _read_files(files: list[Path], read: Callable[[Path, int], Tensor], size: int, limit: int | None) -> Tensor:
    parts, count = [], 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # A window of files at a time: decoding runs in parallel and stops soon after `limit` is reached.
        for start in range(0, len(files), 64):
            window = files[start : start + 64]
            for part in pool.map(read, window, [size] * len(window)):
                parts.append(part)
                count += len(part)
            if limit is not None and count >= limit:
                break
    return torch.cat(parts)


def _read_picture(path: Path, size: int) -> Tensor:
    picture = _open(path)
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].contiguous()


def _read_mosaic(path: Path, size: int) -> Tensor:
    picture = _open(path)
    if picture.width % size or picture.height % size:
        raise InputError(f"{path}: {picture.width}x{picture.height} pixels are no mosaic of {size}x{size} tiles")
    pixels = torch.from_numpy(np.array(picture))
    tiles = pixels.unflatten(0, (-1, size)).unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
    spread = tiles.flatten(1).amax(1) - tiles.flatten(1).amin(1)
    return tiles[spread > FLAT].permute(0, 3, 1, 2).contiguous()


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            if file.width * file.height > MAX_PIXELS:
                raise InputError(f"{path}: {file.width}x{file.height} pixels is too large")
            return file.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable picture ({error})") from None


def _read_array(path: Path, size: int) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
        if isinstance(array, np.lib.npyio.NpzFile):
            array = array[array.files[0]]
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path}: not a readable array ({error})") from None
    if array.ndim == 4 and array.shape[-1] == 3:
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1:] != (3, size, size) or array.dtype != np.uint8:
        raise InputError(f"{path}: expected uint8 (N, 3, {size}, {size}), got {array.dtype} {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array))
