"""The operator f of each task: what turned a clean image into the measurement at hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from aipo.errors import InputError
from aipo.operators import Blur, CompressedSensing, Denoising, Grayscale, Inpainting, LinearOperator, SuperResolution
from aipo.restore.tasks import FACTORS, PATTERNS, Damage, Task, task_named

__all__ = ["blur_kernel", "damaging_operator", "make_operator", "mosaic_mask"]

# How to ask for an argument of `make_operator`.
ASKED_FOR = {
    "mask": "a mask, black where pixels are missing",
    "factor": f"a factor by which to enlarge, {' or '.join(map(str, FACTORS))}",
    "kernel": "the kernel of the blur",
    "blur": "the width of a Gaussian blur in pixels",
    "motion": "length and angle of a motion blur",
    "pattern": "the pattern of the colors",
    "measurements": "the number of measurements",
    "matrix": "the sensing matrix",
    "seed": "the seed of a random matrix",
}


def make_operator(
    task: str,
    shape: tuple[int, int, int],
    *,
    mask: Tensor | None = None,
    factor: int | None = None,
    kernel: Tensor | None = None,
    blur: float | None = None,
    motion: tuple[float, float] | None = None,
    pattern: str | None = None,
    measurements: int | None = None,
    matrix: Tensor | None = None,
    seed: int | Generator | None = None,
) -> LinearOperator:
    """The operator f that turned a clean image of `shape` (C, H, W) into what is at hand.

    Arguments:
        mask: inpaint: (1, H, W), 1 where a pixel is kept and 0 where it is missing.
        factor: superres: one of `FACTORS`; the image at hand is (C, H / factor, W / factor).
        kernel: deblur: (kh, kw), at most the image's size; divided by its sum, so that brightness stays.
        blur: deblur: or the standard deviation of a Gaussian kernel, in pixels.
        motion: deblur: or length and angle of a straight motion, in pixels and degrees.
        pattern: demosaic: one of `PATTERNS`.
        measurements: sense: how many; by default the number of rows of `matrix`.
        matrix: sense: (measurements, C * H * W).
        seed: sense: or the seed of a random matrix, as in `CompressedSensing`.

    Raises:
        InputError: the task is unknown, an argument it needs is missing, or one is given that it does not use.
    """
    if matrix is not None and measurements is None:
        measurements = len(matrix)
    given = {name: value for name, value in locals().items() if name not in ("task", "shape") and value is not None}
    _check_needs(task_named(task), set(given))
    match task:
        case "inpaint":
            return Inpainting(given["mask"], shape)
        case "superres":
            return _super_resolution(shape, given["factor"])
        case "deblur":
            return Blur(shape, blur_kernel(shape, kernel, blur, motion))
        case "demosaic":
            return Inpainting(mosaic_mask(shape, given["pattern"]))
        case "sense":
            return _compressed_sensing(shape, **given)
        case "colorize":
            return Grayscale(shape)
        case "denoise":
            return Denoising(shape)
        case _:
            raise AssertionError(f"the task {task} is in the list, but has no operator")


def damaging_operator(task: str, shape: tuple[int, int, int], damage: Damage, seed: int | Generator) -> LinearOperator:
    """The operator that corrupts a clean image of `shape` (C, H, W); whatever is random comes from `seed`."""
    if task == "inpaint":
        return Inpainting.random_blocks(shape, damage.fraction, damage.block, seed)
    arguments: dict[str, dict[str, Any]] = {
        "superres": {"factor": damage.factor},
        "deblur": {"blur": damage.blur},
        "demosaic": {"pattern": damage.pattern},
        "sense": {"measurements": damage.measurements, "seed": seed},
    }
    return make_operator(task, shape, **arguments.get(task, {}))


def blur_kernel(
    shape: tuple[int, int, int], kernel: Tensor | None, blur: float | None, motion: tuple[float, float] | None
) -> Tensor:
    """The kernel (kh, kw) of a blur for images of `shape`, of sum 1; exactly one of the others is given."""
    if kernel is not None:
        return _normalized(kernel)
    if motion is not None:
        return Blur.motion(shape, *motion).kernel
    assert blur is not None
    return Blur.gaussian(shape, blur).kernel


def mosaic_mask(shape: tuple[int, int, int], pattern: str) -> Tensor:
    """Which colors a camera's sensor sees (3, H, W): one at each pixel."""
    if pattern not in PATTERNS:
        raise InputError(f"pattern is {pattern}; it must be {' or '.join(PATTERNS)}")
    mask = torch.zeros(shape)
    for i, color in enumerate(pattern):
        mask["rgb".index(color), i // 2 :: 2, i % 2 :: 2] = 1
    return mask


def _check_needs(task: Task, given: set[str]) -> None:
    for choices in task.needs:
        present = [name for name in choices if name in given]
        if not present:
            raise InputError(f"{task.name} needs {', or '.join(ASKED_FOR[name] for name in choices)}")
        if len(present) > 1:
            raise InputError(f"{task.name} takes {' or '.join(present)}, not both")
    unused = given - {name for choices in task.needs for name in choices}
    if unused:
        raise InputError(f"{task.name} does not use {', '.join(sorted(unused))}; leave it out")


def _super_resolution(shape: tuple[int, int, int], factor: int) -> SuperResolution:
    if factor not in FACTORS:
        raise InputError(f"factor is {factor}; it must be {' or '.join(map(str, FACTORS))}")
    return SuperResolution(shape, factor)


def _compressed_sensing(
    shape: tuple[int, int, int], measurements: int, matrix: Tensor | None = None, seed: int | Generator = 0
) -> CompressedSensing:
    if matrix is None:
        return CompressedSensing(shape, measurements, seed)
    if len(matrix) != measurements:
        raise InputError(f"the matrix has {len(matrix)} rows for {measurements} measurements; they must agree")
    return CompressedSensing(shape, matrix=matrix)


def _normalized(kernel: Tensor) -> Tensor:
    total = kernel.sum()
    if not kernel.isfinite().all() or not total > 0:
        raise InputError("the kernel's values must be finite and add up to more than 0")
    return kernel / total
