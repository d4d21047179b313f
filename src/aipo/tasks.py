"""What can have happened to a picture, by the names that people use, and the operator for it.

The command line and the web app share this list: a task is an operator of `aipo.operators`, the noise that is assumed
where none is given, and what must be known besides the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aipo.errors import InputError
from aipo.operators import Blur, CompressedSensing, Denoising, Grayscale, Inpainting, LinearOperator, SuperResolution

__all__ = ["FACTORS", "TASKS", "Task", "make_operator", "task_named"]

FACTORS = (2, 4)  # by which a picture may be enlarged


@dataclass(frozen=True)
class Task:
    """One kind of corruption.

    Attributes:
        name: as on the command line.
        title: as a heading.
        summary: one sentence for someone who has such a picture.
        sigma: the noise that is assumed where none is given, on the scale [0,1]; None if it is estimated from the
            picture.
        needs: sets of arguments of `make_operator`; of each set exactly one must be given, and no others may be.
        full_size: whether the measurement is a picture of the prior's size, so that it can be cropped or aligned.
    """

    name: str
    title: str
    summary: str
    sigma: float | None
    needs: tuple[tuple[str, ...], ...] = ()
    full_size: bool = True


# A picture that is not noisy still has rounding and compression, and a prior that is only roughly right: 0.02 is about
# five levels of 255. Super-resolution averages it away, and needs all the detail there is.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("denoise", "Denoising", "Remove noise from a picture.", None),
        Task("inpaint", "Inpainting", "Fill in the pixels that are missing.", 0.02, (("mask",),)),
        Task(
            "superres",
            "Super-resolution",
            "Enlarge a small picture two or four times.",
            0.01,
            (("factor",),),
            full_size=False,
        ),
        Task("deblur", "Deblurring", "Undo a known blur.", 0.02, (("kernel", "blur"),)),
        Task("colorize", "Colourisation", "Give a grey picture its colours.", 0.02),
        Task(
            "sense",
            "Compressed sensing",
            "Reconstruct a picture from few random projections of it.",
            0.1,
            (("measurements",), ("matrix", "seed")),
            full_size=False,
        ),
    )
}

# How a person gives an argument of `make_operator`, for messages.
WANTED = {
    "mask": "what is missing: a mask, black where pixels are missing",
    "factor": f"how many times to enlarge: a factor, {' or '.join(map(str, FACTORS))}",
    "kernel": "the kernel of the blur",
    "blur": "the width of a Gaussian blur in pixels",
    "measurements": "the number of measurements",
    "matrix": "the sensing matrix",
    "seed": "the seed of a random matrix",
}


def task_named(name: str) -> Task:
    """The task of that name; `InputError` if there is none."""
    if name not in TASKS:
        raise InputError(f"unknown task {name}; choose from {', '.join(TASKS)}")
    return TASKS[name]


def make_operator(
    task: str,
    shape: tuple[int, int, int],
    *,
    mask: Tensor | None = None,
    factor: int | None = None,
    kernel: Tensor | None = None,
    blur: float | None = None,
    measurements: int | None = None,
    matrix: Tensor | None = None,
    seed: int | None = None,
) -> LinearOperator:
    """The operator f that turned a clean picture of `shape` (C, H, W) into what is at hand.

    Arguments:
        mask: inpaint: (1, H, W), 1 where a pixel is kept and 0 where it is missing.
        factor: superres: 2 or 4; the picture at hand is (C, H / factor, W / factor).
        kernel: deblur: (kh, kw), at most the picture's size; divided by its sum, so that brightness stays.
        blur: deblur: or the standard deviation of a Gaussian kernel, in pixels.
        measurements: sense: how many; that of `matrix` if one is given.
        matrix: sense: (measurements, C * H * W).
        seed: sense: or the seed of a random matrix, as of `CompressedSensing`.

    Raises:
        InputError: the task is unknown, something it needs is missing, or something is given that it has no use for.
    """
    if matrix is not None and measurements is None:
        measurements = len(matrix)
    given = {
        "mask": mask,
        "factor": factor,
        "kernel": kernel,
        "blur": blur,
        "measurements": measurements,
        "matrix": matrix,
        "seed": seed,
    }
    _check_needs(task_named(task), {name for name, value in given.items() if value is not None})
    if mask is not None:
        return Inpainting(mask, shape)
    if factor is not None:
        if factor not in FACTORS:
            raise InputError(f"factor is {factor}; pictures are enlarged by {' or '.join(map(str, FACTORS))}")
        return SuperResolution(shape, factor)
    if kernel is not None:
        return Blur(shape, _normalised(kernel))
    if blur is not None:
        return Blur.gaussian(shape, blur)
    if matrix is not None:
        if len(matrix) != measurements:
            raise InputError(f"the matrix has {len(matrix)} rows for {measurements} measurements; they must agree")
        return CompressedSensing(shape, matrix=matrix)
    if seed is not None:
        return CompressedSensing(shape, measurements, seed)
    return Grayscale(shape) if task == "colorize" else Denoising(shape)


def _check_needs(task: Task, given: set[str]) -> None:
    for choices in task.needs:
        present = [name for name in choices if name in given]
        if not present:
            raise InputError(f"{task.name} needs {', or '.join(WANTED[name] for name in choices)}")
        if len(present) > 1:
            raise InputError(f"{task.name} takes {' or '.join(present)}, not both")
    unused = given - {name for choices in task.needs for name in choices}
    if unused:
        raise InputError(f"{task.name} has no use for {', '.join(sorted(unused))}; leave it out")


def _normalised(kernel: Tensor) -> Tensor:
    total = kernel.sum()
    if not kernel.isfinite().all() or not total > 0:
        raise InputError("the kernel's values must be finite and add up to more than 0")
    return kernel / total
