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
from aipo.images.photograph import ENDINGS
from aipo.images.windows import FITS
from aipo.noise import Gaussian
from aipo.operators import LinearOperator
from aipo.priors.noise_prior import NoisePrior
from aipo.priors.prior import Prior, chosen_device
from aipo.priors.zoo import load_flow_prior, load_prior, prior_names
from aipo.restore.classical import check_installed
from aipo.restore.command import command_line
from aipo.restore.operators import blur_kernel, make_operator
from aipo.restore.tasks import FACE_PRIOR, FACTORS, PATTERNS, PHOTO_PRIOR, TASKS, task_named
from aipo.solvers import LBFGS, Amortized, FixedLambda
from aipo.solvers.solve import AtLambda

__all__ = ["LAM_RULES", "SOLVERS", "Settings", "default_prior", "flag"]

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
        prior: the name of an embedded prior, or a .safetensors file. One for images of any size restores whole
            photographs, see `whole`.
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
        motion: deblur: or length and angle of a straight motion, "LENGTH,ANGLE", in pixels and degrees.
        pattern: demosaic: one of `PATTERNS`; None for the first.
        matrix: sense: a .npy array (m, n).
        seed: sense: or the seed of a random one.
        format: for whole photographs: the ending of the results, such as png; None for that of each input.
        quality: of JPEG, WebP and AVIF, 1 to 100.
        anyway: do also what looks like a mistake.
        compare: for whole photographs: restore them by a classical method too.
        faces: for whole photographs that are denoised: "auto" improves small faces by the prior of faces.
        device: where to compute: auto, cpu, cuda or one GPU such as cuda:1. Not recorded, as it hardly changes results.

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
    motion: str | None = None
    pattern: str | None = None
    matrix: Path | None = None
    seed: int | None = None
    format: str | None = None
    quality: int | None = None
    anyway: bool = False
    compare: bool = False
    faces: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", _checked_lam(self.lam, self.solver))
        if self.sigma is not None:
            Gaussian(self.sigma)  # refuses what cannot be a standard deviation
            if 1 < self.sigma <= 255 and not self.anyway:
                raise InputError(
                    f"--sigma is {self.sigma:g}, on a scale where white is 1; did you mean {self.sigma:g}/255 = "
                    f"{self.sigma / 255:.3f}? (--anyway takes it as it is)"
                )
        chosen_device(self.device)
        self._check_options()
        self._check_fit()

    def __getstate__(self) -> dict[str, Any]:
        # What was read is read again where they arrive.
        return {f.name: getattr(self, f.name) for f in fields(self)}

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
        if self.pattern is not None and self.pattern not in PATTERNS:
            raise InputError(f"--pattern is {self.pattern}; it must be {' or '.join(PATTERNS)}")
        if self.format is not None and f".{self.format}" not in ENDINGS:
            raise InputError(f"--format is {self.format}; it must be one of {', '.join(e[1:] for e in ENDINGS)}")
        if self.faces not in (None, "auto"):
            raise InputError(f"--faces is {self.faces}; it must be auto, or be left out")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise InputError(f"--quality is {self.quality}; it must be from 1 to 100")
        self.straight_motion  # noqa: B018 - refuses what cannot be one
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
    def loaded_prior(self) -> Prior | NoisePrior:
        """The prior itself; `InputError` if there is none of that name."""
        return load_prior(self.prior).to(chosen_device(self.device))

    @property
    def face_prior(self) -> Prior:
        """The prior, for images of one size."""
        assert isinstance(self.loaded_prior, Prior)
        return self.loaded_prior

    @property
    def photo_prior(self) -> NoisePrior:
        """The prior, for whole photographs."""
        assert isinstance(self.loaded_prior, NoisePrior)
        return self.loaded_prior

    @cached_property
    def small_face_prior(self) -> Prior:
        """The prior of faces in photographs."""
        return load_flow_prior(FACE_PRIOR).to(chosen_device(self.device))

    @property
    def whole(self) -> bool:
        """Whether whole photographs are restored, at their own size, rather than images of the prior's size."""
        return isinstance(self.loaded_prior, NoisePrior)

    @property
    def straight_motion(self) -> tuple[float, float] | None:
        """`motion` as numbers."""
        if self.motion is None:
            return None
        try:
            length, angle = (float(part) for part in self.motion.split(","))
        except ValueError:
            raise InputError(f"--motion is {self.motion}; give length and angle, such as 9,45") from None
        if not (1 <= length <= 1000 and math.isfinite(angle)):
            raise InputError(f"--motion is {self.motion}; the length must be 1 to 1000 pixels, the angle a number")
        return length, angle

    def ending(self, image: Path) -> str:
        """The ending of the restored image of a file."""
        if not self.whole:
            return ".png"
        return f".{self.format}" if self.format else image.suffix.lower()

    def kernel_for(self, shape: tuple[int, int, int]) -> Tensor:
        """deblur: the kernel (kh, kw), for images of this shape."""
        return blur_kernel(shape, self.files.get("kernel"), self.blur, self.straight_motion)

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
        self._check_prior()
        if self.whole:
            self.files  # noqa: B018 - reads them
            if self.compare:
                check_installed(self.task)
            return
        shape = self.face_prior.image_shape
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
        if self.straight_motion:
            options["motion"] = self.straight_motion
        return make_operator(self.task, self.face_prior.image_shape, **options, **known)

    def _check_prior(self) -> None:
        """Refuse options that do not go with the prior."""
        task, name = TASKS[self.task], self.loaded_prior.name
        if not self.whole:
            if not task.faces:
                raise InputError(f"--task {task.name} needs a prior for photographs of any size, not {name}")
            _, height, width = self.face_prior.image_shape
            if self.factor is not None and (height % self.factor or width % self.factor):
                raise InputError(f"--factor is {self.factor}, which does not divide {name}'s {width}x{height} pixels")
            for option in ("format", "quality", "compare", "faces"):
                if getattr(self, option):
                    raise InputError(f"{flag(option)} is for whole photographs; {name} restores 64x64 pixels")
            return
        if self.faces and task.name != "denoise":
            raise InputError(f"--faces only works with --task denoise, not {task.name}; leave it out")
        if not task.whole:
            raise InputError(f"--task {task.name} needs a prior that knows one kind of picture, not {name}")
        if self.fit is not None:
            raise InputError(f"--fit is for priors of one size; {name} restores the whole picture, leave it out")
        if self.lam != "auto" or self.solver != "path":
            raise InputError(f"--lam and --solver are for priors of one size; {name} needs neither, leave them out")

    @cached_property
    def record(self) -> dict[str, str | bool | float | None]:
        """Everything that decides what comes out, for the JSON files: two runs with equal ones do the same."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "device"}
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
            elif value is not None and (f.name, value) != ("device", "auto"):
                words += [flag(f.name), Path(value) if f.name in ("prior", *FILES) else str(value)]
        return command_line([*words, "--out", out])


def default_prior(task: str, fit: str | None = None, lam: float | str = "auto", solver: str = "path") -> str:
    """The embedded prior for these options: the one of photographs, if it is there and nothing asks for a face."""
    whole = task_named(task).whole and fit is None and lam == "auto" and solver == "path"
    return PHOTO_PRIOR if whole and PHOTO_PRIOR in prior_names() else FACE_PRIOR


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
