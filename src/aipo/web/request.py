"""What a user of the app asks for, with the mask that was painted, and the measurement that it means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from aipo.choose.sigma import estimate_sigma
from aipo.errors import InputError
from aipo.noise import Gaussian
from aipo.operators import LinearOperator
from aipo.restore.operators import make_operator
from aipo.restore.tasks import TASKS as ALL_TASKS
from aipo.restore.tasks import Damage, task_named

__all__ = ["SEED", "TASKS", "Measurement", "Request", "mask_text", "measure", "parse_mask", "scratches"]

SEED = 0  # of the damage, so that the preview and the restoration show the same
TASKS = tuple(task.name for task in ALL_TASKS.values() if task.faces)


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        picture: (3, H, W) in [0, 1].
        task: one of `TASKS`.
        damage: whether the picture is clean and is to be damaged first. Otherwise it is taken as it is; only to enlarge
            or to color it, or for projections, what those tasks do not look at is dropped.
        sigma: of the noise; None estimates it, which only denoising can.
        mask: inpaint: (1, H, W), 0 where pixels are missing.
        factor: superres.
        blur: deblur: the width of the Gaussian in pixels.
    """

    picture: Tensor
    task: str
    damage: bool
    sigma: float | None
    mask: Tensor | None = None
    factor: int = 4
    blur: float = 1.5


@dataclass(frozen=True)
class Measurement:
    """The problem's data. `before` is what a person would see of y, (3, H, W); `truth` is None where it is unknown."""

    operator: LinearOperator
    y: Tensor
    sigma: float
    before: Tensor
    truth: Tensor | None


def measure(request: Request) -> Measurement:
    """What is known about the picture: damaged first, if that is asked for."""
    if request.task not in TASKS:
        raise InputError(f"unknown task {request.task}; choose from {', '.join(TASKS)}")
    x = request.picture[None]
    needed = {name for choices in task_named(request.task).needs for name in choices} & {"mask", "factor", "blur"}
    if request.task == "inpaint" and (request.mask is None or request.mask.all()):
        raise InputError("nothing is painted yet: paint over what is missing, then press Restore")
    if request.task == "sense":
        operator = _sensing(_shape(x))
    else:
        operator = make_operator(request.task, _shape(x), **{name: getattr(request, name) for name in needed})
    if request.damage:
        if request.sigma is None:
            raise InputError("say how much noise to add")
        y = operator.measure(x, Gaussian(request.sigma), SEED)
    else:
        # A noisy or blurred picture is the measurement; of the others, what was measured is a part of the picture.
        y = x if request.task in ("denoise", "deblur") else operator.A(x)
    sigma = _estimated(y) if request.sigma is None else request.sigma
    truth = request.picture if request.damage else None
    return Measurement(operator, y, sigma, _seen(request, operator, y)[0].expand(_shape(x)), truth)


@lru_cache(maxsize=1)  # a matrix of 100 MB
def _sensing(shape: tuple[int, int, int]) -> LinearOperator:
    """The paper's random projections; of smaller images half as many as they have values."""
    return make_operator("sense", shape, measurements=min(Damage.measurements, math.prod(shape) // 2), seed=SEED)


def _seen(request: Request, operator: LinearOperator, y: Tensor) -> Tensor:
    """The measurement (1, ...) as a picture."""
    if request.task in ("deblur", "colorize"):
        return y
    if request.task == "inpaint" and request.mask is not None:
        return torch.where(request.mask > 0, y, 0.5)  # gray: black could be part of the picture
    return operator.A_dagger(y)


def _shape(x: Tensor) -> tuple[int, int, int]:
    return x.shape[1], x.shape[2], x.shape[3]


def _estimated(y: Tensor) -> float:
    sigma = estimate_sigma(y).item()
    if not sigma > 0:
        raise InputError("the noise of this picture cannot be estimated; set it yourself")
    return sigma


def scratches(size: tuple[int, int] = (64, 64)) -> Tensor:
    """A mask (1, H, W) to begin with: two scratches and a stain."""
    rows, columns = torch.meshgrid(*(torch.arange(n) / n for n in size), indexing="ij")
    missing = (columns - 0.9 * rows - 0.12).abs() < 0.035
    missing |= (columns + 0.35 * rows - 0.95).abs() < 0.03
    missing |= (columns - 0.42).square() + (rows - 0.72).square() < 0.1**2
    return (~missing).float()[None]


def parse_mask(text: object, size: tuple[int, int]) -> Tensor:
    """A mask (1, H, W) from the page: one character for each pixel, 0 where it is missing."""
    height, width = size
    if not isinstance(text, str) or len(text) != height * width or set(text) - set("01"):
        raise InputError(f"the mask must have {height * width} characters, each 0 or 1; reload the page")
    return torch.tensor([float(c) for c in text]).view(1, height, width)


def mask_text(mask: Tensor) -> str:
    """The inverse of `parse_mask`."""
    return "".join(str(int(v)) for v in mask.flatten().tolist())
