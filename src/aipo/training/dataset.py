"""Training images: a folder of pictures, a folder of mosaics, or an array, as one uint8 tensor (N, 3, S, S).

`Source` is what a training step asks for its images; `Stack` is the one that holds them all in memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from aipo.errors import InputError
from aipo.images.reading import SUFFIXES as READABLE
from aipo.images.reading import open_picture

__all__ = ["SUFFIXES", "Source", "Stack", "load_images", "mixed_seed", "open_rgb"]

SUFFIXES = set(READABLE) - {".npy"}
# A mosaic of 4096 tiles of 64x64 has 17 million pixels; anything far beyond that is no picture of ours.
MAX_PIXELS = 2**28
MAX_ARRAY_BYTES = 16 * 10**9
# Lossy codecs leave a level or two of noise on a flat tile.
FLAT = 8


def load_images(source: str | Path, size: int = 64, limit: int | None = None, mosaics: bool = False) -> Tensor:
    """Read up to `limit` images of `size` x `size` from `source`, in the order of the files' names.

    A picture is cropped to its center square and resized. With `mosaics`, every picture is a sheet of tiles of
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
    picture = open_rgb(path)
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].contiguous()


def _read_mosaic(path: Path, size: int) -> Tensor:
    picture = open_rgb(path)
    if picture.width % size or picture.height % size:
        raise InputError(f"{path}: {picture.width}x{picture.height} pixels are no mosaic of {size}x{size} tiles")
    pixels = torch.from_numpy(np.array(picture))
    tiles = pixels.unflatten(0, (-1, size)).unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
    spread = tiles.flatten(1).amax(1) - tiles.flatten(1).amin(1)
    return tiles[spread > FLAT].permute(0, 3, 1, 2).contiguous()


def open_rgb(path: Path) -> Image.Image:
    """A picture file, decoded to RGB, upright."""
    with open_picture(path, MAX_PIXELS) as file:
        return ImageOps.exif_transpose(file).convert("RGB")


def _read_array(path: Path, size: int) -> Tensor:
    """The images of a .npy file, or of the first array in a .npz file; nothing is unpacked before its header fits."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the name")
    try:
        if path.suffix == ".npy":
            array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
            _check_array(path, array.shape, array.dtype, size)
        else:
            array = _unpack(path, size)
    except InputError:
        raise
    except Exception as error:  # zip, header and array can each be damaged in their own way
        raise InputError(f"{path}: not a readable array ({str(error) or type(error).__name__})") from None
    if array.shape[-1] == 3 and array.shape[1] != 3:
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(array, order="C"))


def _unpack(path: Path, size: int) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not names:
            raise InputError(f"{path}: the archive is empty; save images with numpy.savez")
        with archive.open(names[0]) as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
            _check_array(path, shape, dtype, size)
        with archive.open(names[0]) as member:
            return np.lib.format.read_array(member, allow_pickle=False)


def _check_array(path: Path, shape: tuple[int, ...], dtype: np.dtype, size: int) -> None:
    images = shape[1:] in ((3, size, size), (size, size, 3))
    if len(shape) != 4 or not images or not shape[0] or dtype != np.uint8:
        raise InputError(f"{path}: expected uint8 (N, 3, {size}, {size}), got {dtype} {shape}")
    if math.prod(shape) > MAX_ARRAY_BYTES:
        raise InputError(f"{path}: {shape[0]} images are too many; the limit is {MAX_ARRAY_BYTES // 10**9} GB")


def mixed_seed(*numbers: int) -> int:
    """A seed that depends on all of these numbers, and on nothing else."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7])


class Source(Protocol):
    """Where images come from."""

    def batch(self, step: int, count: int, generator: torch.Generator) -> Tensor:
        """Images (count, C, H, W) of uint8, on the generator's device, the same whenever the step is the same."""
        ...

    def fingerprint(self) -> str:
        """A hash of the data: a checkpoint goes on with its own only."""
        ...


class Stack:
    """Images of one size, all on the device: 60,000 faces are 0.7 GB, and a step never waits for the host."""

    def __init__(self, images: Tensor, device: torch.device | str = "cpu"):
        self.images = images.to(device)

    def batch(self, step: int, count: int, generator: torch.Generator) -> Tensor:
        index = torch.randint(len(self.images), (count,), generator=generator, device=self.images.device)
        return self.images[index]

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.images.cpu().numpy().tobytes()).hexdigest()[:16]
