"""What a run is asked to do, checked before any picture is read."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo.align import FITS
from aipo.choose import RULES
from aipo.errors import InputError
from aipo.images import read_kernel, read_mask, read_numbers
from aipo.iterate import Solver
from aipo.noise import Gaussian
from aipo.operators import LinearOperator
from aipo.prior import Prior
from aipo.solvers import Amortized, FixedLambda, FollowPath
from aipo.tasks import FACTORS, Task, make_operator, task_named
from aipo.zoo import load_prior

__all__ = ["LAM_RULES", "SOLVERS", "Settings"]

SOLVERS: dict[str, Callable[[float], Solver[Any]]] = {
    "path": lambda lam: FollowPath((lam,)),
    "quick": lambda lam: Amortized.quick(),
    "paper": lambda lam: Amortized(),
    "decayed": lambda lam: FixedLambda.decayed(),
}

# Rules by which lam is chosen without the truth; anything else must be a number.
LAM_RULES = tuple(rule for rule in RULES if rule != "fixed")

# Which options a task may be given, beside those for all. What of them it needs is known per picture at the latest.
OPTIONS = {
    "inpaint": {"mask", "mask_color"},
    "superres": {"factor"},
    "deblur": {"kernel", "blur"},
    "sense": {"matrix", "seed"},
}
FILES = ("mask", "kernel", "matrix")


@dataclass(frozen=True)
class Settings:
    """The options of a run; the same for all its pictures.

    Arguments:
        task: one of `aipo.tasks.TASKS`.
        prior: the name of an embedded prior, or a .safetensors file.
        sigma: the noise; None for the task's default, which to denoise is an estimate from each picture.
        lam: a number, or one of `LAM_RULES`, by which each picture gets its own.
        solver: one of `SOLVERS`; only "path" can choose lam.
        fit: how to cut what the prior can restore from pictures of other sizes, one of `aipo.align.FITS`.
        mask: inpaint: a picture of the size of those to be restored, white where pixels are kept, black where they are
            missing.
        mask_color: inpaint: or the colour in which what is missing is painted. Without either, transparent pixels are
            missing.
        factor: superres: how many times to enlarge; None for what makes the prior's size of the picture.
        kernel: deblur: a .npy array or a grey picture.
        blur: deblur: or the width of a Gaussian kernel.
        matrix: sense: a .npy array (m, n).
        seed: sense: or the seed of a random one.

    Raises:
        InputError: an option cannot be used, or not in this task. Files are read by `load`.
    """

    task: str
    prior: str
    sigma: float | None = None
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
        allowed = OPTIONS.get(task_named(self.task).name, set())
        for name in sorted({option for options in OPTIONS.values() for option in options} - allowed):
            if getattr(self, name) is not None:
                users = " or ".join(task for task, options in OPTIONS.items() if name in options)
                raise InputError(f"{flag(name)} has no use in --task {self.task}, only in {users}; leave it out")
        given = [name for name in sorted(allowed) if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(map(flag, given))} say the same thing in two ways; leave one of them out")
        if self.task in ("deblur", "sense") and not given:
            raise InputError(f"--task {self.task} needs {' or '.join(map(flag, sorted(allowed)))}")
        if self.factor is not None and self.factor not in FACTORS:
            raise InputError(f"--factor is {self.factor}; pictures are enlarged by {' or '.join(map(str, FACTORS))}")
        self._check_fit()

    def _check_fit(self) -> None:
        if self.fit is None:
            return
        if self.fit not in FITS:
            raise InputError(f"unknown fit {self.fit}; choose from {', '.join(FITS)}")
        if not self.about.full_size:
            raise InputError(f"--fit {self.fit} has no use in --task {self.task}: its input is no picture of full size")
        if self.task == "deblur" and self.fit != "crop":
            raise InputError(f"--fit {self.fit} would change the blur; to deblur only --fit crop can be used")

    @property
    def about(self) -> Task:
        return task_named(self.task)

    @cached_property
    def loaded(self) -> Prior:
        """The prior. A name that is none is refused here."""
        return load_prior(self.prior)

    @cached_property
    def files(self) -> dict[str, Tensor]:
        """What the options' files hold, each in the shape `make_operator` wants. Unusable ones are refused here."""
        read: dict[str, Callable[[Path], Tensor]] = {
            "mask": read_mask,
            "kernel": read_kernel,
            "matrix": lambda path: read_numbers(path, 2).float(),
        }
        return {name: read[name](path) for name in FILES if (path := getattr(self, name)) is not None}

    def load(self) -> None:
        """Read the prior and all files, and refuse what does not fit together."""
        shape = self.loaded.image_shape
        if self.mask is not None and self.fit is None and self.files["mask"].shape[1:] != shape[1:]:
            height, width = self.files["mask"].shape[1:]
            raise InputError(
                f"{self.mask}: the mask is {width}x{height} pixels (width x height), the prior's pictures "
                f"{shape[2]}x{shape[1]}; give a mask of that size, or say with --fit how to fit both"
            )
        if self.task in ("deblur", "sense"):
            known = {"measurements": 1} if self.seed is not None else {}  # how many is known by the first vector
            try:
                self.operator(**known)
            except InputError as error:
                file = self.kernel or self.matrix
                raise InputError(f"{file}: {error}" if file else str(error)) from None

    def operator(self, **known: Any) -> LinearOperator:
        """The operator, from the options and what is known of a picture: mask, factor or number of measurements."""
        options: dict[str, Any] = {name: value for name, value in self.files.items() if name != "mask"}
        options |= {name: value for name in ("blur", "seed") if (value := getattr(self, name)) is not None}
        return make_operator(self.task, self.loaded.image_shape, **options, **known)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that decides what comes out, for the JSON files; two runs with equal ones do the same."""
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
                "sigma": self.sigma if self.sigma is not None else (self.about.sigma or "estimated"),
                "prior": self.loaded.name,
                "prior_sha256": self.loaded.card["sha256"],
                "aipo": aipo.__version__,
                "torch": torch.__version__,
            }
        )

    def command(self, pictures: Sequence[Path], out: Path) -> str:
        """The command line that does the same again."""
        words = ["aipo", "restore", *map(str, pictures)]
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None:
                words += [flag(f.name), str(value)]
        return shlex.join([*words, "--out", str(out)])


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _checked_lam(lam: float | str, solver: str) -> float | str:
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver}; choose from {', '.join(SOLVERS)}")
    if lam in LAM_RULES:
        if solver != "path":
            raise InputError(f"--solver {solver} cannot choose lam; give --lam a number, or use --solver path")
        return lam
    try:
        number = float(lam)
    except ValueError:
        raise InputError(f"--lam is {lam}; give a number, or one of {', '.join(LAM_RULES)}") from None
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"lam is {lam}; the prior's weight must be finite and at least 0")
    if number == 0 and solver == "path":
        raise InputError("--solver path needs lam greater than 0; at 0 the prior would have no say")
    return number
