"""What can have happened to a picture: one list for the command line, the web app, `corrupt` and the demo.

Nothing here needs torch, so the command line can take its choices and defaults from this list and still answer at once.
`aipo.restore.operators` builds the operator of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aipo.errors import InputError

__all__ = ["FACE_PRIOR", "FACTORS", "PATTERNS", "PHOTO_PRIOR", "TASKS", "Damage", "Task", "task_named"]

# Embedded priors that are taken if nobody names one: for 64x64 faces, and for photographs.
FACE_PRIOR, PHOTO_PRIOR = "celeba64-realnvp-small", "photo-small"

FACTORS = (2, 3, 4)  # by which a picture can be enlarged
PATTERNS = ("rggb", "bggr", "grbg", "gbrg")  # colors of the upper left 2x2 pixels of a mosaic, row by row
ADDED_SIGMA = 0.1  # noise for a clean picture, if the task assumes none


@dataclass(frozen=True)
class Task:
    """One kind of corruption.

    Attributes:
        name: as on the command line.
        title: as a heading.
        symptom: what is wrong with such a picture, in a word or two.
        sigma: the noise assumed if none is given, for values in [0,1]; None if it is estimated from the picture.
        needs: arguments of `make_operator`. Exactly one of each group must be given, and no others.
        options: how a person states them to `aipo restore`. At most one of these may be given.
        option_required: whether one of `options` must be given. Otherwise the picture itself can tell.
        input: what is restored: an image of the prior's size, a smaller one, or a vector of measurements.
        whole: whether a prior for images of any size can do it to a whole photograph.
        faces: whether a prior of 64x64 faces can do it.
    """

    name: str
    title: str
    symptom: str
    sigma: float | None
    needs: tuple[tuple[str, ...], ...] = ()
    options: tuple[str, ...] = ()
    option_required: bool = False
    input: Literal["image", "small image", "vector"] = "image"
    whole: bool = True
    faces: bool = True

    @property
    def added_sigma(self) -> float:
        """The noise to add when a clean picture is corrupted in this way, for values in [0,1]."""
        return ADDED_SIGMA if self.sigma is None else self.sigma


# A picture that is not noisy still has rounding and compression, and a prior that is only roughly right: 0.02 is about
# five levels of 255. Super-resolution averages it away, and needs all the detail there is.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("denoise", "Denoising", "Noise", None),
        Task("inpaint", "Inpainting", "Missing parts", 0.02, (("mask",),), ("mask", "mask_color")),
        Task("superres", "Super-resolution", "Too few pixels", 0.01, (("factor",),), ("factor",), input="small image"),
        Task(
            "deblur",
            "Deblurring",
            "Blur",
            0.02,
            (("kernel", "blur", "motion"),),
            ("blur", "motion", "kernel"),
            option_required=True,
        ),
        Task("demosaic", "Demosaicing", "One color per pixel", 0.01, (("pattern",),), ("pattern",), faces=False),
        Task("colorize", "Colorization", "No color", 0.02, whole=False),
        Task(
            "sense",
            "Compressed sensing",
            "Only random projections",
            0.1,
            (("measurements",), ("matrix", "seed")),
            ("matrix", "seed"),
            option_required=True,
            input="vector",
            whole=False,
        ),
    )
}


@dataclass(frozen=True)
class Damage:
    """How strongly a clean picture is corrupted, apart from the noise. Each number concerns one task.

    Attributes:
        fraction: inpaint: share of the pixels that go missing.
        block: inpaint: side of the missing blocks, in pixels.
        factor: superres: how many times smaller the picture gets, one of `FACTORS`.
        blur: deblur: standard deviation of the Gaussian kernel, in pixels.
        pattern: demosaic: one of `PATTERNS`.
        measurements: sense: number of random projections.
    """

    fraction: float = 0.25
    block: int = 4
    factor: int = 2
    blur: float = 1.5
    pattern: str = "rggb"
    measurements: int = 2000


def task_named(name: str) -> Task:
    """The task of that name; `InputError` if there is none."""
    if name not in TASKS:
        raise InputError(f"unknown task {name}; choose from {', '.join(TASKS)}")
    return TASKS[name]
