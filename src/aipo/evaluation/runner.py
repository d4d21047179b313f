"""Measures what is missing, prior by prior, and in each of them by experiment, split, chunk and method."""

from __future__ import annotations

import json
import math
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
from aipo.engine.engine import Precision
from aipo.errors import InputError
from aipo.evaluation.chunk import Chunk
from aipo.evaluation.image_set import ImageSet, default_image_set
from aipo.evaluation.methods import METHODS, Outcome, Solve
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.evaluation.store import Cell, Setup, Store
from aipo.files import FolderLock
from aipo.images.metrics import psnr, ssim
from aipo.operators import Operator
from aipo.priors.prior import Prior, chosen_device
from aipo.priors.zoo import load_flow_prior

__all__ = ["Plan", "Tally", "run"]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        image_sets: the user's own images, by split; a split that is not here has its default, or is left out.
        tasks: names of experiments.
        chunk: how many images are solved together. Apart from rounding it changes only the mean budget of L-BFGS.
        subset: how many images of each split are solved; all if None.
        minutes: after this time nothing new begins.
        keep: how many images of each split have their restorations kept, to be looked at.
        trace: whether mean losses over evaluations are kept, of the first chunk of each split.
    """

    image_sets: dict[str, ImageSet]
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
        if not all(0 < lam < math.inf for lam in self.lambdas) or list(self.lambdas) != sorted(set(self.lambdas)):
            raise InputError(f"lam must be positive, finite and ascending, but it is {list(self.lambdas)}")
        if self.minutes is not None and math.isnan(self.minutes):
            raise InputError("--budget is nan; give a number of minutes")
        object.__setattr__(self, "device", chosen_device(self.device))

    @property
    def setup(self) -> Setup:
        return Setup(self.lambdas, self.precision, self.seed)


@dataclass
class Tally:
    """How far a run is, in cells: all, those that were there, those that were written, those that are left."""

    total: int = 0
    present: int = 0
    written: int = 0

    @property
    def left(self) -> int:
        return self.total - self.present - self.written


@dataclass(frozen=True)
class Job:
    """One chunk of one split, with its cells in the order in which they are solved."""

    prior: Prior
    split: str
    image_set: ImageSet
    task: str
    start: int
    stop: int
    cells: tuple[Cell, ...]


Report = Callable[[Tally, str, float], None]


def run(plan: Plan, store: Store, report: Report = lambda tally, cell, share: None) -> Tally:
    """Measure what is missing. It may be stopped at any moment: the next run goes on from there.

    `report` hears how far the run is, which cell is being solved, and which share of that is done.

    Raises:
        InputError: something cannot be used, or another process writes to the folder.
    """
    begin = time.monotonic()
    jobs = list(_jobs(plan))
    with FolderLock(store.root) as lock:
        lock.acquire()
        return _measure(plan, store, jobs, begin, report)


def _measure(plan: Plan, store: Store, jobs: list[Job], begin: float, report: Report) -> Tally:
    cells = [cell for job in jobs for cell in job.cells]
    present = {cell for cell in cells if store.has(cell, plan.setup)}
    tally = Tally(len(cells), len(present))
    report(tally, "", 0.0)
    operators: dict[tuple[str, tuple[int, ...]], Operator] = {}
    for job in jobs:
        missing = set(job.cells) - present
        if not missing:
            continue
        kind = (job.task, job.prior.image_shape)
        if kind not in operators:
            # Only one is kept: a matrix with its factors takes a gigabyte.
            operators = {kind: EXPERIMENTS[job.task].make_operator(job.prior.image_shape)}
        chunk = _prepare(plan, store, job, operators[kind], present)
        for batch in _batches(job.cells):
            if missing.isdisjoint(batch):
                continue
            if plan.minutes is not None and time.monotonic() - begin > 60 * plan.minutes:
                return tally
            chunk.progress = partial(report, tally, f"{batch[0].chunk_name}.{'+'.join(cell.method for cell in batch)}")
            tally.written += _solve(plan, store, chunk, batch, missing)
            report(tally, "", 0.0)
    return tally


def _solve(plan: Plan, store: Store, chunk: Chunk, cells: list[Cell], missing: set[Cell]) -> int:
    """Solve cells in one batch, write those that are missing, and return how many these are.

    The others of the batch are solved again too, so that rounding is the same as if the run had never stopped.
    """
    methods = [METHODS[cell.method] for cell in cells]
    chunk.progress(0.0)
    clock = time.monotonic()
    outcomes = methods[0].solve(chunk, methods)
    seconds = (time.monotonic() - clock) / len(cells)
    chunk.evals |= {cell.method: outcome.evals.cpu() for cell, outcome in zip(cells, outcomes, strict=True)}
    rows: dict[Cell, list[dict[str, object]]] = {}
    for cell, method, outcome in zip(cells, methods, outcomes, strict=True):
        if cell not in missing:
            continue
        lambdas = method.lambdas(plan.lambdas)
        rows[cell] = _rows(plan, lambdas, chunk, outcome, seconds)
        if chunk.traces and cell.method in chunk.traces:
            store.write_trace(cell, plan.setup, chunk.traces[cell.method])
        if plan.keep and cell.start == 0:
            store.write_images(cell, plan.setup, _kept_images(plan, chunk, cell, lambdas, outcome))
    # Rows last: once they are there, a cell counts as done.
    for cell, found in rows.items():
        store.write(cell, plan.setup, found)
    return len(rows)


def _batches(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells of a job, in groups whose methods are solved in one batch."""
    found: dict[Solve, list[Cell]] = {}
    for cell in cells:
        found.setdefault(METHODS[cell.method].solve, []).append(cell)
    return list(found.values())


def _jobs(plan: Plan) -> Iterator[Job]:
    for method in plan.methods:
        missing = [other for other in METHODS[method].needs if other not in plan.methods]
        if missing:
            raise InputError(f"{method} gets the evaluations of {missing[0]} as its budget: add --method {missing[0]}")
    for name in plan.priors:
        prior = load_flow_prior(name)
        sha256 = prior.card["sha256"]
        splits = {split: _image_set(plan, prior, split) for split in plan.splits}
        for task in plan.tasks:
            for split, image_set in splits.items():
                if image_set is None:
                    continue
                count = min(len(image_set), plan.subset or len(image_set))
                for start in range(0, count, plan.chunk):
                    stop = min(start + plan.chunk, count)
                    cells = [
                        Cell(
                            prior.name, sha256, task, split, image_set.fingerprint, m, METHODS[m].settings, start, stop
                        )
                        for m in plan.methods
                        if task in METHODS[m].tasks
                    ]
                    yield Job(prior, split, image_set, task, start, stop, tuple(cells))


def _image_set(plan: Plan, prior: Prior, split: str) -> ImageSet | None:
    found = plan.image_sets.get(split) or default_image_set(prior, split)
    if found is not None and tuple(found.images.shape[1:]) != prior.image_shape:
        shape = tuple(found.images.shape[1:])
        raise InputError(
            f"the {split} images are {shape}, but {prior.name} is for {prior.image_shape}; run it separately"
        )
    return found


def _prepare(plan: Plan, store: Store, job: Job, operator: Operator, present: set[Cell]) -> Chunk:
    truth = job.image_set.images[job.start : job.stop].to(plan.device)
    chunk = Chunk(
        prior=job.prior.to(plan.device),
        experiment=EXPERIMENTS[job.task],
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
        if cell in present:
            rows = store.read(cell, plan.setup)
            evals = torch.tensor([row["evals"] for row in rows])
            chunk.evals[cell.method] = evals.view(-1, len(truth))
    return chunk


def _rows(
    plan: Plan, lambdas: tuple[float, ...], chunk: Chunk, outcome: Outcome, seconds: float
) -> list[dict[str, object]]:
    """Lam by lam, image by image."""
    versions = {
        "seed": plan.seed,
        "precision": plan.precision,
        "prior_sha256": chunk.prior.card["sha256"],
        "aipo": aipo.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if plan.device.startswith("cuda") else "CPU",
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    each = seconds / (len(lambdas) * len(chunk.truth))
    rows = []
    for i, lam in enumerate(lambdas):
        x = outcome.x[i].clamp(0, 1)
        quality, similarity = psnr(x, chunk.truth).tolist(), ssim(x, chunk.truth).tolist()
        D, P, evals = (t[i].tolist() for t in (outcome.D, outcome.P, outcome.evals))
        for j, number in enumerate(chunk.numbers):
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


def _kept_images(
    plan: Plan, chunk: Chunk, cell: Cell, lambdas: tuple[float, ...], outcome: Outcome
) -> dict[str, np.ndarray]:
    """Of the first K images the truth and what was observed (K, H, W, 3), and the restorations (L, K, H, W, 3)."""
    first = slice(0, plan.keep)
    observed = chunk.operator.A_dagger(chunk.y[first])  # type: ignore[attr-defined]
    about = {**asdict(cell), "setup": plan.setup.key, "lambdas": lambdas}

    def pixels(x: Tensor) -> np.ndarray:
        return (255 * x.clamp(0, 1)).round().to(torch.uint8).movedim(-3, -1).cpu().numpy()

    return {
        "about": np.array(json.dumps(about)),
        "truth": pixels(chunk.truth[first]),
        "observed": pixels(observed),
        "restored": pixels(outcome.x[:, first].nan_to_num()),
    }


def _commit() -> str:
    """The git commit of the running code, if it runs from its own checkout; otherwise AIPO_COMMIT, if that is set."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("AIPO_COMMIT", "")
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
