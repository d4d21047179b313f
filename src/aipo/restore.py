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
from typing import Any

import torch

import aipo
from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically
from aipo.images import read_image, read_mask, write_image
from aipo.iterate import Result, Solver
from aipo.noise import Gaussian
from aipo.operators import Denoising, Inpainting, Operator
from aipo.prior import Prior
from aipo.problem import MapProblem
from aipo.report import Picture, Section, write_report
from aipo.solvers import Amortized, FixedLambda
from aipo.zoo import load_prior

__all__ = ["LAM", "REPORT", "SIGMA", "SOLVERS", "Job", "numbers", "prepare", "rounded", "run", "table"]

# The prior's weight where the user gives none: the best of 0.2, 0.3, 0.5, 1 and 1.5 on validation faces with the small
# embedded prior (benchmarks/priors.py). Noise needs little; a gap has nothing but the prior to fill it.
LAM = {"denoise": 0.3, "inpaint": 1.0, "sensing": 0.2}

# Denoising has no default: a wrong sigma spoils the picture, and only the user can know it.
SIGMA = {"inpaint": 0.02}

SOLVERS: dict[str, Callable[[], Solver[Any]]] = {
    "quick": Amortized.quick,
    "paper": Amortized,
    "decayed": FixedLambda.decayed,
}

REPORT = "report.html"

EXPLANATION = (
    "The loss L = D + lam P adds how badly a picture explains the measured one (D) and how unlikely it is under the "
    "prior (P), in nats. chi2 is the mean squared residual in units of sigma squared: about 1 if the restoration "
    "explains the measurement as well as the true picture would, less if it still follows the noise, more if it has "
    "lost detail."
)


@dataclass(frozen=True)
class Job:
    """One run: its checked settings, and the problem that holds all pictures in one batch."""

    pictures: Sequence[Path]
    out: Path
    task: str
    sigma: float
    lam: float
    solver: str
    prior: str
    mask: Path | None
    problem: MapProblem

    @property
    def command(self) -> str:
        """The command line that does the same again."""
        words = ["aipo", "restore", *map(str, self.pictures), "--task", self.task, "--sigma", str(self.sigma)]
        words += ["--lam", str(self.lam), "--prior", self.prior, "--solver", self.solver]
        words += ["--mask", str(self.mask)] if self.mask else []
        return shlex.join([*words, "--out", str(self.out)])


def prepare(
    pictures: Sequence[Path],
    out: Path,
    *,
    task: str,
    sigma: float | None,
    lam: float | None,
    solver: str,
    prior: str,
    mask: Path | None,
) -> Job:
    """Read and check everything that a run needs, then make its output folder.

    Arguments:
        pictures: corrupted pictures of the prior's size, all measured alike.
        out: where the results go: NAME.restored.png and NAME.json for each picture, and report.html.
        task: "denoise" or "inpaint".
        sigma, lam: None for the task's default; denoising has none for sigma.
        solver: one of `SOLVERS`.
        prior: the name of an embedded prior, or a .safetensors file.
        mask: for inpainting, a picture that is white where pixels are kept and black where they are missing.

    Raises:
        InputError: something cannot be used; nothing has been written then.
    """
    sigma, lam = _checked_sigma(task, sigma), _checked_lam(task, lam)
    if task == "inpaint" and mask is None:
        raise InputError("inpainting needs to know what is missing; give --mask, black where pixels are missing")
    if task == "denoise" and mask is not None:
        raise InputError(f"--mask {mask} has no use in denoising; leave it out, or choose --task inpaint")
    _check_names(pictures, out, mask)
    loaded = load_prior(prior)
    operator = _operator(loaded, mask)
    y = torch.stack([read_image(path, loaded.image_shape) for path in pictures])
    problem = MapProblem(loaded, operator, Gaussian(sigma), y)
    ensure_folder(out)
    return Job(pictures, out, task, sigma, lam, solver, prior, mask, problem)


def run(job: Job, progress: bool) -> list[dict[str, Any]]:
    """Solve all pictures together, write the results, and return the records that are in the JSON files.

    A picture that could not be solved gets a record with its status, but no restoration.
    """
    start = time.perf_counter()
    result = SOLVERS[job.solver]().solve(job.problem, job.lam, progress=progress)
    seconds = round(time.perf_counter() - start, 3)
    settings = {
        "task": job.task,
        "sigma": job.sigma,
        "lam": job.lam,
        "solver": job.solver,
        "mask": str(job.mask) if job.mask else None,
        "prior": job.problem.prior.name,
        "prior_sha256": job.problem.prior.card["sha256"],
        "aipo": aipo.__version__,
        "torch": torch.__version__,
    }
    records = []
    for path, x, values in zip(job.pictures, result.x, numbers(job.problem, result), strict=True):
        restored, record_file = _outputs(path, job.out)
        done = values["status"] == "done"
        record = {
            "picture": str(path),
            "restored": str(restored) if done else None,
            **values,
            # The pictures were solved together, so the time is that of them all.
            "seconds": seconds,
            "batch": len(job.pictures),
            "settings": settings,
        }
        if done:
            write_image(restored, x)
        write_atomically(record_file, (json.dumps(record, indent=2) + "\n").encode())
        records.append(record)
    _write_report(job, result, records, settings)
    return records


@torch.no_grad()
def numbers(problem: MapProblem, result: Result) -> list[dict[str, Any]]:
    """What a result says about each image, ready for JSON: None where a value is not finite."""
    columns = {"loss": result.loss, "D": result.D, "P": result.P, "chi2": problem.chi2(result.x)}
    return [
        {
            "status": status,
            **{name: value if math.isfinite(value := column[i].item()) else None for name, column in columns.items()},
            "evaluations": int(result.evals[i]),
        }
        for i, status in enumerate(result.status)
    ]


def table(records: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people."""
    header = ["picture", "status", "loss", "D", "P", "chi2", "evaluations"]
    rows = [
        [Path(r["picture"]).name, r["status"]]
        + [rounded(r[name], digits) for name, digits in (("loss", 0), ("D", 0), ("P", 0), ("chi2", 3))]
        + [str(r["evaluations"])]
        for r in records
    ]
    return header, rows


def rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _checked_sigma(task: str, sigma: float | None) -> float:
    if sigma is None and task not in SIGMA:
        raise InputError("denoising needs to know the noise; give --sigma, its standard deviation on the [0,1] scale")
    sigma = SIGMA[task] if sigma is None else sigma
    Gaussian(sigma)  # refuses what cannot be a standard deviation
    return sigma


def _checked_lam(task: str, lam: float | None) -> float:
    lam = LAM[task] if lam is None else lam
    if not (math.isfinite(lam) and lam >= 0):
        raise InputError(f"lam is {lam}; the prior's weight must be finite and at least 0")
    return lam


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


def _write_report(job: Job, result: Result, records: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    rows = []
    for y, x, record in zip(job.problem.y, result.x, records, strict=True):
        name = Path(record["picture"]).name
        row = [Picture(f"{name}: as measured", y)]
        if record["restored"]:
            row.append(Picture(f"{name}: restored", x, note=f"chi2 {rounded(record['chi2'], 3)}"))
        rows.append(row)
    write_report(
        job.out / REPORT,
        "Restored pictures",
        f"Number of pictures: {len(records)}, solved together in {records[0]['seconds']:.1f} s.",
        [Section("Pictures", rows=rows), Section("Numbers", text=EXPLANATION, table=table(records))],
        {key: value for key, value in settings.items() if value is not None},
        job.command,
    )
