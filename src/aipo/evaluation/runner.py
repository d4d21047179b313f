"""Measures what is missing, prior by prior, and in each of them by experiment, split, chunk and method."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import aipo
from aipo.errors import InputError
from aipo.evaluation.chunk import Chunk
from aipo.evaluation.methods import METHODS, Outcome, Solve
from aipo.evaluation.plan import Job, Plan, jobs_of
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.evaluation.store import Cell, Store
from aipo.files import FolderLock
from aipo.images.metrics import psnr, ssim
from aipo.operators import Operator
from aipo.priors.prior import Prior
from aipo.priors.zoo import load_flow_prior

__all__ = ["Spread", "Tally", "measure_piece", "run"]


@dataclass
class Tally:
    """How far a run is, in cells: all, those that were there, those that were written, those that are left.

    `failed` says which chunks could not be measured, and why.
    """

    total: int = 0
    present: int = 0
    written: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.total - self.present - self.written


Report = Callable[[Tally, str, float], None]
# A function and the arguments of many calls of it -> what became of each: index, value, failure.
Spread = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]


def run(
    plan: Plan,
    store: Store,
    report: Report = lambda tally, cell, share: None,
    spread: Spread | None = None,
) -> Tally:
    """Measure what is missing. It may be stopped at any moment: the next run goes on from there.

    Arguments:
        report: hears how far the run is, which cell is being solved, and which share of that is done.
        spread: measures chunks elsewhere, in other processes for example, see `aipo.integrations.spread`. The rows are
            the same but for their `seconds`.

    Raises:
        InputError: something cannot be used, or another process writes to the folder.
    """
    deadline = math.inf if plan.minutes is None else time.time() + 60 * plan.minutes  # the clock that all machines have
    jobs = list(jobs_of(plan))
    with FolderLock(store.root) as lock:
        lock.acquire()
        cells = [cell for job in jobs for cell in job.cells]
        present = {cell for cell in cells if store.has(cell, plan.setup)}
        tally = Tally(len(cells), len(present))
        report(tally, "", 0.0)
        jobs = [job for job in jobs if not present.issuperset(job.cells)]
        if spread:
            work = _elsewhere(plan, store, jobs, deadline, tally.failed, spread)
        else:
            work = _here(plan, store, jobs, deadline, partial(report, tally))
        for written in work:
            tally.written += written
            report(tally, "", 0.0)
        return tally


def _here(
    plan: Plan, store: Store, jobs: list[Job], deadline: float, progress: Callable[[str, float], None]
) -> Iterator[int]:
    for job in jobs:
        yield from _measure(plan, store, job, deadline, progress)


def _elsewhere(
    plan: Plan, store: Store, jobs: list[Job], deadline: float, failed: list[str], spread: Spread
) -> Iterator[int]:
    def present(job: Job) -> int:
        return sum(store.has(cell, plan.setup) for cell in job.cells)

    before = [present(job) for job in jobs]
    alone = replace(plan, image_sets={})  # every job has its images
    pieces = ((alone, store.root, job, deadline) for job in takewhile(lambda _: time.time() <= deadline, jobs))
    for done in spread(measure_piece, pieces):
        job = jobs[done.index]
        if done.failure is not None:
            failed.append(f"{job.cells[0].chunk_name}: {done.failure}")
        yield present(job) - before[done.index]  # whoever died may have written something


def measure_piece(plan: Plan, folder: Path, job: Job, deadline: float) -> None:
    """Measure what is missing of one chunk, in a process whose parent holds the folder's lock."""
    for _ in _measure(plan, Store(folder), job, deadline, lambda cell, share: None):
        pass


def _measure(
    plan: Plan, store: Store, job: Job, deadline: float, progress: Callable[[str, float], None]
) -> Iterator[int]:
    """Write the cells of a job that are missing; the number of them, batch by batch."""
    present = {cell for cell in job.cells if store.has(cell, plan.setup)}
    missing = set(job.cells) - present
    chunk = _prepare(plan, store, job, present)
    for batch in _batches(job.cells):
        if missing.isdisjoint(batch):
            continue
        if time.time() > deadline:
            return
        name = f"{batch[0].chunk_name}.{'+'.join(cell.method for cell in batch)}"
        chunk.progress = partial(progress, name)
        yield _solve(plan, store, chunk, batch, missing)


# Only one of each is kept: a matrix with its factors takes a gigabyte.
@lru_cache(maxsize=1)
def _operator(task: str, shape: tuple[int, int, int]) -> Operator:
    return EXPERIMENTS[task].make_operator(shape)


@lru_cache(maxsize=1)
def _prior(name: str, sha256: str) -> Prior:
    prior = load_flow_prior(name)
    if prior.card["sha256"] != sha256:
        raise InputError(f"the prior {name} is not the one that this run began with; give all machines the same file")
    return prior


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


def _prepare(plan: Plan, store: Store, job: Job, present: set[Cell]) -> Chunk:
    first = job.cells[0]
    prior = _prior(job.prior, first.prior_sha256).to(plan.device)
    truth = torch.tensor(job.truth, device=plan.device)
    chunk = Chunk(
        prior=prior,
        experiment=EXPERIMENTS[first.task],
        operator=_operator(first.task, prior.image_shape),
        truth=truth,
        numbers=tuple(range(first.start, first.stop)),
        lambdas=plan.lambdas,
        seed=plan.seed,
        precision=plan.precision,
        evals={},
        traces={} if plan.trace and first.start == 0 else None,
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
