"""The main job on pictures that come with the package: corrupt, restore, compare with the truth.

Three tasks, each a batch of the same four pictures: a real face, two faces drawn from the prior itself (the best case
it can meet), and a cat (out of its distribution).
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo import samples
from aipo.choose import EVALS, choose_lambda
from aipo.errors import InputError
from aipo.files import ensure_folder
from aipo.images import to_uint8, write_image
from aipo.metrics import psnr
from aipo.noise import Gaussian
from aipo.operators import CompressedSensing, Denoising, Inpainting, LinearOperator
from aipo.prior import Prior
from aipo.problem import MapProblem
from aipo.report import Picture, Section, write_report
from aipo.restore import numbers, rounded

__all__ = ["IMAGES", "TASKS", "run_demo", "table"]

IMAGES = ("astronaut", "drawn-1", "drawn-2", "cat")
SHAPE = (3, 64, 64)  # of the sample pictures

EXPLANATION = (
    "PSNR in dB against the truth, before (the simple reconstruction shown in the middle row) and after. lam is the "
    "weight of the prior, chosen for each picture without the truth, and the loss is L = D + lam P in nats at the "
    "restoration. Evaluations are gradients of L per picture; the seconds are wall time for the four pictures of a "
    "task together."
)


@dataclass(frozen=True)
class Task:
    """One way to corrupt the pictures. `naive` says what the simple reconstruction A_dagger(y) shows."""

    name: str
    heading: str
    naive: str
    sigma: float
    operator: Callable[[torch.Generator], LinearOperator]


TASKS = (
    Task("denoise", "Denoising: noise of sigma 0.1", "noisy", 0.1, lambda _: Denoising(SHAPE)),
    Task(
        "inpaint",
        "Inpainting: a quarter of the pixels missing, noise of sigma 0.02",
        "with gaps",
        0.02,
        lambda generator: Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=generator),
    ),
    Task(
        "sensing",
        "Compressed sensing: 2,000 random projections of 12,288 values, noise of sigma 0.1",
        "least squares",
        0.1,
        lambda generator: CompressedSensing(SHAPE, m=2000, seed=generator),
    ),
)


def run_demo(prior: Prior, source: str, out: Path, seed: int, progress: bool) -> list[dict[str, Any]]:
    """Run all tasks, write the pictures and `report.html` to `out`, and return one record per task and picture.

    Arguments:
        prior: for images (3, 64, 64).
        source: the name or file that `prior` was loaded from, for the report's command line.
        seed: of the drawn faces, the mask, the sensing matrix and the noise.
        progress: say what is being done, with a bar on the terminal.
    """
    if prior.image_shape != SHAPE:
        raise InputError(f"the demo's pictures have shape {SHAPE}, the prior {prior.name} takes {prior.image_shape}")
    ensure_folder(out)
    generator = torch.Generator().manual_seed(seed)
    truth = _truth(prior, generator)
    records, sections = [], []
    for task in TASKS:
        if progress:
            print(task.heading, file=sys.stderr)
        task_records, section = _run_task(task, prior, truth, out, generator, progress)
        records += task_records
        sections.append(section)
    write_report(
        out / "report.html",
        "AIPO demo",
        "Four pictures, corrupted in three ways and restored by MAP estimation with a normalizing-flow prior of "
        "faces.\n\nThe astronaut is a real face. The two drawn faces come from the prior itself, the best case it can "
        "meet. The cat is no face: it shows what the prior does to what it has never seen.",
        [*sections, Section("Numbers", text=EXPLANATION, table=table(records))],
        {
            "prior": prior.name,
            "prior SHA-256": prior.card["sha256"],
            "lam": "chosen by choose_lambda (discrepancy)",
            "solver": f"follow_path, {EVALS} evaluations at most",
            "seed": seed,
            "aipo": aipo.__version__,
            "torch": torch.__version__,
        },
        shlex.join(["aipo", "demo", "--prior", source, "--seed", str(seed), "--out", str(out)]),
    )
    return records


def table(records: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people."""
    header = ["task", "image", "lam", "dB before", "dB after", "loss", "evals", "seconds"]
    rows = [
        [
            r["task"],
            r["image"],
            rounded(r["lam"], 2),
            rounded(r["psnr_before"], 2),
            rounded(r["psnr_after"], 2),
            rounded(r["loss"], 0),
            str(r["evaluations"]),
            # Shown once, because it is the time of the whole batch.
            rounded(r["seconds"], 1) if r["image"] == IMAGES[0] else "",
        ]
        for r in records
    ]
    return header, rows


def _truth(prior: Prior, generator: torch.Generator) -> Tensor:
    drawn = prior.sample(2, temperature=0.7, seed=generator)
    return _as_saved(torch.stack([samples.load("astronaut"), *drawn, samples.load("cat")]))


def _as_saved(x: Tensor) -> Tensor:
    """Clamped and rounded as in a PNG file, so that every PSNR is that of the files."""
    return to_uint8(x).float() / 255


def _run_task(
    task: Task, prior: Prior, truth: Tensor, out: Path, generator: torch.Generator, progress: bool
) -> tuple[list[dict[str, Any]], Section]:
    operator, noise = task.operator(generator), Gaussian(task.sigma)
    y = operator.measure(truth, noise, generator)
    naive = _as_saved(operator.A_dagger(y))
    problem = MapProblem(prior, operator, noise, y)
    start = time.perf_counter()
    result = choose_lambda(problem, progress=progress).result
    seconds = round(time.perf_counter() - start, 3)

    records = []
    rows: list[list[Picture]] = [[], [], []]
    for i, (name, values) in enumerate(zip(IMAGES, numbers(problem, result), strict=True)):
        shown = {"truth": truth[i], "naive": naive[i]}
        if values["status"] == "done":
            shown["restored"] = _as_saved(result.x[i])
        for kind, image in shown.items():
            write_image(out / f"{task.name}.{name}.{kind}.png", image)
        before, after = (_psnr(shown.get(kind), truth[i]) for kind in ("naive", "restored"))
        rows[0].append(Picture(f"{name}: truth", truth[i]))
        rows[1].append(Picture(f"{name}: {task.naive}", naive[i], f"PSNR {rounded(before, 2)} dB"))
        if after is None:  # grey keeps the columns in place
            rows[2].append(Picture(f"{name}: not restored", torch.full(SHAPE, 0.5), values["status"]))
        else:
            rows[2].append(Picture(f"{name}: restored", shown["restored"], f"PSNR {rounded(after, 2)} dB"))
        records.append(
            {"task": task.name, "image": name, "psnr_before": before, "psnr_after": after}
            | values
            | {"seconds": seconds, "batch": len(IMAGES)}
        )
    return records, Section(task.heading, rows=rows)


def _psnr(x: Tensor | None, truth: Tensor) -> float | None:
    return None if x is None else psnr(x[None], truth[None]).item()
