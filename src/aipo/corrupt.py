"""Make from clean pictures what `aipo restore` takes: to try things out, and for scripts."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aipo.align import lay_window
from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically
from aipo.images import open_picture, png_bytes, read_kernel, read_mask
from aipo.noise import Gaussian
from aipo.operators import Inpainting, LinearOperator
from aipo.restoring.inputs import list_pictures
from aipo.restoring.settings import flag
from aipo.tasks import make_operator, task_named

__all__ = ["SIGMA", "Corruption", "corrupt"]

SIGMA = 0.1  # of the tasks whose subject is noise; the others take what `restore` assumes of them
NOISE_SEED = 1_000_003  # added to the seed, so that the noise is not made of the numbers that made the mask or matrix
MOST_NUMBERS = 200_000_000  # in a random matrix


@dataclass(frozen=True)
class Corruption:
    """What to do to pictures.

    Arguments:
        task: one of `aipo.tasks.TASKS`.
        sigma: standard deviation of the noise that is added; None for 0.1 to denoise and to sense, else the task's.
        seed: of all that is random.
        mask: inpaint: a mask of your own; or
        fraction, block: share of the picture that is missing, in blocks of so many pixels.
        factor: superres: how many times smaller.
        kernel, blur: deblur: a kernel of your own, or the width of a Gaussian one.
        measurements: sense: how many.
        fit, size: cut a square of `size` pixels first, as `restore` does.
        floats: write .npy files, in which nothing is rounded or cut off at 0 and 1.
    """

    task: str
    sigma: float | None = None
    seed: int = 0
    mask: Path | None = None
    fraction: float = 0.25
    block: int = 4
    factor: int = 2
    kernel: Path | None = None
    blur: float = 1.5
    measurements: int = 2000
    fit: str | None = None
    size: int = 64
    floats: bool = False

    def __post_init__(self) -> None:
        about = task_named(self.task)
        if self.sigma is None:
            sigma = SIGMA if about.sigma is None else about.sigma
            object.__setattr__(self, "sigma", sigma)
        if self.sigma != 0:
            Gaussian(self.level)  # refuses what cannot be a standard deviation
        for name, user in (("mask", "inpaint"), ("kernel", "deblur")):
            if getattr(self, name) is not None and self.task != user:
                raise InputError(f"{flag(name)} has no use in --task {self.task}, only in {user}; leave it out")

    @property
    def level(self) -> float:
        assert self.sigma is not None
        return self.sigma

    def operator(self, shape: tuple[int, int, int]) -> LinearOperator:
        """What is done to a picture (C, H, W), but for the noise."""
        if self.task == "inpaint":
            if self.mask is not None:
                return Inpainting(read_mask(self.mask, shape[1:]), shape)
            return Inpainting.random_blocks(shape, self.fraction, self.block, self.seed)
        if self.task == "deblur":
            if self.kernel is not None:
                return make_operator("deblur", shape, kernel=read_kernel(self.kernel))
            return make_operator("deblur", shape, blur=self.blur)
        if self.task == "superres":
            return make_operator("superres", shape, factor=self.factor)
        if self.task == "sense":
            if self.measurements * shape[0] * shape[1] * shape[2] > MOST_NUMBERS:
                raise InputError(
                    f"a matrix for {self.measurements} measurements of {shape[2]}x{shape[1]} pixels is too large; "
                    "make the picture smaller with --fit resize"
                )
            return make_operator("sense", shape, measurements=self.measurements, seed=self.seed)
        return make_operator(self.task, shape)


def corrupt(arguments: Sequence[Path], out: Path, how: Corruption) -> dict[str, Any]:
    """Corrupt all pictures in the same way, each with its own noise, and write them to `out`.

    Returns what was written, and the command that restores it, ready for JSON.

    Raises:
        InputError: a picture or an option cannot be used, or something else would be overwritten; nothing has been
            written then.
    """
    listing = list_pictures(arguments)
    for _, reason in listing.failed:
        raise InputError(reason)
    clean = [_clean(path, how) for path in listing.pictures]
    shapes = {tuple(x.shape[1:]) for x in clean}
    if len(shapes) > 1 and how.task == "inpaint":
        sizes = ", ".join(f"{width}x{height}" for height, width in sorted(shapes))
        raise InputError(f"the pictures have several sizes ({sizes}), one mask cannot serve them all; use --fit")
    generator = torch.Generator().manual_seed(how.seed + NOISE_SEED)
    operators: dict[tuple[int, ...], LinearOperator] = {}
    files: dict[Path, bytes] = {}
    made = []
    for path, x in zip(listing.pictures, clean, strict=True):
        shape = (3, int(x.shape[1]), int(x.shape[2]))
        try:
            operator = operators.setdefault(shape, operators.get(shape) or how.operator(shape))
        except InputError as error:
            raise InputError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
        y = operator.measure(x[None], Gaussian(how.level), generator)[0] if how.level else operator.A(x[None])[0]
        name, content = _encoded(f"{path.stem}.{how.task}", y, how.floats)
        if out / name in files:
            raise InputError(f"two pictures would both be written as {out / name}; corrupt them one by one")
        files[out / name] = content
        made.append(out / name)
    options: list[str | Path] = ["--task", how.task, "--sigma", f"{how.level or 0.002:g}"]
    options += _needed(how, out, next(iter(operators.values())), files)
    if task_named(how.task).full_size and shapes != {(how.size, how.size)}:
        # Of a photograph the priors can restore a face; a known blur would change if it were scaled.
        options += ["--fit", "crop" if how.task == "deblur" else "align"]
    _check_free(files, [*listing.pictures, *(path for path in (how.mask, how.kernel) if path)])
    ensure_folder(out)
    for path, content in files.items():
        write_atomically(path, content)
    command = shlex.join(["aipo", "restore", *map(str, [*made, *options]), "--out", str(out / "restored")])
    return {"files": [str(path) for path in files], "corrupted": [str(path) for path in made], "restore": command}


def _clean(path: Path, how: Corruption) -> Tensor:
    opened = open_picture(path)
    if opened.clear is not None:
        raise InputError(f"{path}: is transparent in places; put it on a background first")
    x = opened.x.expand(3, -1, -1).contiguous()
    if how.fit is None:
        return x
    try:
        return lay_window(x, (how.size, how.size), how.fit).cut(x).clamp(0, 1)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _needed(how: Corruption, out: Path, operator: LinearOperator, files: dict[Path, bytes]) -> list[str | Path]:
    """What `restore` must be told besides; a mask that was made is added to the files."""
    if how.task == "inpaint":
        assert isinstance(operator, Inpainting)
        mask = out / "inpaint.mask.png"
        files[mask] = png_bytes(operator.mask[:1])
        return ["--mask", mask]
    if how.task == "superres":
        return ["--factor", str(how.factor)]
    if how.task == "deblur":
        return ["--kernel", how.kernel] if how.kernel else ["--blur", f"{how.blur:g}"]
    if how.task == "sense":
        return ["--seed", str(how.seed)]
    return []


def _encoded(stem: str, y: Tensor, floats: bool) -> tuple[str, bytes]:
    if y.ndim == 3 and not floats:
        return f"{stem}.png", png_bytes(y)
    buffer = io.BytesIO()
    np.save(buffer, (y.permute(1, 2, 0) if y.ndim == 3 else y).numpy())
    return f"{stem}.npy", buffer.getvalue()


def _check_free(files: dict[Path, bytes], inputs: Sequence[Path]) -> None:
    """Refuse to write over an input, or over anything but the same bytes."""
    read = {os.path.realpath(path) for path in inputs}
    for path, content in files.items():
        if os.path.realpath(path) in read:
            raise InputError(f"{path} is an input and would be overwritten; choose another --out")
        if os.path.exists(path) and (os.path.isdir(path) or path.read_bytes() != content):
            raise InputError(f"{path} exists and is something else; move it, or choose another --out")
