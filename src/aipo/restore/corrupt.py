"""Make from clean images what `aipo restore` takes: to try things out, and for scripts."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.files import FolderLock, fitting_stem, write_atomically
from aipo.images import open_image, png_bytes, read_kernel, read_mask
from aipo.images.windows import place_window
from aipo.noise import Gaussian
from aipo.operators import Inpainting, LinearOperator
from aipo.restore.command import command_line
from aipo.restore.listing import list_images
from aipo.restore.operators import damaging_operator, make_operator
from aipo.restore.settings import default_prior, flag
from aipo.restore.tasks import FACE_PRIOR, TASKS, Damage, task_named

__all__ = ["Corrupted", "Corruption", "corrupt"]

NOISE_SEED = 1_000_003  # added to the seed, so that the noise is not made of the numbers that made the mask or matrix
MOST_NUMBERS = 200_000_000  # in a random matrix
LEAST_SIGMA = 0.002  # of the printed command, as `restore` needs some noise: half a level of 255


@dataclass(frozen=True)
class Corruption:
    """What to do to images.

    Arguments:
        task: one of `aipo.restore.tasks.TASKS`.
        sigma: standard deviation of the noise that is added, for values in [0,1]; None for the task's `added_sigma`.
        seed: of everything that is random.
        damage: how strong the corruption is, apart from the noise.
        mask: inpaint: a mask of your own.
        kernel: deblur: a kernel of your own.
        fit, size: cut a square of `size` pixels first, as `restore` does.
        floats: write .npy files, in which nothing is rounded or cut off at 0 and 1.
    """

    task: str
    sigma: float | None = None
    seed: int = 0
    damage: Damage = field(default_factory=Damage)
    mask: Path | None = None
    kernel: Path | None = None
    fit: str | None = None
    size: int = 64
    floats: bool = False

    def __post_init__(self) -> None:
        task = task_named(self.task)
        if self.added_sigma != 0:
            Gaussian(self.added_sigma)  # refuses what cannot be a standard deviation
        for name, user in (("mask", "inpaint"), ("kernel", "deblur")):
            if getattr(self, name) is not None and task.name != user:
                raise InputError(f"{flag(name)} only works with --task {user}, not {task.name}; leave it out")

    @property
    def added_sigma(self) -> float:
        """Standard deviation of the noise."""
        return TASKS[self.task].added_sigma if self.sigma is None else self.sigma

    def operator(self, shape: tuple[int, int, int]) -> LinearOperator:
        """What is done to an image (C, H, W), apart from the noise."""
        if self.mask is not None:
            return make_operator(self.task, shape, mask=read_mask(self.mask, shape[1:]))
        if self.kernel is not None:
            return make_operator(self.task, shape, kernel=read_kernel(self.kernel))
        if self.task == "sense" and self.damage.measurements * shape[0] * shape[1] * shape[2] > MOST_NUMBERS:
            raise InputError(
                f"a matrix for {self.damage.measurements} measurements of {shape[2]}x{shape[1]} pixels is too large; "
                "make the picture smaller with --fit resize"
            )
        return damaging_operator(self.task, shape, self.damage, self.seed)


@dataclass(frozen=True)
class Corrupted:
    """What `corrupt` has written.

    Attributes:
        files: all of them.
        corrupted: the images or vectors among them.
        restore: the command that restores those.
    """

    files: list[str]
    corrupted: list[str]
    restore: str


def corrupt(arguments: Sequence[Path], out: Path, how: Corruption) -> Corrupted:
    """Corrupt all images in the same way, each with its own noise, and write them to `out`.

    Raises:
        InputError: an image or an option cannot be used, or something else would be overwritten; nothing has been
            written then.
    """
    listing = list_images(arguments)
    for _, reason in listing.failed:
        raise InputError(reason)
    clean = {path: _clean(path, how) for path in listing.images}
    shapes = {(3, int(x.shape[1]), int(x.shape[2])) for x in clean.values()}
    if len(shapes) > 1 and how.task == "inpaint":
        sizes = ", ".join(f"{width}x{height}" for _, height, width in sorted(shapes))
        raise InputError(f"the pictures have several sizes ({sizes}), but one mask is made for all; use --fit")
    operators = _operators(clean, how)
    files: dict[Path, bytes] = {}
    generator = torch.Generator().manual_seed(how.seed + NOISE_SEED)
    for path, x in clean.items():
        operator = operators[tuple(x.shape)]
        y = (
            operator.measure(x[None], Gaussian(how.added_sigma), generator)[0]
            if how.added_sigma
            else operator.A(x[None])[0]
        )
        if how.task == "demosaic":
            y = y.sum(0, keepdim=True)  # a sensor sees one color at each pixel
        ending, content = _encoded(y, how.floats)
        ending = f".{how.task}{ending}"
        target = out / (fitting_stem(path.stem, ending, out) + ending)
        if target in files:
            raise InputError(f"two pictures would both be written as {target}; corrupt them one by one")
        files[target] = content
    made = list(files)
    options: list[str | Path] = ["--task", how.task, "--sigma", f"{how.added_sigma or LEAST_SIGMA:g}"]
    options += _needed(how, out, next(iter(operators.values())), files)
    options += _prior(how, shapes)
    with FolderLock(out) as lock:
        lock.acquire()
        _check_free(files, [*listing.images, *(path for path in (how.mask, how.kernel) if path)])
        for path, content in files.items():
            write_atomically(path, content)
    command = command_line(["restore", *made, *options, "--out", out / "restored"])
    return Corrupted([str(path) for path in files], [str(path) for path in made], command)


def _clean(path: Path, how: Corruption) -> Tensor:
    opened = open_image(path)
    if opened.transparent is not None:
        raise InputError(f"{path}: is partly transparent; put it on a background first")
    x = opened.x.expand(3, -1, -1).contiguous()
    if how.fit is None:
        return x
    try:
        return place_window(x, (how.size, how.size), how.fit).cut(x).clamp(0, 1)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _operators(clean: Mapping[Path, Tensor], how: Corruption) -> dict[tuple[int, ...], LinearOperator]:
    """The operator for each shape of image."""
    operators: dict[tuple[int, ...], LinearOperator] = {}
    for path, x in clean.items():
        if tuple(x.shape) not in operators:
            try:
                operators[tuple(x.shape)] = how.operator((3, x.shape[1], x.shape[2]))
            except InputError as error:
                raise InputError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    return operators


def _needed(how: Corruption, out: Path, operator: LinearOperator, files: dict[Path, bytes]) -> list[str | Path]:
    """What `restore` must be told besides; a mask is added to the files."""
    if how.task == "inpaint":
        assert isinstance(operator, Inpainting)
        mask = out / "inpaint.mask.png"
        files[mask] = png_bytes(operator.mask[:1])
        return ["--mask", mask]
    if how.task == "superres":
        return ["--factor", str(how.damage.factor)]
    if how.task == "deblur":
        return ["--kernel", how.kernel] if how.kernel else ["--blur", f"{how.damage.blur:g}"]
    if how.task == "demosaic":
        return ["--pattern", how.damage.pattern]
    if how.task == "sense":
        return ["--seed", str(how.seed)]
    return []


def _prior(how: Corruption, shapes: set[tuple[int, int, int]]) -> list[str | Path]:
    """What `restore` must be told to take a prior that can do it."""
    task = TASKS[how.task]
    if shapes == {(3, how.size, how.size)}:
        return ["--prior", FACE_PRIOR] if task.whole and task.faces and how.size == Corruption.size else []
    if default_prior(how.task) == FACE_PRIOR and task.faces and task.input == "image":
        # It can restore the face in a photo. A known blur would change if the photo were scaled.
        return ["--fit", "crop" if how.task == "deblur" else "align"]
    return []


def _encoded(y: Tensor, floats: bool) -> tuple[str, bytes]:
    """The ending of the file's name, and its content."""
    if y.ndim == 3 and not floats:
        return ".png", png_bytes(y)
    buffer = io.BytesIO()
    np.save(buffer, (y.permute(1, 2, 0) if y.ndim == 3 else y).numpy())
    return ".npy", buffer.getvalue()


def _check_free(files: Mapping[Path, bytes], inputs: Sequence[Path]) -> None:
    """Refuse to overwrite an input, or anything but the same bytes."""
    read = {os.path.realpath(path) for path in inputs}
    for path, content in files.items():
        if os.path.realpath(path) in read:
            raise InputError(f"{path} is an input and would be overwritten; choose another --out")
        if os.path.exists(path) and (not os.path.isfile(path) or path.read_bytes() != content):
            raise InputError(f"{path} already exists with other content; move it, or choose another --out")
