"""Random crops of a folder of photographs, for a flow of any size, without holding the photographs in memory.

Photographs are decoded a few dozen at a time, in the background, into a *pool* of crops; steps draw from the pool until
the next one takes its place. What a pool holds, and what a step draws from it, depends on the seed and the step alone:
a run that is resumed sees what an unbroken one would have seen. Some crops get stripes or checks.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aipo.errors import InputError
from aipo.images.reading import open_picture
from aipo.training.dataset import MAX_PIXELS, SUFFIXES, mixed_seed, open_rgb

__all__ = ["Photos", "hold_out", "list_photos", "read_crops", "with_patterns"]

POOL_PHOTOS = 64  # decoded for a pool
CROPS = 48  # of each of them
REUSE = 1  # how often a crop is drawn on average
SCALES = 3  # at which they are cut
SMALLEST_SCALE = 0.4  # finer detail per pixel than a camera gives, as in pictures scaled for a screen


def list_photos(folder: str | Path, side: int, unreadable: list[Path] | None = None) -> list[Path]:
    """The photographs of a folder, in the order of their names, that are at least `side` pixels high and wide.

    Damaged ones are left out, and appended to `unreadable`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder of photographs")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sizes = list(pool.map(_size, files))
    if unreadable is not None:
        unreadable += [path for path, size in zip(files, sizes, strict=True) if size is None]
    large = [path for path, size in zip(files, sizes, strict=True) if size and min(size) >= side]
    if not large:
        raise InputError(f"{folder}: has no photograph of {side}x{side} pixels or more, of {len(files)} found")
    return large


def hold_out(files: Sequence[Path], count: int, seed: int) -> tuple[list[Path], list[Path]]:
    """Photographs for training, and `count` others for validation, chosen by the seed."""
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    held = set(order[:count])
    return [p for i, p in enumerate(files) if i not in held], [files[i] for i in sorted(held)]


def read_crops(path: Path, side: int, count: int, generator: torch.Generator) -> Tensor:
    """Random crops (count, 3, side, side) of a photograph, uint8, at a few random scales."""
    photo = open_rgb(path)
    smallest = max(SMALLEST_SCALE, side / min(photo.size))
    # More of the smaller scales: there is more to learn from a crop full of detail.
    scales = smallest + (1 - smallest) * torch.rand(SCALES, generator=generator, dtype=torch.float64).square()
    crops = []
    for i, scale in enumerate(scales.tolist()):
        size = (max(side, round(scale * photo.width)), max(side, round(scale * photo.height)))
        pixels = np.asarray(photo.resize(size, Image.Resampling.LANCZOS))
        share = len(range(i, count, SCALES))
        places = torch.rand(share, 2, generator=generator, dtype=torch.float64).tolist()
        for down, right in places:
            top, left = int(down * (size[1] - side + 1)), int(right * (size[0] - side + 1))
            crops.append(pixels[top : top + side, left : left + side])
    # Not torch.Tensor.contiguous: its threads, one team for each that decodes, would slow down those that train.
    return torch.from_numpy(np.ascontiguousarray(np.stack(crops).transpose(0, 3, 1, 2)))


def read_crops_if_possible(
    path: Path, side: int, count: int, generator: torch.Generator, unreadable: list[Path]
) -> Tensor:
    """`read_crops`; none if the photograph is damaged, which is put in `unreadable` and stops no run."""
    try:
        return read_crops(path, side, count, generator)
    except InputError:
        if path not in unreadable:
            unreadable.append(path)
        return torch.empty(0, 3, side, side, dtype=torch.uint8)


class Photos:
    """Batches of crops, as a function of the step.

    Arguments:
        files: the photographs, each at least `side` pixels high and wide.
        side: of the crops.
        batch: crops in a step.
        seed: of all that is random.
        device: where the crops go.
        unreadable: photographs that turn out to be damaged are appended to it.
    """

    def __init__(
        self,
        files: Sequence[Path],
        side: int,
        batch: int,
        seed: int,
        device: torch.device | str = "cpu",
        unreadable: list[Path] | None = None,
    ):
        self.files, self.side, self.seed, self.device = list(files), side, seed, torch.device(device)
        self.photos = min(POOL_PHOTOS, len(self.files))
        self.steps_per_pool = max(1, REUSE * self.photos * CROPS // batch)
        self._threads = ThreadPoolExecutor(min(32, os.cpu_count() or 1), thread_name_prefix="photos")
        self.unreadable = [] if unreadable is None else unreadable
        self._coming: tuple[int, list[Future[Tensor]]] | None = None
        self._pool: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, step: int, count: int, generator: torch.Generator) -> Tensor:
        """Crops (count, 3, side, side) of the step's pool, uint8, drawn with the generator."""
        pool = self._pool_of(step // self.steps_per_pool)
        index = torch.randint(len(pool), (count,), generator=generator, device=self.device)
        return with_patterns(pool[index], generator)

    def fingerprint(self) -> str:
        """A hash of what the files contain, their names aside: a checkpoint goes on with its own photographs only."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            digests = sorted(pool.map(lambda path: hashlib.sha256(path.read_bytes()).hexdigest(), self.files))
        return hashlib.sha256("".join([*digests, str(self.side)]).encode()).hexdigest()[:16]

    def _pool_of(self, number: int) -> Tensor:
        if self._pool is None or self._pool[0] != number:
            coming = self._coming if self._coming and self._coming[0] == number else (number, self._decode(number))
            crops = torch.cat([part.result() for part in coming[1]])
            if not len(crops):
                raise InputError(f"none of these photographs can be read: {', '.join(map(str, self.unreadable[:5]))}")
            self._pool = (number, crops.to(self.device))
            self._coming = (number + 1, self._decode(number + 1))
        return self._pool[1]

    def _decode(self, number: int) -> list[Future[Tensor]]:
        """Start to decode a pool. Every photograph comes once before any comes twice."""
        chosen = []
        for i in range(number * self.photos, (number + 1) * self.photos):
            epoch, place = divmod(i, len(self.files))
            order = torch.randperm(len(self.files), generator=_generator(self.seed, epoch, 0))
            chosen.append((int(order[place]), epoch))
        return [
            self._threads.submit(
                read_crops_if_possible,
                self.files[file],
                self.side,
                CROPS,
                _generator(self.seed, epoch, 1 + file),
                self.unreadable,
            )
            for file, epoch in chosen
        ]


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*numbers))


def _size(path: Path) -> tuple[int, int] | None:
    try:
        with open_picture(path, MAX_PIXELS) as image:
            return image.size
    except InputError:
        return None


# Stripes and checks on some crops: what a few hundred photographs show too rarely. A flow that never saw a fence, a
# shirt or a page of print close up takes their coefficients, twenty times as large as usual, for anything: its density
# explodes there, and so does its estimate. So a share of the crops is woven with another crop, or with a plain color,
# along stripes or a checkerboard of a random period, direction, width and sharpness.
SHARE = 0.1  # of the crops
PERIODS = (2.0, 48.0)  # in pixels


def with_patterns(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (B, 3, H, W) of uint8, some of them with a pattern drawn by the generator."""
    batch, device = len(images), images.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, 1, 1, generator=generator, device=device)

    def layer(crop: Tensor) -> Tensor:
        """A crop, or a color; colors are often black, white or another corner of the cube."""
        color = (3 * uniform(3) - 1).clamp(0, 1) * 255
        return torch.where(uniform(1) < 0.5, crop.float(), color)

    weave = _weave(images.shape[2], images.shape[3], uniform)
    below, above = layer(images), layer(images.roll(1, 0))
    woven = (below + weave * (above - below)).round().clamp(0, 255).to(images.dtype)
    return torch.where(uniform(1) < SHARE, woven, images)


def _weave(height: int, width: int, draw: Callable[..., Tensor]) -> Tensor:
    """How much of the upper layer is seen: (B, 1, H, W) in [0, 1]."""
    low, high = (math.log(v) for v in PERIODS)
    frequency = 2 * math.pi / torch.exp(low + (high - low) * draw(1))
    # Half of them are upright: people build at right angles, and hold cameras level.
    turn = draw(1)
    angle = torch.where(draw(1) < 0.5, (2 * turn).floor() / 2, turn) * math.pi
    rows = torch.arange(height, device=angle.device)[:, None]
    columns = torch.arange(width, device=angle.device)
    along = torch.cos(angle) * rows + torch.sin(angle) * columns
    across = torch.cos(angle) * columns - torch.sin(angle) * rows
    phase = 2 * math.pi * draw(2)
    wave = torch.sin(frequency * along + phase[:, :1])
    crossed = wave * torch.sin(frequency * across + phase[:, 1:])
    wave = torch.where(draw(1) < 0.3, crossed, wave) + draw(1) - 0.5
    return (0.5 + wave / (0.05 + 2 * draw(1))).clamp(0, 1)
