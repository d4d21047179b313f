"""Corrupt and restore scikit-image's photographs: numbers, table and pictures of the README and the gallery.

    python benchmarks/photographs.py [--prior photo-small] [--device cpu]   # five minutes on two CPU cores

Needs the extra `classical`. Beside each of our restorations stands that of a well-known classical method, from the
same measurement: BM3D, biharmonic filling, bicubic interpolation, Wiener's filter with a weight found by itself, and
bilinear interpolation of the colors.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
import warnings
from datetime import date
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import RESULTS, save
from skimage import data
from torch import Tensor

import aipo
from aipo.files import write_atomically
from aipo.images.metrics import psnr
from aipo.operators import Blur
from restore import TASKS, Task, array, measure

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket")
# Those of `benchmarks/restore.py` that make a page.
CHOSEN = ("denoise-25", "denoise-50", "inpaint", "superres-2", "gaussian", "demosaic")
# What the README shows of each photograph.
SHOWN = {"astronaut": "denoise-50", "cat": "inpaint", "coffee": "superres-2", "rocket": "gaussian"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    prior = aipo.load_prior(args.prior).to(args.device)
    rows, pictures = [], {}
    for i, name in enumerate(PHOTOGRAPHS):
        truth = photograph(name)
        for key in CHOSEN:
            row, pictures[name, key] = run(TASKS[key], truth, prior, i)
            rows.append({"photograph": name, "task": key, "classical": TASKS[key].method, **row})
            print(json.dumps(rows[-1]), flush=True)
    about = {
        "command": "python benchmarks/photographs.py",
        "date": date.today().isoformat(),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads" if args.device == "cpu" else args.device,
        "prior": prior.name,
        "sha256": prior.card["sha256"],
        "torch": torch.__version__,
    }
    save(RESULTS / "photographs.json", {**about, "rows": rows})
    draw_shown(pictures, rows)
    for key in CHOSEN:
        draw_task(key, pictures)
    write_table(rows)


def photograph(name: str) -> Tensor:
    """(1, 3, H, W), H and W multiples of 4."""
    x = torch.from_numpy(getattr(data, name)()).permute(2, 0, 1)[None].float() / 255
    return x[..., : x.shape[2] // 4 * 4, : x.shape[3] // 4 * 4]


def run(task: Task, truth: Tensor, prior: aipo.NoisePrior, number: int) -> tuple[dict[str, float], list[Tensor]]:
    """Numbers of a restoration; and what was measured, the restoration and the classical one."""
    m = measure(task, truth, number)
    start = time.perf_counter()
    ours = aipo.anneal(aipo.MapProblem(prior, m.operator, aipo.Gaussian(task.sigma), m.y, "fast"), x0=m.start).x.cpu()
    middle = time.perf_counter()
    theirs = task.classical(m.operator, m.y, task.sigma)
    end = time.perf_counter()
    before = m.y if isinstance(m.operator, Blur) else m.operator.A_dagger(m.y)
    shown = [v.clamp(0, 1) for v in (before, ours, theirs)]
    names = ("psnr_before", "psnr", "psnr_classical")
    numbers = {name: round(psnr(v, truth).item(), 3) for name, v in zip(names, shown, strict=True)}
    return {**numbers, "seconds": round(middle - start, 2), "seconds_classical": round(end - middle, 2)}, shown


def draw_shown(pictures: dict[tuple[str, str], list[Tensor]], rows: list[dict]) -> None:
    """Four photographs, left of the middle as measured, right of it restored."""
    figure = Figure(figsize=(12.8, 9.8), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)
    axes = figure.subplots(2, 2)
    for ax, (name, task) in zip(axes.flat, SHOWN.items(), strict=True):
        row = next(r for r in rows if (r["photograph"], r["task"]) == (name, task))
        before, after = (shaped(v) for v in pictures[name, task][:2])
        middle = before.shape[1] // 2
        ax.imshow(np.concatenate([before[:, :middle], after[:, middle:]], axis=1), interpolation="lanczos")
        ax.axvline(middle - 0.5, color="white", linewidth=1.5)
        ax.set_title(TASKS[task].title, fontsize=14)
        ax.set_xlabel(
            f"{row['psnr_before']:.1f} dB → {row['psnr']:.1f} dB   ({row['classical']} {row['psnr_classical']:.1f} dB)",
            fontsize=13,
        )
        bare(ax)
    save_figure(figure, ROOT / "docs" / "photographs.jpg")


def draw_task(task: str, pictures: dict[tuple[str, str], list[Tensor]]) -> None:
    """All photographs: measured, ours, the classical method."""
    figure = Figure(figsize=(12.8, 6.4), layout="constrained")
    axes = figure.subplots(3, len(PHOTOGRAPHS))
    for column, name in enumerate(PHOTOGRAPHS):
        for row, (label, picture) in enumerate(
            zip(("measured", "AIPO", TASKS[task].method), pictures[name, task], strict=True)
        ):
            ax = axes[row, column]
            ax.imshow(shaped(picture), interpolation="lanczos")
            bare(ax)
            if column == 0:
                ax.set_ylabel(label, fontsize=12)
    save_figure(figure, ROOT / "docs" / "gallery" / f"photographs-{task}.jpg")


def shaped(x: Tensor) -> np.ndarray:
    """The middle of a picture, three wide and two high."""
    height, width = x.shape[2:]
    h, w = min(height, width * 2 // 3), min(width, height * 3 // 2)
    top, left = (height - h) // 2, (width - w) // 2
    return array(x[..., top : top + h, left : left + w])


def bare(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    write_atomically(path, lambda file: figure.savefig(file, format="jpg", dpi=100, pil_kwargs={"quality": 88}))
    print(f"wrote {path}")


def write_table(rows: list[dict]) -> None:
    lines = ["| task | " + " | ".join(PHOTOGRAPHS) + " | beside it |", "|---" * (len(PHOTOGRAPHS) + 2) + "|"]
    for task in CHOSEN:
        cells = []
        for name in PHOTOGRAPHS:
            row = next(r for r in rows if (r["photograph"], r["task"]) == (name, task))
            cells.append(f"{row['psnr_before']:.1f} → **{row['psnr']:.1f}** ({row['psnr_classical']:.1f})")
        lines.append(f"| {TASKS[task].title} | " + " | ".join(cells) + f" | {TASKS[task].method} |")
    page = PAGE.read_text()
    table = "<!-- photographs -->\n\n" + "\n".join(lines) + "\n\n<!-- end of photographs -->"
    page, found = re.subn(r"<!-- photographs -->.*<!-- end of photographs -->", lambda _: table, page, flags=re.DOTALL)
    assert found == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
