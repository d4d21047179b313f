"""The main job on images that come with the package: corrupt, restore, compare with the truth.

Three tasks, each a batch of the same four images: a real face, two faces drawn from the prior itself (the best case it
can meet), and a cat (out of its distribution).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import aipo
from aipo.choose.lam import EVALS, choose_lambda
from aipo.errors import InputError
from aipo.files import FolderLock
from aipo.images import samples, to_uint8, write_image
from aipo.images.metrics import psnr
from aipo.noise import Gaussian
from aipo.operators import LinearOperator
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem
from aipo.report.html import Figure, Section, is_report, write_report
from aipo.restore.command import command_line
from aipo.restore.operators import damaging_operator
from aipo.restore.page import rounded
from aipo.restore.record import ImageResult
from aipo.restore.solve import image_results
from aipo.restore.tasks import TASKS, Damage, Task

__all__ = ["DEMO_TASKS", "IMAGES", "DemoRecord", "DemoTask", "run_demo", "table"]

IMAGES = ("astronaut", "drawn-1", "drawn-2", "cat")
SHAPE = (3, 64, 64)  # of the sample images

INTRODUCTION = (
    "Four pictures, corrupted in three ways and restored by MAP estimation with a normalizing-flow prior of faces.\n\n"
    "The astronaut is a real face. The two drawn faces come from the prior itself, the best case it can meet. The cat "
    "is not a face: it shows what the prior does to something it has never seen."
)
EXPLANATION = (
    "PSNR in dB against the truth, before (the simple reconstruction in the middle row) and after. lam is λ, the "
    "weight of the prior, chosen for each picture without the truth. The loss is L = D + λ P at the restoration, in "
    "nats. "
    "Evaluations are gradients of L per picture. The seconds are wall time for the four pictures of a task together."
)


@dataclass(frozen=True)
class DemoTask:
    """One of `TASKS`, as the demo shows it.

    Attributes:
        name: in the table and in file names.
        details: what is done besides adding noise, for the heading.
        naive: what the simple reconstruction A_dagger(y) shows.
    """

    name: str
    task: Task
    details: str
    naive: str

    @property
    def heading(self) -> str:
        return f"{self.task.title}: {self.details}noise of sigma {self.sigma:g}"

    @property
    def sigma(self) -> float:
        return self.task.added_sigma

    def operator(self, generator: torch.Generator) -> LinearOperator:
        """The operator, with a mask or matrix from the generator."""
        return damaging_operator(self.task.name, SHAPE, Damage(), generator)


DEMO_TASKS = (
    DemoTask("denoise", TASKS["denoise"], "", "noisy"),
    DemoTask("inpaint", TASKS["inpaint"], "a quarter of the pixels missing, ", "with gaps"),
    DemoTask("sensing", TASKS["sense"], "2,000 random projections of 12,288 values, ", "least squares"),
)


@dataclass(frozen=True, kw_only=True)
class DemoRecord(ImageResult):
    """One image in one task.

    Attributes:
        task, image: their names.
        psnr_before, psnr_after: of the simple reconstruction and of the restoration, in dB; None if there is none.
        seconds: wall time of all images of the task together.
        batch: how many there are.
    """

    task: str
    image: str
    psnr_before: float | None
    psnr_after: float | None
    seconds: float
    batch: int


def run_demo(prior: Prior, source: str, out: Path, seed: int, progress: bool) -> list[DemoRecord]:
    """Run all tasks, write the images and `report.html` to `out`, and return one record per task and image.

    Arguments:
        prior: for images (3, 64, 64).
        source: the name or file that `prior` was loaded from, for the report's command line.
        seed: of the drawn faces, the mask, the sensing matrix and the noise.
        progress: say what is being done, with a bar on the terminal.
    """
    if prior.image_shape != SHAPE:
        raise InputError(f"the demo needs a prior for images of shape {SHAPE}; {prior.name} is for {prior.image_shape}")
    page = out / "report.html"
    if os.path.exists(page) and not (os.path.isfile(page) and is_report(page)):
        raise InputError(f"{page} already exists and is not a report of aipo; move it, or choose another --out")
    with FolderLock(out) as lock:
        lock.acquire()
        return _run_tasks(prior, source, out, seed, progress)


def _run_tasks(prior: Prior, source: str, out: Path, seed: int, progress: bool) -> list[DemoRecord]:
    generator = torch.Generator().manual_seed(seed)
    truth = _truth(prior, generator)
    records, sections = [], []
    for task in DEMO_TASKS:
        if progress:
            print(task.heading, file=sys.stderr)
        task_records, section = _run_task(task, prior, truth, out, generator, progress)
        records += task_records
        sections.append(section)
    settings = {
        "prior": prior.name,
        "prior SHA-256": prior.card["sha256"],
        "lam": "chosen by choose_lambda (discrepancy)",
        "solver": f"follow_path, {EVALS} evaluations at most",
        "seed": seed,
        "aipo": aipo.__version__,
        "torch": torch.__version__,
    }
    command = command_line(["demo", "--prior", Path(source), "--seed", str(seed), "--out", out])
    sections.append(Section("Numbers", text=EXPLANATION, table=table(records)))
    write_report(out / "report.html", "AIPO demo", INTRODUCTION, sections, settings, command)
    return records


def table(records: Sequence[DemoRecord]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people."""
    header = ["task", "image", "lam", "dB before", "dB after", "loss", "evals", "seconds"]
    rows = [
        [
            record.task,
            record.image,
            rounded(record.lam, 2),
            rounded(record.psnr_before, 2),
            rounded(record.psnr_after, 2),
            rounded(record.loss, 0),
            str(record.evaluations),
            # Shown once, because it is the time of the whole batch.
            rounded(record.seconds, 1) if record.image == IMAGES[0] else "",
        ]
        for record in records
    ]
    return header, rows


def _truth(prior: Prior, generator: torch.Generator) -> Tensor:
    drawn = prior.sample(2, temperature=0.7, seed=generator)
    return _as_saved(torch.stack([samples.load("astronaut"), *drawn, samples.load("cat")]))


def _as_saved(x: Tensor) -> Tensor:
    """Clamped and rounded as in a PNG file, so that every PSNR is that of the files."""
    return to_uint8(x).float() / 255


def _run_task(
    task: DemoTask, prior: Prior, truth: Tensor, out: Path, generator: torch.Generator, progress: bool
) -> tuple[list[DemoRecord], Section]:
    operator, noise = task.operator(generator), Gaussian(task.sigma)
    y = operator.measure(truth, noise, generator)
    naive = _as_saved(operator.A_dagger(y))
    problem = MapProblem(prior, operator, noise, y)
    start = time.perf_counter()
    result = choose_lambda(problem, progress=progress).result
    seconds = round(time.perf_counter() - start, 3)

    records = []
    rows: list[list[Figure]] = [[], [], []]
    for i, (name, values) in enumerate(zip(IMAGES, image_results(problem, result), strict=True)):
        shown = {"truth": truth[i], "naive": naive[i]}
        if values.done:
            shown["restored"] = _as_saved(result.x[i])
        for kind, image in shown.items():
            write_image(out / f"{task.name}.{name}.{kind}.png", image)
        before, after = (_psnr(shown.get(kind), truth[i]) for kind in ("naive", "restored"))
        rows[0].append(Figure(f"{name}: truth", truth[i]))
        rows[1].append(Figure(f"{name}: {task.naive}", naive[i], f"PSNR {rounded(before, 2)} dB"))
        if after is None:  # gray keeps the columns in place
            rows[2].append(Figure(f"{name}: not restored", torch.full(SHAPE, 0.5), values.status))
        else:
            rows[2].append(Figure(f"{name}: restored", shown["restored"], f"PSNR {rounded(after, 2)} dB"))
        records.append(
            DemoRecord(
                **vars(values),
                task=task.name,
                image=name,
                psnr_before=before,
                psnr_after=after,
                seconds=seconds,
                batch=len(IMAGES),
            )
        )
    return records, Section(task.heading, rows=rows)


def _psnr(x: Tensor | None, truth: Tensor) -> float | None:
    return None if x is None else psnr(x[None], truth[None]).item()
