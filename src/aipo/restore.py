"""Restore picture files: read and check everything, solve all pictures in one batch, write what came out.

`prepare` refuses bad input before anything is solved or written; `run` does the rest.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import aipo
from aipo.choose import RULES, Choice, Rule, choose_lambda
from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically
from aipo.images import read_image, read_mask, write_image
from aipo.iterate import Result, Solver
from aipo.noise import Gaussian
from aipo.operators import Denoising, Inpainting, Operator
from aipo.path import Path as LamPath
from aipo.prior import Prior
from aipo.problem import MapProblem
from aipo.report import Picture, Section, write_report
from aipo.sigma import estimate_sigma
from aipo.solvers import Amortized, FixedLambda, FollowPath
from aipo.zoo import load_prior

__all__ = ["LAM_RULES", "REPORT", "SIGMA", "SOLVERS", "Job", "numbers", "prepare", "rounded", "run", "table"]

# Denoising estimates sigma from the picture. A masked picture is taken to be clean but for rounding and compression.
SIGMA = {"inpaint": 0.02}

SOLVERS: dict[str, Callable[[float], Solver[Any]]] = {
    "path": lambda lam: FollowPath((lam,)),
    "quick": lambda lam: Amortized.quick(),
    "paper": lambda lam: Amortized(),
    "decayed": lambda lam: FixedLambda.decayed(),
}

# Rules by which lam is chosen without the truth; anything else must be a number.
LAM_RULES = tuple(rule for rule in RULES if rule != "fixed")

REPORT = "report.html"
STRIP_LENGTH = 9

EXPLANATION = (
    "The loss L = D + lam P adds how badly a picture explains the measured one (D) and how unlikely it is under the "
    "prior (P), in nats. chi2 is the mean squared residual in units of sigma squared: about 1 for the true picture, "
    "somewhat less for a good restoration, which always fits a little of the noise, much less if it still follows the "
    "noise, and more if it has lost detail."
)
PATH_EXPLANATION = (
    "The same picture restored with a growing weight lam of the prior: too little leaves the noise, too much loses "
    "detail. The marked one was chosen without knowing the true picture."
)
RULE_EXPLANATION = {
    "discrepancy": " Its chi2 is the one that is expected of a good restoration, {target}.",
    "sure": " It has the smallest estimated error (Stein's unbiased risk estimate).",
    "held-out": " It predicts best the measurements that were left out of the fit.",
    "l-curve": " It lies at the corner of the curve of P against the residual.",
}


@dataclass(frozen=True)
class Job:
    """One run: its checked settings, and the problem that holds all pictures in one batch."""

    pictures: Sequence[Path]
    out: Path
    task: str
    sigma: float | None
    lam: float | str
    solver: str
    prior: str
    mask: Path | None
    problem: MapProblem

    @property
    def sigmas(self) -> list[float]:
        """The sigma of each picture, given or estimated."""
        noise = self.problem.noise
        assert isinstance(noise, Gaussian)
        return torch.as_tensor(noise.sigma, dtype=torch.float64).expand(len(self.pictures)).tolist()

    @property
    def command(self) -> str:
        """The command line that does the same again."""
        words = ["aipo", "restore", *map(str, self.pictures), "--task", self.task]
        words += ["--sigma", str(self.sigma)] if self.sigma is not None else []
        words += ["--lam", str(self.lam), "--prior", self.prior, "--solver", self.solver]
        words += ["--mask", str(self.mask)] if self.mask else []
        return shlex.join([*words, "--out", str(self.out)])


def prepare(
    pictures: Sequence[Path],
    out: Path,
    *,
    task: str,
    sigma: float | None,
    lam: str,
    solver: str,
    prior: str,
    mask: Path | None,
) -> Job:
    """Read and check everything that a run needs, then make its output folder.

    Arguments:
        pictures: corrupted pictures of the prior's size, all measured alike.
        out: where the results go: NAME.restored.png and NAME.json for each picture, and report.html.
        task: "denoise" or "inpaint".
        sigma: None for the task's default; to denoise, it is then estimated from each picture.
        lam: a number, or one of `LAM_RULES`, by which each picture gets its own.
        solver: one of `SOLVERS`; only "path" can choose lam.
        prior: the name of an embedded prior, or a .safetensors file.
        mask: for inpainting, a picture that is white where pixels are kept and black where they are missing.

    Raises:
        InputError: something cannot be used; nothing has been written then.
    """
    weight = _checked_lam(lam, solver)
    sigma = SIGMA.get(task) if sigma is None else sigma
    if sigma is not None:
        Gaussian(sigma)  # refuses what cannot be a standard deviation
    if task == "inpaint" and mask is None:
        raise InputError("inpainting needs to know what is missing; give --mask, black where pixels are missing")
    if task == "denoise" and mask is not None:
        raise InputError(f"--mask {mask} has no use in denoising; leave it out, or choose --task inpaint")
    _check_names(pictures, out, mask)
    loaded = load_prior(prior)
    operator = _operator(loaded, mask)
    y = torch.stack([read_image(path, loaded.image_shape) for path in pictures])
    noise = Gaussian(_estimated(pictures, y) if sigma is None else sigma)
    problem = MapProblem(loaded, operator, noise, y)
    ensure_folder(out)
    return Job(pictures, out, task, sigma, weight, solver, prior, mask, problem)


def run(job: Job, progress: bool) -> list[dict[str, Any]]:
    """Solve all pictures together, write the results, and return the records that are in the JSON files.

    A picture that could not be solved gets a record with its status, but no restoration.
    """
    start = time.perf_counter()
    result, choice = _solve(job, progress)
    seconds = round(time.perf_counter() - start, 3)
    settings = {
        "task": job.task,
        "sigma": "estimated" if job.sigma is None else job.sigma,
        "lam": job.lam,
        "solver": job.solver,
        "mask": str(job.mask) if job.mask else None,
        "prior": job.problem.prior.name,
        "prior_sha256": job.problem.prior.card["sha256"],
        "aipo": aipo.__version__,
        "torch": torch.__version__,
    }
    paths = path_numbers(job.problem, choice.path) if choice else [None] * len(job.pictures)
    records = []
    for i, (path, x, values) in enumerate(zip(job.pictures, result.x, numbers(job.problem, result), strict=True)):
        restored, record_file = _outputs(path, job.out)
        done = values["status"] == "done"
        record = {
            "picture": str(path),
            "restored": str(restored) if done else None,
            **values,
            "sigma": job.sigmas[i],
            "rule": choice.rule if choice else "fixed",
            "path": paths[i],
            # The pictures were solved together, so the time is that of them all.
            "seconds": seconds,
            "batch": len(job.pictures),
            "settings": settings,
        }
        if done:
            write_image(restored, x)
        write_atomically(record_file, (json.dumps(record, indent=2) + "\n").encode())
        records.append(record)
    _write_report(job, result, choice, records, settings)
    return records


def _solve(job: Job, progress: bool) -> tuple[Result, Choice | None]:
    if isinstance(job.lam, str):
        choice = choose_lambda(job.problem, cast(Rule, job.lam), progress=progress)
        return choice.result, choice
    result: Result | LamPath = SOLVERS[job.solver](job.lam).solve(job.problem, job.lam, progress=progress)
    return (result.at(job.lam) if isinstance(result, LamPath) else result), None


def path_numbers(problem: MapProblem, path: LamPath) -> list[list[dict[str, float]]]:
    """For each image, what is known at each lam of its path, ready for JSON."""
    columns = {
        "lam": path.lam,
        "chi2": path.chi2(problem),
        "loss": path.loss,
        "D": path.D,
        "P": path.P,
        "gap": path.gap,
    }
    solved = path.lam.isfinite().sum(1).tolist()
    return [
        [{name: column[i, j].item() for name, column in columns.items()} for j in range(count)]
        for i, count in enumerate(solved)
    ]


@torch.no_grad()
def numbers(problem: MapProblem, result: Result) -> list[dict[str, Any]]:
    """What a result says about each image, ready for JSON: None where a value is not finite."""
    columns = {"loss": result.loss, "D": result.D, "P": result.P, "chi2": problem.chi2(result.x)}
    return [
        {
            "status": status,
            "lam": result.lam[i].item() if status == "done" else None,
            **{name: value if math.isfinite(value := column[i].item()) else None for name, column in columns.items()},
            "evaluations": int(result.evals[i]),
        }
        for i, status in enumerate(result.status)
    ]


def table(records: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people."""
    header = ["picture", "status", "sigma", "lam", "loss", "D", "P", "chi2", "evaluations"]
    digits = {"sigma": 3, "lam": 2, "loss": 0, "D": 0, "P": 0, "chi2": 3}
    rows = [
        [Path(r["picture"]).name, r["status"]]
        + [rounded(r[name], places) for name, places in digits.items()]
        + [str(r["evaluations"])]
        for r in records
    ]
    return header, rows


def rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _checked_lam(lam: str, solver: str) -> float | str:
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


def _estimated(pictures: Sequence[Path], y: Tensor) -> Tensor:
    sigma = estimate_sigma(y)
    for picture, value in zip(pictures, sigma.tolist(), strict=True):
        if not value > 0:
            raise InputError(f"{picture}: its noise cannot be estimated; give --sigma, its standard deviation in 0..1")
    return sigma


def _operator(prior: Prior, mask: Path | None) -> Operator:
    if mask is None:
        return Denoising(prior.image_shape)
    return Inpainting(read_mask(mask, prior.image_shape[1:]), prior.image_shape)


def _outputs(picture: Path, out: Path) -> tuple[Path, Path]:
    return out / f"{picture.stem}.restored.png", out / f"{picture.stem}.json"


def _check_names(pictures: Sequence[Path], out: Path, mask: Path | None) -> None:
    """Refuse what would overwrite an input or another result, or fail to be written after the solve."""
    seen: dict[str, Path] = {}
    for picture in pictures:
        # Some file systems do not tell upper from lower case.
        other = seen.setdefault(picture.stem.casefold(), picture)
        if other is not picture:
            raise InputError(f"{other} and {picture} would both be written as {picture.stem}; restore them one by one")
    inputs = {os.path.realpath(path) for path in (*pictures, mask) if path}
    for target in (out / REPORT, *(target for picture in pictures for target in _outputs(picture, out))):
        if target.is_dir():
            raise InputError(f"cannot write {target}: it is a folder; choose another --out")
        if os.path.realpath(target) in inputs:
            raise InputError(f"{target} is an input and would be overwritten; choose another --out")


def _write_report(
    job: Job, result: Result, choice: Choice | None, records: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    rows = []
    for y, x, record in zip(job.problem.y, result.x, records, strict=True):
        name = Path(record["picture"]).name
        row = [Picture(f"{name}: as measured", y, f"sigma {rounded(record['sigma'], 3)}")]
        if record["restored"]:
            note = f"lam {rounded(record['lam'], 2)}, chi2 {rounded(record['chi2'], 3)}"
            row.append(Picture(f"{name}: restored", x, note))
        rows.append(row)
    sections = [Section("Pictures", rows=rows)]
    if choice:
        sections += [_path_section(i, choice, result, record) for i, record in enumerate(records) if record["restored"]]
    write_report(
        job.out / REPORT,
        "Restored pictures",
        f"Number of pictures: {len(records)}, solved together in {records[0]['seconds']:.1f} s.",
        [*sections, Section("Numbers", text=EXPLANATION, table=table(records))],
        {key: value for key, value in settings.items() if value is not None},
        job.command,
    )


def _path_section(i: int, choice: Choice, result: Result, record: dict[str, Any]) -> Section:
    """The restorations of one picture over lam, the chosen one among them."""
    along = [(point["lam"], point["chi2"], x) for point, x in zip(record["path"], choice.path.x[i], strict=False)]
    step = max(1, math.ceil(len(along) / STRIP_LENGTH))
    strip = [Picture(f"lam {lam:.2g}", x, f"chi2 {chi2:.2f}") for lam, chi2, x in along[::step]]
    where = sum(lam <= record["lam"] for lam, _, _ in along[::step])
    strip.insert(
        where, Picture(f"lam {record['lam']:.2g}, chosen", result.x[i], f"chi2 {record['chi2']:.2f}", marked=True)
    )
    why = RULE_EXPLANATION[choice.rule].format(target=rounded(choice.target[i].item(), 2))
    return Section(f"{Path(record['picture']).name} over lam", text=PATH_EXPLANATION + why, strips=[strip])
