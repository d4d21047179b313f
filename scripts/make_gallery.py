"""Restore the free pictures in every task, and write the gallery: its pictures, its numbers and its table.

python scripts/make_gallery.py [TASK...]  # all by default, the small prior: some minutes on two CPU cores
python scripts/make_gallery.py --priors   # the figure that compares the embedded priors
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

import aipo
from aipo.cli import DEFAULT_PRIOR
from aipo.files import write_atomically
from aipo.images import to_uint8
from aipo.operators import Inpainting
from aipo.restore.operators import make_operator
from aipo.restore.tasks import TASKS

SHAPE = (3, 64, 64)
DOCS = Path(__file__).parents[1] / "docs"
NUMBERS = Path(__file__).parents[1] / "results" / "gallery.json"
NAMES = ("astronaut", "drawn face", "drawn face", "cat")
SEED, NOISE_SEED, FACE_SEED = 0, 1, 2


@dataclass(frozen=True)
class Entry:
    """One row of the table: its name, what people read, the task, and what `make_operator` needs for it."""

    name: str
    title: str
    task: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sigma(self) -> float:
        return TASKS[self.task].added_sigma


def painted_hole() -> Tensor:
    """Two strokes and a blot, as a brush leaves them: a mask (1, 64, 64)."""
    row, column = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    stroke = (row - 12 - 0.35 * column).abs() < 1.6
    other = (column - 46 + 0.3 * row).abs() < 1.6
    blot = (row - 44).square() + (column - 17).square() < 49
    return (~(stroke | other | blot)).float()[None]


BLOCKS = Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=SEED).mask[:1]
ENTRIES = (
    Entry("denoise", "Denoising, sigma 0.1", "denoise"),
    Entry("inpaint", "Inpainting, a quarter missing in 4x4 blocks", "inpaint", {"mask": BLOCKS}),
    Entry("inpaint-painted", "Inpainting, painted over", "inpaint", {"mask": painted_hole()}),
    Entry("superres-2", "Super-resolution, 32x32 to 64x64", "superres", {"factor": 2}),
    Entry("superres-4", "Super-resolution, 16x16 to 64x64", "superres", {"factor": 4}),
    Entry("deblur", "Deblurring, Gaussian of width 1.5", "deblur", {"blur": 1.5}),
    Entry("colorize", "Colorization", "colorize"),
    Entry("sense", "Compressed sensing, 2,000 projections", "sense", {"measurements": 2000, "seed": SEED}),
)


def pictures() -> Tensor:
    """The true pictures (4, 3, 64, 64), in whole levels of 255."""
    drawn = aipo.load_prior(DEFAULT_PRIOR).sample(2, temperature=0.7, seed=FACE_SEED)
    x = torch.stack([aipo.samples.load("astronaut"), *drawn, aipo.samples.load("cat")])
    return to_uint8(x).float() / 255


def restore(entry: Entry, x: Tensor, prior: aipo.Prior) -> tuple[Tensor, aipo.Choice]:
    """What is measured of x, as a picture to look at, and the restoration of it."""
    operator, noise = make_operator(entry.task, SHAPE, **entry.options), aipo.Gaussian(entry.sigma)
    y = operator.measure(x, noise, NOISE_SEED)
    shown = y.expand(-1, 3, -1, -1) if entry.task == "colorize" else y if y.shape == x.shape else operator.A_dagger(y)
    return shown.clamp(0, 1), aipo.choose_lambda(aipo.MapProblem(prior, operator, noise, y))


def decibels(x: Tensor, truth: Tensor) -> list[float]:
    return aipo.metrics.psnr(x.clamp(0, 1), truth).tolist()


def sheet(path: Path, rows: list[tuple[str, Tensor, list[str]]], columns: tuple[str, ...] | None = None) -> None:
    """Write pictures in rows, each with a line below it, 128 pixels wide."""
    count = len(rows[0][1])
    width, height, side, top = 1.45, 1.6, 0.85, 0.28 if columns else 0.05  # inches, of 100 pixels
    W, H = side + count * width, top + len(rows) * height
    figure = plt.figure(figsize=(W, H))

    def write(x: float, y: float, text: str, align: str = "center") -> None:
        figure.text(x / W, y / H, text, ha=align, va="center", fontsize=9)

    for j, (label, images, below) in enumerate(rows):
        y0 = H - top - (j + 1) * height
        write(side - 0.1, y0 + height / 2 + 0.1, label, "right")
        for i, image in enumerate(images):
            x0 = side + i * width
            axes = figure.add_axes((x0 / W, (y0 + 0.25) / H, 1.28 / W, 1.28 / H))
            axes.imshow(to_uint8(image).permute(1, 2, 0).numpy(), interpolation="nearest")
            axes.axis("off")
            write(x0 + 0.64, y0 + 0.14, below[i])
            if columns and j == 0:
                write(x0 + 0.64, H - 0.15, columns[i])
    figure.savefig(path, dpi=100)
    plt.close(figure)


def make_tasks(wanted: list[str]) -> None:
    """Restore and draw the wanted tasks; the table is made of what is kept of all of them."""
    x, prior = pictures(), aipo.load_prior(DEFAULT_PRIOR)
    for task, entries in groupby(ENTRIES, lambda entry: entry.task):
        if wanted and task not in wanted:
            continue
        rows = [("truth", x, list(NAMES))]
        for entry in entries:
            shown, choice = restore(entry, x, prior)
            before, after = decibels(shown, x), decibels(choice.result.x, x)
            rows.append(("measured", shown, [f"{v:.1f} dB" for v in before]))
            rows.append(("restored", choice.result.x.clamp(0, 1), [f"{v:.1f} dB" for v in after]))
            keep(entry, before, after, choice.lam.tolist())
            print(f"{entry.name}: {', '.join(choice.result.status)}", flush=True)
        sheet(DOCS / "gallery" / f"{task}.png", rows)
    write_table()


def keep(entry: Entry, before: list[float], after: list[float], lam: list[float]) -> None:
    kept = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    values = {"before": before, "after": after, "lam": lam}
    kept[entry.name] = {name: [round(v, 2) for v in column] for name, column in values.items()}
    write_atomically(NUMBERS, json.dumps(kept, indent=1).encode())


def write_table() -> None:
    """Put the table of all kept numbers between its two comments in docs/gallery.md."""
    kept = json.loads(NUMBERS.read_text())
    lines = ["| task | " + " | ".join(NAMES) + " |", "|---" * (1 + len(NAMES)) + "|"]
    for entry in ENTRIES:
        columns = kept.get(entry.name, {"before": [], "after": [], "lam": []})
        cells = [
            f"{old:.1f} → **{new:.1f}** (lam {lam:.2f})"
            for old, new, lam in zip(columns["before"], columns["after"], columns["lam"], strict=True)
        ]
        lines.append(f"| {entry.title} | " + " | ".join(cells) + " |")
    page = DOCS / "gallery.md"
    pattern = r"(<!-- numbers -->\n).*?(<!-- end of numbers -->)"
    table = "\n".join(["", *lines, "", ""])
    text, found = re.subn(pattern, lambda match: match[1] + table + match[2], page.read_text(), flags=re.DOTALL)
    if not found:
        raise SystemExit(f"{page} has no place for the numbers")
    page.write_text(text)


def every_prior() -> None:
    x = pictures()[:1]
    names = ("celeba64-realnvp-small", "celeba64-realnvp", "celeba64-glow", "celeba64-tarflow")
    chosen = [entry for entry in ENTRIES if entry.name in ("inpaint", "superres-4", "colorize")]
    rows = []
    for entry in chosen:
        images, below = [x[0]], ["truth"]
        for name in names:
            shown, choice = restore(entry, x, aipo.load_prior(name))
            if name == names[0]:
                images.append(shown[0])
                below.append(f"{decibels(shown, x)[0]:.1f} dB")
            images.append(choice.result.x[0].clamp(0, 1))
            below.append(f"{decibels(choice.result.x, x)[0]:.1f} dB")
            print(entry.name, name, below[-1], flush=True)
        rows.append((entry.name, torch.stack(images), below))
    columns = ("", "measured", *(name.removeprefix("celeba64-") for name in names))
    sheet(DOCS / "gallery" / "priors.png", rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    tasks = sorted({entry.task for entry in ENTRIES})
    parser.add_argument("task", nargs="*", help=f"all by default: {', '.join(tasks)}")
    parser.add_argument("--priors", action="store_true", help="compare the priors instead")
    args = parser.parse_args()
    unknown = set(args.task) - set(tasks)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if args.priors:
        every_prior()
    else:
        make_tasks(args.task)


if __name__ == "__main__":
    main()
