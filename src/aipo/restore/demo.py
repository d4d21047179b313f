"""The main job on images that come with the package: corrupt, restore, compare with the truth.

First a whole photograph, in three tasks, by continuation in the noise level. Then the three tasks of the paper, each a
batch of the same four images of 64x64: a real face, two faces drawn from the prior itself (the best case it can meet),
and a cat (out of its distribution).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from aipo.priors.noise_prior import NoisePrior
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem
from aipo.report.html import Figure, Section, is_report, write_report
from aipo.restore.command import command_line
from aipo.restore.operators import damaging_operator
from aipo.restore.page import rounded
from aipo.restore.record import ImageResult
from aipo.restore.solve import image_results
from aipo.restore.tasks import TASKS, Damage, Task
from aipo.solvers.anneal import anneal

__all__ = ["DEMO_TASKS", "IMAGES", "PHOTOGRAPH", "PHOTO_TASKS", "DemoRecord", "DemoTask", "run_demo", "table"]

PHOTOGRAPH = "coffee"
IMAGES = ("astronaut", "drawn-1", "drawn-2", "cat")
SHAPE = (3, 64, 64)  # of the sample images

INTRODUCTION = (
    "First a photograph, corrupted in three ways and restored as a whole, by a flow that knows photographs of any size "
    "at every noise level.\n\n"
    "Then the three tasks of the paper: four pictures of 64x64, restored by MAP estimation with a flow that knows "
    "faces. The astronaut is a real face. The two drawn faces come from the prior itself, the best case it can meet. "
    "The cat is not a face: it shows what the prior does to something it has never seen."
)
PHOTO_TEXT = (
    "A cup of coffee, {} pixels. Move the sliders: left of the line is what was measured, right of it the restoration."
)
EXPLANATION = (
    "PSNR in dB against the truth, before (the simple reconstruction) and after. lam is λ, the weight of the prior, "
    "chosen for each picture without the truth; the photograph has none, its prior follows the noise level instead. "
    "The loss is L = D + λ P at the restoration, in nats. Evaluations are gradients per picture. The seconds are wall "
    "time for all pictures of a task together."
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

    def operator(self, shape: tuple[int, int, int], generator: torch.Generator) -> LinearOperator:
        """The operator for images of that shape, with a mask or matrix from the generator."""
        return damaging_operator(self.task.name, shape, Damage(), generator)


PHOTO_TASKS = (
    DemoTask("photo-denoise", TASKS["denoise"], "", "noisy"),
    DemoTask("photo-inpaint", TASKS["inpaint"], "a quarter of the pixels missing, ", "with gaps"),
    DemoTask("photo-superres", TASKS["superres"], "half the height and width, ", "enlarged"),
)
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


def run_demo(
    prior: Prior, source: str, photo_prior: NoisePrior, photo_source: str, out: Path, seed: int, progress: bool
) -> list[DemoRecord]:
    """Run all tasks, write the images and `report.html` to `out`, and return one record per task and image.

    Arguments:
        prior: for images (3, 64, 64).
        photo_prior: for photographs.
        source, photo_source: the names or files that they were loaded from, for the report's command line.
        seed: of the drawn faces, the masks, the sensing matrix and the noise.
        progress: say what is being done, with a bar on the terminal.
    """
    if prior.image_shape != SHAPE:
        raise InputError(f"the demo needs a prior for images of shape {SHAPE}; {prior.name} is for {prior.image_shape}")
    page = out / "report.html"
    if os.path.exists(page) and not (os.path.isfile(page) and is_report(page)):
        raise InputError(f"{page} already exists and is not a report of aipo; move it, or choose another --out")
    with FolderLock(out) as lock:
        lock.acquire()
        generator = torch.Generator().manual_seed(seed)
        records, section = _run_photograph(photo_prior, out, generator, progress)
        more, sections = _run_tasks(prior, out, generator, progress)
        records, sections = records + more, [section, *sections]
        settings = {
            "prior of photographs": photo_prior.name,
            "prior of faces": prior.name,
            "their SHA-256": f"{photo_prior.card['sha256']}, {prior.card['sha256']}",
            "photograph": "anneal, 20 evaluations; 1 for denoising",
            "faces": f"follow_path, {EVALS} evaluations at most; lam chosen by choose_lambda (discrepancy)",
            "seed": seed,
            "aipo": aipo.__version__,
            "torch": torch.__version__,
        }
        priors: list[str | Path] = ["--prior", Path(source), "--photo-prior", Path(photo_source)]
        command = command_line(["demo", *priors, "--seed", str(seed), "--out", out])
        sections.append(Section("Numbers", text=EXPLANATION, table=table(records)))
        write_report(page, "AIPO demo", INTRODUCTION, sections, settings, command)
    return records


def _run_photograph(
    prior: NoisePrior, out: Path, generator: torch.Generator, progress: bool
) -> tuple[list[DemoRecord], Section]:
    truth = samples.photograph()
    _, height, width = truth.shape
    records, sliders = [], []
    for task in PHOTO_TASKS:
        if progress:
            print(f"A photograph. {task.heading}", file=sys.stderr)
        operator, noise = task.operator((3, height, width), generator), Gaussian(task.sigma)
        y = operator.measure(truth[None], noise, generator)
        problem = MapProblem(prior, operator, noise, y.to(prior.weights.device))
        start = time.perf_counter()
        result = anneal(problem, progress=progress)
        seconds = round(time.perf_counter() - start, 3)
        values = replace(image_results(problem, result)[0], lam=None, loss=None)
        shown = {"truth": truth, "naive": _as_saved(operator.A_dagger(y)[0])}
        if values.done:
            shown["restored"] = _as_saved(result.x[0].cpu())
        record = _written(task, PHOTOGRAPH, shown, out, values, seconds, batch=1)
        records.append(record)
        before = Figure(f"{task.heading}: {task.naive}", shown["naive"], f"PSNR {rounded(record.psnr_before, 2)} dB")
        if values.done:
            after = Figure("restored", shown["restored"], f"PSNR {rounded(record.psnr_after, 2)} dB")
        else:
            after = Figure("not restored", torch.full_like(truth, 0.5), values.status)
        sliders.append((before, after))
    return records, Section("A photograph", text=PHOTO_TEXT.format(f"{width}x{height}"), sliders=sliders)


def _run_tasks(
    prior: Prior, out: Path, generator: torch.Generator, progress: bool
) -> tuple[list[DemoRecord], list[Section]]:
    truth = _truth(prior, generator)
    records, sections = [], []
    for task in DEMO_TASKS:
        if progress:
            print(task.heading, file=sys.stderr)
        task_records, section = _run_task(task, prior, truth, out, generator, progress)
        records += task_records
        sections.append(section)
    return records, sections


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
            rounded(record.seconds, 1) if record.image in (PHOTOGRAPH, IMAGES[0]) else "",
        ]
        for record in records
    ]
    return header, rows


def _truth(prior: Prior, generator: torch.Generator) -> Tensor:
    drawn = prior.sample(2, temperature=0.7, seed=generator).cpu()
    return _as_saved(torch.stack([samples.load("astronaut"), *drawn, samples.load("cat")]))


def _as_saved(x: Tensor) -> Tensor:
    """Clamped and rounded as in a PNG file, so that every PSNR is that of the files."""
    return to_uint8(x).float() / 255


def _run_task(
    task: DemoTask, prior: Prior, truth: Tensor, out: Path, generator: torch.Generator, progress: bool
) -> tuple[list[DemoRecord], Section]:
    operator, noise = task.operator(SHAPE, generator), Gaussian(task.sigma)
    y = operator.measure(truth, noise, generator)
    naive = _as_saved(operator.A_dagger(y))
    problem = MapProblem(prior, operator, noise, y.to(prior.weights.device))
    start = time.perf_counter()
    result = choose_lambda(problem, progress=progress).result
    seconds = round(time.perf_counter() - start, 3)

    records = []
    rows: list[list[Figure]] = [[], [], []]
    for i, (name, values) in enumerate(zip(IMAGES, image_results(problem, result), strict=True)):
        shown = {"truth": truth[i], "naive": naive[i]}
        if values.done:
            shown["restored"] = _as_saved(result.x[i].cpu())
        record = _written(task, name, shown, out, values, seconds, len(IMAGES))
        before, after = record.psnr_before, record.psnr_after
        rows[0].append(Figure(f"{name}: truth", truth[i]))
        rows[1].append(Figure(f"{name}: {task.naive}", naive[i], f"PSNR {rounded(before, 2)} dB"))
        if after is None:  # gray keeps the columns in place
            rows[2].append(Figure(f"{name}: not restored", torch.full(SHAPE, 0.5), values.status))
        else:
            rows[2].append(Figure(f"{name}: restored", shown["restored"], f"PSNR {rounded(after, 2)} dB"))
        records.append(record)
    return records, Section(task.heading, rows=rows)


def _written(
    task: DemoTask, name: str, shown: dict[str, Tensor], out: Path, values: ImageResult, seconds: float, batch: int
) -> DemoRecord:
    """Write what is shown of an image, and say how good it is."""
    for kind, image in shown.items():
        write_image(out / f"{task.name}.{name}.{kind}.png", image)
    before, after = (_psnr(shown.get(kind), shown["truth"]) for kind in ("naive", "restored"))
    return DemoRecord(
        **vars(values),
        task=task.name,
        image=name,
        psnr_before=before,
        psnr_after=after,
        seconds=seconds,
        batch=batch,
    )


def _psnr(x: Tensor | None, truth: Tensor) -> float | None:
    return None if x is None else psnr(x[None], truth[None]).item()
