"""Corrupt and restore scikit-image's photographs: numbers, table and pictures of the README and the gallery.

    python scripts/make_photographs.py [--prior photo-small] [--device cpu]   # five minutes on two CPU cores

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
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import bm3d
import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from skimage import data, restoration
from torch import Tensor

import aipo
from aipo.files import write_atomically
from aipo.images.metrics import psnr
from aipo.operators import Blur, Denoising, Inpainting, LinearOperator, SuperResolution
from aipo.restore.operators import mosaic_mask

matplotlib.use("Agg")
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "results" / "photographs.json"
PAGE = ROOT / "docs" / "gallery.md"
PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket")
Classical = Callable[[LinearOperator, Tensor, float], Tensor]


def collaborative(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    return image(bm3d.bm3d_rgb(array(y), sigma_psd=sigma))


def biharmonic(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    missing = operator.mask[0].numpy() == 0  # type: ignore[attr-defined]
    return image(restoration.inpaint_biharmonic(array(y), missing, channel_axis=-1, split_into_regions=True))


def bicubic(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    return F.interpolate(y, scale_factor=2, mode="bicubic")


def wiener(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    kernel = operator.kernel.numpy().astype(float)  # type: ignore[attr-defined]
    y_ = array(y)
    channels = [restoration.unsupervised_wiener(y_[..., c], kernel, clip=False, rng=0)[0] for c in range(3)]
    return image(np.stack(channels, axis=-1))


def bilinear(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    mask = operator.mask[None]  # type: ignore[attr-defined]
    weights = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(3, 1, 3, 3)
    near, known = (F.conv2d(F.pad(v, (1, 1, 1, 1), "reflect"), weights, groups=3) for v in (mask * y, mask))
    return torch.where(mask > 0, y, near / known)


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    name: str
    title: str
    sigma: float
    operator: Callable[[tuple[int, int, int]], LinearOperator]
    method: str
    classical: Classical


TASKS = (
    Task("denoise-25", "Denoising, sigma 25/255", 25 / 255, Denoising, "BM3D", collaborative),
    Task("denoise-50", "Denoising, sigma 50/255", 50 / 255, Denoising, "BM3D", collaborative),
    Task(
        "inpaint",
        "A quarter missing in 4x4 blocks",
        0.01,
        lambda shape: Inpainting.random_blocks(shape, fraction=0.25, block=4, seed=0),
        "biharmonic",
        biharmonic,
    ),
    Task("superres", "Twice the size", 0.01, lambda shape: SuperResolution(shape, 2), "bicubic", bicubic),
    Task("deblur", "Gaussian blur of width 1.6", 0.01, lambda shape: Blur.gaussian(shape, 1.6), "Wiener", wiener),
    Task(
        "demosaic",
        "Demosaicing",
        0.01,
        lambda shape: Inpainting(mosaic_mask(shape, "rggb")),
        "bilinear",
        bilinear,
    ),
)
# What the README shows of each photograph.
SHOWN = {"astronaut": "denoise-50", "cat": "inpaint", "coffee": "superres", "rocket": "deblur"}


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
        for j, task in enumerate(TASKS):
            row, pictures[name, task.name] = run(task, truth, prior, 100 * i + j)
            rows.append({"photograph": name, "task": task.name, "classical": task.method, **row})
            print(json.dumps(rows[-1]), flush=True)
    about = {
        "command": "python scripts/make_photographs.py",
        "date": date.today().isoformat(),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads" if args.device == "cpu" else args.device,
        "prior": prior.name,
        "sha256": prior.card["sha256"],
        "torch": torch.__version__,
    }
    write_atomically(NUMBERS, (json.dumps({**about, "rows": rows}, indent=1) + "\n").encode())
    draw_shown(pictures, rows)
    for task in TASKS:
        draw_task(task, pictures)
    write_table(rows)


def photograph(name: str) -> Tensor:
    """(1, 3, H, W), H and W even."""
    x = torch.from_numpy(getattr(data, name)()).permute(2, 0, 1)[None].float() / 255
    return x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2]


def run(task: Task, truth: Tensor, prior: aipo.NoisePrior, seed: int) -> tuple[dict[str, float], list[Tensor]]:
    """Numbers of a restoration; and what was measured, the restoration and the classical one."""
    operator, noise = task.operator((3, truth.shape[2], truth.shape[3])), aipo.Gaussian(task.sigma)
    y = operator.measure(truth, noise, seed=seed)
    problem = aipo.MapProblem(prior, operator, noise, y)
    start = time.perf_counter()
    ours = aipo.anneal(problem).x.cpu()
    middle = time.perf_counter()
    theirs = task.classical(operator, y, task.sigma)
    end = time.perf_counter()
    before, *after = (v.clamp(0, 1) for v in (y if isinstance(operator, Blur) else operator.A_dagger(y), ours, theirs))
    numbers = {
        key: round(psnr(v, truth).item(), 3)
        for key, v in zip(("psnr_before", "psnr", "psnr_classical"), (before, *after), strict=True)
    }
    return {**numbers, "seconds": round(middle - start, 2), "seconds_classical": round(end - middle, 2)}, [
        before,
        *after,
    ]


def draw_shown(pictures: dict[tuple[str, str], list[Tensor]], rows: list[dict]) -> None:
    """Four photographs, left of the middle as measured, right of it restored."""
    figure = Figure(figsize=(12.8, 9.3), layout="constrained")
    axes = figure.subplots(2, 2)
    for ax, (name, task) in zip(axes.flat, SHOWN.items(), strict=True):
        row = next(r for r in rows if (r["photograph"], r["task"]) == (name, task))
        before, after = (shaped(v) for v in pictures[name, task][:2])
        middle = before.shape[1] // 2
        ax.imshow(np.concatenate([before[:, :middle], after[:, middle:]], axis=1), interpolation="lanczos")
        ax.axvline(middle - 0.5, color="white", linewidth=1.5)
        title = next(t.title for t in TASKS if t.name == task)
        ax.set_title(title, fontsize=14)
        ax.set_xlabel(
            f"{row['psnr_before']:.1f} dB → {row['psnr']:.1f} dB   ({row['classical']} {row['psnr_classical']:.1f} dB)",
            fontsize=13,
        )
        bare(ax)
    save(figure, ROOT / "docs" / "photographs.jpg")


def draw_task(task: Task, pictures: dict[tuple[str, str], list[Tensor]]) -> None:
    """All photographs: measured, ours, the classical method."""
    figure = Figure(figsize=(12.8, 6.4), layout="constrained")
    axes = figure.subplots(3, len(PHOTOGRAPHS))
    for column, name in enumerate(PHOTOGRAPHS):
        for row, (label, picture) in enumerate(
            zip(("measured", "AIPO", task.method), pictures[name, task.name], strict=True)
        ):
            ax = axes[row, column]
            ax.imshow(shaped(picture), interpolation="lanczos")
            bare(ax)
            if column == 0:
                ax.set_ylabel(label, fontsize=12)
    save(figure, ROOT / "docs" / "gallery" / f"photographs-{task.name}.jpg")


def shaped(x: Tensor) -> np.ndarray:
    """The middle of a picture, three wide and two high."""
    height, width = x.shape[2:]
    h, w = min(height, width * 2 // 3), min(width, height * 3 // 2)
    top, left = (height - h) // 2, (width - w) // 2
    return array(x[..., top : top + h, left : left + w])


def bare(ax: matplotlib.axes.Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    write_atomically(path, lambda file: figure.savefig(file, format="jpg", dpi=100, pil_kwargs={"quality": 88}))
    print(f"wrote {path}")


def write_table(rows: list[dict]) -> None:
    lines = ["| task | " + " | ".join(PHOTOGRAPHS) + " | beside it |", "|---" * (len(PHOTOGRAPHS) + 2) + "|"]
    for task in TASKS:
        cells = []
        for name in PHOTOGRAPHS:
            row = next(r for r in rows if (r["photograph"], r["task"]) == (name, task.name))
            cells.append(f"{row['psnr_before']:.1f} → **{row['psnr']:.1f}** ({row['psnr_classical']:.1f})")
        lines.append(f"| {task.title} | " + " | ".join(cells) + f" | {task.method} |")
    page = PAGE.read_text()
    table = "<!-- photographs -->\n\n" + "\n".join(lines) + "\n\n<!-- end of photographs -->"
    page, found = re.subn(r"<!-- photographs -->.*<!-- end of photographs -->", lambda _: table, page, flags=re.DOTALL)
    assert found == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(page)


def array(x: Tensor) -> np.ndarray:
    return x[0].permute(1, 2, 0).double().numpy()


def image(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x).permute(2, 0, 1)[None].float()


if __name__ == "__main__":
    main()
