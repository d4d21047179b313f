"""Measure what is missing: prior by prior, task by task, split by split, chunk by chunk, method by method."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import aipo
from aipo.bench.methods import METHODS, Outcome, Solve
from aipo.bench.pictures import Pictures, default_pictures
from aipo.bench.protocol import TASKS
from aipo.bench.store import Cell, Setup, Store
from aipo.bench.work import Work
from aipo.engine import Precision
from aipo.errors import InputError
from aipo.metrics import psnr, ssim
from aipo.operators import Operator
from aipo.prior import Prior
from aipo.zoo import load_prior

__all__ = ["Plan", "Tally", "run"]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        pictures: the user's own images, by split; splits that are not there have their default, or are left out.
        chunk: images solved together. It changes no number but by rounding, and the mean budget of L-BFGS.
        subset: only so many images of each split.
        minutes: begin nothing new after this time.
        trace: keep mean losses over evaluations of the first chunk of each split.
        keep: of the first so many images of each split the restorations are kept too, to be looked at.
    """

    pictures: dict[str, Pictures]
    priors: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    splits: tuple[str, ...]
    lambdas: tuple[float, ...]
    precision: Precision = "exact"
    device: str = "cpu"
    seed: int = 0
    chunk: int = 50
    subset: int | None = None
    minutes: float | None = None
    keep: int = 0
    trace: bool = False

    def __post_init__(self) -> None:
        if not all(lam > 0 for lam in self.lambdas) or list(self.lambdas) != sorted(set(self.lambdas)):
            raise InputError(f"lam must be positive and ascending, got {list(self.lambdas)}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"there is no GPU here for --device {self.device}")

    @property
    def setup(self) -> Setup:
        return Setup(self.lambdas, self.precision, self.seed)


@dataclass
class Tally:
    """How far a run is: files that were there, that were written, and that are still to do."""

    total: int = 0
    present: int = 0
    written: int = 0

    @property
    def left(self) -> int:
        return self.total - self.present - self.written


@dataclass(frozen=True)
class Job:
    """One chunk of one split, with the methods to be applied to it, in order."""

    prior: Prior
    split: str
    pictures: Pictures
    task: str
    start: int
    stop: int
    cells: tuple[Cell, ...]


Report = Callable[[Tally, str, float], None]


def run(plan: Plan, store: Store, report: Report = lambda tally, cell, share: None) -> Tally:
    """Do what is missing. Stopped at any moment, the next run goes on from there.

    `report` hears of every file that is written, and of the cell that is being solved and how much of it is done.
    """
    begin = time.monotonic()
    jobs = list(_jobs(plan))
    cells = [cell for job in jobs for cell in job.cells]
    tally = Tally(len(cells), sum(store.has(cell, plan.setup) for cell in cells))
    report(tally, "", 0.0)
    operators: dict[tuple[str, tuple[int, ...]], Operator] = {}
    for job in jobs:
        missing = {cell for cell in job.cells if not store.has(cell, plan.setup)}
        if not missing:
            continue
        kind = (job.task, job.prior.image_shape)
        if kind not in operators:
            # One at a time: a matrix with its factors takes a gigabyte.
            operators = {kind: TASKS[job.task].make_operator(job.prior.image_shape)}
        work = _prepare(plan, store, job, operators[kind])
        for cells in _together(job.cells):
            if missing.isdisjoint(cells):
                continue
            if plan.minutes is not None and time.monotonic() - begin > 60 * plan.minutes:
                return tally
            work.progress = partial(report, tally, f"{cells[0].place}.{'+'.join(cell.method for cell in cells)}")
            tally.written += _solve(plan, store, work, cells, missing)
            report(tally, "", 0.0)
    return tally


def _solve(plan: Plan, store: Store, work: Work, cells: list[Cell], missing: set[Cell]) -> int:
    """Solve cells in one batch and write those that are missing: how many.

    The others of the batch are solved again too, so that rounding is the same as if the run had never stopped.
    """
    methods = [METHODS[cell.method] for cell in cells]
    work.progress(0.0)
    clock = time.monotonic()
    outcomes = methods[0].solve(work, methods)
    seconds = (time.monotonic() - clock) / len(cells)
    work.evals |= {cell.method: outcome.evals.cpu() for cell, outcome in zip(cells, outcomes, strict=True)}
    rows: dict[Cell, list[dict[str, object]]] = {}
    for cell, method, outcome in zip(cells, methods, outcomes, strict=True):
        if cell not in missing:
            continue
        lambdas = method.lambdas(plan.lambdas)
        rows[cell] = _rows(plan, lambdas, work, outcome, seconds)
        if work.traces and cell.method in work.traces:
            store.write_trace(cell, plan.setup, work.traces[cell.method])
        if plan.keep and cell.start == 0:
            store.write_pictures(cell, plan.setup, _pictures_of(plan, work, cell, lambdas, outcome))
    # Rows last: once they are there, a cell counts as done.
    for cell, found in rows.items():
        store.write(cell, plan.setup, found)
    return len(rows)


def _together(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells of one job whose methods are solved in one batch."""
    found: dict[Solve, list[Cell]] = {}
    for cell in cells:
        found.setdefault(METHODS[cell.method].solve, []).append(cell)
    return list(found.values())


def _jobs(plan: Plan) -> Iterator[Job]:
    for method in plan.methods:
        missing = [other for other in METHODS[method].needs if other not in plan.methods]
        if missing:
            raise InputError(f"{method} gets the evaluations of {missing[0]} as its budget: run that too")
    for name in plan.priors:
        prior = load_prior(name)
        sha256 = prior.card["sha256"]
        splits = {split: _pictures(plan, prior, split) for split in plan.splits}
        for task in plan.tasks:
            for split, pictures in splits.items():
                if pictures is None:
                    continue
                count = min(len(pictures), plan.subset or len(pictures))
                for start in range(0, count, plan.chunk):
                    stop = min(start + plan.chunk, count)
                    cells = [
                        Cell(prior.name, sha256, task, split, pictures.fingerprint, m, METHODS[m].settings, start, stop)
                        for m in plan.methods
                        if task in METHODS[m].tasks
                    ]
                    yield Job(prior, split, pictures, task, start, stop, tuple(cells))


def _pictures(plan: Plan, prior: Prior, split: str) -> Pictures | None:
    pictures = plan.pictures.get(split) or default_pictures(prior, split)
    if pictures is not None and tuple(pictures.images.shape[1:]) != prior.image_shape:
        raise InputError(f"the {split} images are {tuple(pictures.images.shape[1:])}, not {prior.image_shape}")
    return pictures


def _prepare(plan: Plan, store: Store, job: Job, operator: Operator) -> Work:
    truth = job.pictures.images[job.start : job.stop].to(plan.device)
    work = Work(
        prior=job.prior.to(plan.device),
        task=TASKS[job.task],
        operator=operator,
        truth=truth,
        numbers=tuple(range(job.start, job.stop)),
        lambdas=plan.lambdas,
        seed=plan.seed,
        precision=plan.precision,
        evals={},
        traces={} if plan.trace and job.start == 0 else None,
    )
    for cell in job.cells:
        if store.has(cell, plan.setup):
            rows = store.read(cell, plan.setup)
            evals = torch.tensor([row["evals"] for row in rows])
            work.evals[cell.method] = evals.view(-1, len(truth))
    return work


def _rows(
    plan: Plan, lambdas: tuple[float, ...], work: Work, outcome: Outcome, seconds: float
) -> list[dict[str, object]]:
    """Lam by lam, image by image."""
    versions = {
        "seed": plan.seed,
        "precision": plan.precision,
        "prior_sha256": work.prior.card["sha256"],
        "aipo": aipo.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if plan.device.startswith("cuda") else "CPU",
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    each = seconds / (len(lambdas) * len(work.truth))
    rows = []
    for i, lam in enumerate(lambdas):
        x = outcome.x[i].clamp(0, 1)
        quality, similarity = psnr(x, work.truth).tolist(), ssim(x, work.truth).tolist()
        D, P, evals = (t[i].tolist() for t in (outcome.D, outcome.P, outcome.evals))
        for j, number in enumerate(work.numbers):
            rows.append(
                {
                    "lam": lam,
                    "image": number,
                    "loss": D[j] + lam * P[j],
                    "D": D[j],
                    "P": P[j],
                    "psnr": quality[j],
                    "ssim": similarity[j],
                    "evals": int(evals[j]) if evals[j] == evals[j] else -1,
                    "seconds": each,
                    "status": outcome.status[i][j],
                    **versions,
                }
            )
    return rows


def _pictures_of(
    plan: Plan, work: Work, cell: Cell, lambdas: tuple[float, ...], outcome: Outcome
) -> dict[str, np.ndarray]:
    """Truth, what was observed of it, and the restorations (L, K, H, W, 3)."""
    first = slice(0, plan.keep)
    observed = work.operator.A_dagger(work.y[first])  # type: ignore[attr-defined]
    about = {**asdict(cell), "setup": plan.setup.key, "lambdas": lambdas}

    def pixels(x: Tensor) -> np.ndarray:
        return (255 * x.clamp(0, 1)).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()

    return {
        "about": np.array(json.dumps(about)),
        "truth": pixels(work.truth[first]),
        "observed": pixels(observed),
        "restored": pixels(outcome.x[:, first].nan_to_num()),
    }


def _commit() -> str:
    """Of the code that runs, if it runs from a checkout of ours and not from inside someone else's.

    A copy without its history can be told by AIPO_COMMIT.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("AIPO_COMMIT", "")
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
