"""What a run is asked to do, checked before any image is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo.choose.lam import RULES
from aipo.errors import InputError
from aipo.images import read_kernel, read_mask, read_numbers
from aipo.images.windows import FITS
from aipo.noise import Gaussian
from aipo.operators import LinearOperator
from aipo.priors.prior import Prior
from aipo.priors.zoo import load_flow_prior
from aipo.restore.command import command_line
from aipo.restore.operators import make_operator
from aipo.restore.tasks import FACTORS, TASKS, task_named
from aipo.solvers import LBFGS, Amortized, FixedLambda
from aipo.solvers.solve import AtLambda

__all__ = ["LAM_RULES", "SOLVERS", "Settings", "flag"]

SOLVERS: dict[str, AtLambda[Any]] = {
    "path": LBFGS(),
    "quick": Amortized.quick(),
    "paper": Amortized(),
    "decayed": FixedLambda.decayed(),
}

# How lam is chosen without the truth; anything else must be a number.
LAM_RULES = tuple(rule for rule in RULES if rule != "fixed")
FILES = ("mask", "kernel", "matrix")


@dataclass(frozen=True)
class Settings:
    """The options of a run, the same for all its images.

    Arguments:
        task: one of `aipo.restore.tasks.TASKS`.
        prior: the name of an embedded prior, or a .safetensors file.
        sigma: the noise, for values in [0,1]; None for the task's default.
        trust_sigma: whether a sigma that the image contradicts is used all the same.
        lam: a number, or one of `LAM_RULES`, by which each image gets its own.
        solver: one of `SOLVERS`; only "path" can choose lam.
        fit: how to cut a part that the prior can restore from images of other sizes, one of `FITS`.
        mask: inpaint: an image of the size of those to be restored, white where pixels are kept, black where they are
            missing.
        mask_color: inpaint: or the color in which the missing pixels are painted. Without either, transparent pixels
            are missing.
        factor: superres: how many times to enlarge; None for the factor that gives the prior's size.
        kernel: deblur: a .npy array or a gray image.
        blur: deblur: or the standard deviation of a Gaussian kernel, in pixels.
        matrix: sense: a .npy array (m, n).
        seed: sense: or the seed of a random one.

    Raises:
        InputError: an option cannot be used, or not in this task. Files are read by `load`.
    """

    task: str
    prior: str
    sigma: float | None = None
    trust_sigma: bool = False
    lam: float | str = "auto"
    solver: str = "path"
    fit: str | None = None
    mask: Path | None = None
    mask_color: str | None = None
    factor: int | None = None
    kernel: Path | None = None
    blur: float | None = None
    matrix: Path | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", _checked_lam(self.lam, self.solver))
        if self.sigma is not None:
            Gaussian(self.sigma)  # refuses what cannot be a standard deviation
        self._check_options()
        self._check_fit()

    def _check_options(self) -> None:
        task = task_named(self.task)
        for other in TASKS.values():
            for name in other.options:
                if name not in task.options and getattr(self, name) is not None:
                    raise InputError(f"{flag(name)} only works with --task {other.name}, not {task.name}; leave it out")
        given = [name for name in task.options if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"give {' or '.join(map(flag, given))}, not both")
        if task.option_required and not given:
            raise InputError(f"--task {task.name} needs {' or '.join(map(flag, task.options))}")
        if self.factor is not None and self.factor not in FACTORS:
            raise InputError(f"--factor is {self.factor}; it must be {' or '.join(map(str, FACTORS))}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"--seed is {self.seed}; it must be from 0 to 2^63 - 1")

    def _check_fit(self) -> None:
        if self.fit is None:
            return
        if self.fit not in FITS:
            raise InputError(f"unknown fit {self.fit}; choose from {', '.join(FITS)}")
        if TASKS[self.task].input != "image":
            what = f"its input is a {TASKS[self.task].input}"
            raise InputError(f"--fit {self.fit} does not work with --task {self.task}, as {what}; leave it out")
        if self.task == "deblur" and self.fit != "crop":
            raise InputError(f"--fit {self.fit} would change the blur; use --fit crop with --task deblur")

    @cached_property
    def loaded_prior(self) -> Prior:
        """The prior itself; `InputError` if there is none of that name."""
        return load_flow_prior(self.prior)

    @cached_property
    def files(self) -> dict[str, Tensor]:
        """The content of the options' files by option, in the shape that `make_operator` wants."""
        read: dict[str, Callable[[Path], Tensor]] = {
            "mask": read_mask,
            "kernel": read_kernel,
            "matrix": lambda path: read_numbers(path, 2).float(),
        }
        return {name: read[name](path) for name in FILES if (path := getattr(self, name)) is not None}

    def load(self) -> None:
        """Read the prior and all files.

        Raises:
            InputError: a file cannot be used, or does not go with the prior.
        """
        shape = self.loaded_prior.image_shape
        if self.mask is not None and self.fit is None and self.files["mask"].shape[1:] != shape[1:]:
            height, width = self.files["mask"].shape[1:]
            raise InputError(
                f"{self.mask}: the mask is {width}x{height} pixels (width x height), but the prior needs "
                f"{shape[2]}x{shape[1]}; give a mask of that size, or add --fit to fit picture and mask"
            )
        if TASKS[self.task].option_required:
            known = {"measurements": 1} if self.seed is not None else {}  # how many is only known from a vector
            try:
                self.operator(**known)
            except InputError as error:
                file = self.kernel or self.matrix
                raise InputError(f"{file}: {error}" if file else str(error)) from None

    def operator(self, **known: Any) -> LinearOperator:
        """The operator, from the options and what is known from an image: its factor or number of measurements."""
        options: dict[str, Any] = {name: value for name, value in self.files.items() if name != "mask"}
        options |= {name: value for name in ("blur", "seed") if (value := getattr(self, name)) is not None}
        return make_operator(self.task, self.loaded_prior.image_shape, **options, **known)

    @cached_property
    def record(self) -> dict[str, str | bool | float | None]:
        """Everything that decides what comes out, for the JSON files: two runs with equal ones do the same."""
        options = {f.name: getattr(self, f.name) for f in fields(self)}
        options |= {name: str(path) for name in FILES if (path := options[name]) is not None}
        hashes = {
            f"{name}_sha256": hashlib.sha256(path.read_bytes()).hexdigest()
            for name in FILES
            if (path := getattr(self, name)) is not None
        }
        return (
            options
            | hashes
            | {
                "sigma": self.sigma if self.sigma is not None else (TASKS[self.task].sigma or "estimated"),
                "prior": self.loaded_prior.name,
                "prior_sha256": self.loaded_prior.card["sha256"],
                "aipo": aipo.__version__,
                "torch": torch.__version__,
            }
        )

    def command(self, arguments: Sequence[Path], out: Path) -> str:
        """The command line that does the same again."""
        words: list[str | Path] = ["restore", *arguments]
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool):
                words += [flag(f.name)] if value else []
            elif value is not None:
                words += [flag(f.name), Path(value) if f.name in ("prior", *FILES) else str(value)]
        return command_line([*words, "--out", out])


def flag(name: str) -> str:
    """An option as people write it: mask_color -> --mask-color."""
    return "--" + name.replace("_", "-")


def _checked_lam(lam: float | str, solver: str) -> float | str:
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver}; choose from {', '.join(SOLVERS)}")
    if lam in LAM_RULES:
        if solver != "path":
            raise InputError(f"--solver {solver} cannot choose lam; give a number with --lam, or use --solver path")
        return lam
    try:
        number = float(lam)
    except ValueError:
        raise InputError(f"--lam is {lam}; give a number, or one of {', '.join(LAM_RULES)}") from None
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"--lam is {lam}; the weight of the prior must be finite and at least 0")
    if number == 0 and solver == "path":
        raise InputError("--solver path needs --lam greater than 0; with 0 the prior would not count")
    return number
