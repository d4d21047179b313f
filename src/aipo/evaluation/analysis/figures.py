"""The figures: restorations side by side as in the paper, curves over lam, losses over evaluations."""

from __future__ import annotations

import io
import math
import statistics
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from aipo.evaluation.analysis.cells import METRICS, SPLITS, Key, Number, combinations, short_name
from aipo.evaluation.cell import file_safe
from aipo.evaluation.methods import LAM_UNUSED, METHODS, PATHS
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.evaluation.store import IDENTITY, Store

__all__ = ["Comparison", "comparisons", "draw_comparison", "draw_curves", "draw_traces", "png"]

# The same in every figure, whichever methods it shows; related methods have related colors.
COLORS = {
    "aipo": "#1b4f9c",
    "aipo_printed": "#7fb0e6",
    "mle_init": "#b5322a",
    "random_init": "#e8853d",
    "zero_init": "#f0c04f",
    "path": "#86c97f",
    "path_long": "#23803f",
    "adam_mle": "#58358a",
    "adam_random": "#9b6fc4",
    "adam_zero": "#d3b3e3",
    "lbfgs": "#7b5233",
    "bm3d": "#3c3c3c",
    "tv": "#9a9a9a",
    "biharmonic": "#4c5a66",
    "wavelets": "#6b6b55",
}
# Where the observation is an image too.
OBSERVED = ("denoise", "inpaint")
LEGEND = 0.8  # height of a legend of all methods, in inches

# The sizes in a comparison, in pixels. DPI is a power of two, so that sizes in inches are exact.
DPI = 128
MOST_IMAGES = 5
SMALLEST_TILE = 110
LINE, NAMES, STRIP, GAP, BETWEEN_SPLITS, BARS, FOOT, MARGIN = 18, 108, 6, 4, 20, 132, 36, 12
LEAST_SPAN = 1.0  # dB from the shortest to the longest bar, at least: small differences should look small


@dataclass
class Column:
    """One image (H, W, 3) of a split, what was observed of it, and by method its restoration and PSNR in dB."""

    split: str
    truth: np.ndarray
    observed: np.ndarray
    restored: dict[str, np.ndarray] = field(default_factory=dict)
    psnr: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A figure of the paper: one task with one prior at one lam, an image in each column, split by split."""

    task: str
    prior: str
    lam: float
    columns: list[Column]

    @property
    def name(self) -> str:
        return f"figure-{self.task}-{file_safe(self.prior)}"

    @property
    def title(self) -> str:
        return f"{EXPERIMENTS[self.task].title}; {self.prior}"

    @property
    def methods(self) -> list[str]:
        return [name for name in METHODS if any(name in column.restored for column in self.columns)]


def comparisons(store: Store, rows: list[dict[str, Any]]) -> list[Comparison]:
    """One for each task and prior with kept images of solves in `rows`; none where only classical methods ran."""
    kept, solved = defaultdict(list), defaultdict(list)
    for about, arrays in store.read_images(rows[0]["setup"]):
        kept[about["task"], about["prior"]].append((about, arrays))
    for row in rows:
        solved[row["task"], row["prior"]].append(row)
    found = []
    for task, prior in sorted(kept, key=lambda pair: (list(EXPERIMENTS).index(pair[0]), pair[1])):
        lam = _common_lam(solved[task, prior])
        columns = _columns(kept[task, prior], solved[task, prior], lam)
        if columns and lam != LAM_UNUSED:
            found.append(Comparison(task, short_name(prior), lam, columns))
    return found


def _common_lam(rows: list[dict[str, Any]]) -> float:
    """The lam with the highest median PSNR over all methods; a few solves that blow up would decide a mean."""
    found = defaultdict(list)
    for row in rows:
        if row["lam"] != LAM_UNUSED and math.isfinite(row["psnr"]):
            found[row["lam"]].append(row["psnr"])
    return max(found, key=lambda lam: statistics.median(found[lam]), default=LAM_UNUSED)


def _columns(
    kept: list[tuple[dict[str, Any], dict[str, np.ndarray]]], rows: list[dict[str, Any]], lam: float
) -> list[Column]:
    # Images of a prior or a method that has changed since are still there, but their rows are not: not shown.
    psnr = {(*(row[name] for name in IDENTITY), row["lam"], row["image"]): row["psnr"] for row in rows}
    columns: dict[tuple[str, int], Column] = {}
    for about, arrays in kept:
        split, method = about["split"], about["method"]
        shown_at = lam if METHODS[method].uses_lam else LAM_UNUSED
        for i, (truth, observed) in enumerate(zip(arrays["truth"], arrays["observed"], strict=True)):
            solve = (*(about[name] for name in IDENTITY), shown_at, about["start"] + i)
            if i < MOST_IMAGES and solve in psnr and shown_at in about["lambdas"]:
                column = columns.setdefault((split, i), Column(split, truth, observed))
                column.restored[method] = arrays["restored"][about["lambdas"].index(shown_at)][i]
                column.psnr[method] = psnr[solve]
    return [columns[key] for key in sorted(columns, key=lambda key: (list(SPLITS).index(key[0]), key[1]))]


def draw_comparison(comparison: Comparison) -> Figure:
    """Rows of images: the truth, what was observed, each method; below each column a bar of PSNR for each method.

    All is drawn in one plot whose units are pixels, y downwards, so that all pixels of an image are equally large.
    """
    columns, methods = comparison.columns, comparison.methods
    rows: list[tuple[str, str, list[np.ndarray | None]]] = [("Ground truth", "none", [c.truth for c in columns])]
    if comparison.task in OBSERVED:
        rows.append(("Observed", "none", [c.observed for c in columns]))
    rows += [(METHODS[name].title, COLORS[name], [c.restored.get(name) for c in columns]) for name in methods]
    height, width = columns[0].truth.shape[:2]
    scale = math.ceil(SMALLEST_TILE / width)
    height, width = scale * height, scale * width
    left = _left_edges(columns, width)
    title = textwrap.wrap(f"{comparison.title}; lam = {comparison.lam:g}", (left[-1] + width) // 8)
    first = 2 * MARGIN + len(title) * LINE
    bars = first + len(rows) * (height + GAP)
    figure, canvas = _sheet(left[-1] + width + MARGIN, bars + BARS + FOOT)
    # The name of a prior may contain dollars, and is not a formula.
    canvas.text(MARGIN, first / 2, "\n".join(title), fontsize=8, va="center", parse_math=False)
    for i, (name, color, images) in enumerate(rows):
        top = first + i * (height + GAP)
        _name_row(canvas, name, top + height / 2)
        canvas.fill_betweenx((top, top + height), NAMES, NAMES + STRIP, color=color, lw=0)
        for x, image in zip(left, images, strict=True):
            if image is not None:
                canvas.imshow(image, extent=(x, x + width, top + height, top), aspect="auto", interpolation="nearest")
    _name_row(canvas, METRICS["psnr"], bars + BARS / 2)
    for x, column in zip(left, columns, strict=True):
        _draw_bars(canvas, x, bars + BARS, width, methods, column.psnr)
    _name_splits(canvas, columns, left, width, bars + BARS)
    return figure


def _left_edges(columns: list[Column], width: int) -> list[int]:
    lefts = [NAMES + STRIP + GAP]
    for before, after in pairwise(columns):
        lefts.append(lefts[-1] + width + (GAP if before.split == after.split else BETWEEN_SPLITS))
    return lefts


def _sheet(width: int, height: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    canvas = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    canvas.set_axis_off()
    return figure, canvas


def _name_row(canvas: Axes, name: str, middle: float) -> None:
    canvas.text(NAMES - 2 * GAP, middle, textwrap.fill(name, 12), fontsize=7, ha="right", va="center")


def _draw_bars(
    canvas: Axes, left: float, bottom: float, width: int, methods: list[str], psnr: dict[str, float]
) -> None:
    """One bar for each method, with its value above. The shortest bar is the lowest PSNR, not 0."""
    found = {name: dB for name, dB in psnr.items() if math.isfinite(dB)}
    lowest = min(found.values(), default=0.0)
    span = max(max(found.values(), default=0.0) - lowest, LEAST_SPAN)
    slot = (width - 2 * GAP) / len(methods)
    # Room for the values above the longest bar; and the shortest one can still be seen.
    most, least, size = 0.68 * BARS, 0.12 * BARS, min(0.95 * slot, 12) * 72 / DPI
    for i, name in enumerate(methods):
        if name in found:
            middle = left + GAP + (i + 0.5) * slot
            length = least + (most - least) * (found[name] - lowest) / span
            canvas.bar(middle, -length, 0.84 * slot, bottom, color=COLORS[name])
            value = f"{found[name]:.1f}"
            canvas.text(middle, bottom - length - 3, value, fontsize=size, rotation=90, ha="center", va="bottom")
    canvas.hlines(bottom, left, left + width, color="0.6", lw=0.6)


def _name_splits(canvas: Axes, columns: list[Column], left: list[int], width: int, bottom: float) -> None:
    for split, title in SPLITS.items():
        here = [x for x, column in zip(left, columns, strict=True) if column.split == split]
        if here:
            middle = (here[0] + here[-1] + width) / 2
            canvas.text(middle, bottom + FOOT / 2, title, fontsize=8, ha="center", va="center")


def draw_curves(numbers: dict[Key, Number], prior: str) -> Figure:
    """A row for each task and metric, a column for each split."""
    shown = [
        (task, split, methods) for task, name, split, methods in combinations(numbers) if name == prior and methods
    ]
    lines = list(product(dict.fromkeys(task for task, *_ in shown), METRICS))
    figure, axes = _grid(lines, [split for _, split, _ in shown])
    for task, split, methods in shown:
        for metric in METRICS:
            if metric == "map_loss" and len(methods) == 1:
                continue  # no other loss to compare it with
            found: dict[str, dict[float, float]] = defaultdict(dict)
            for k, n in numbers.items():
                if (k.metric, k.task, k.prior, k.split) == (metric, task, prior, split) and k.method in methods:
                    found[k.method][k.lam] = n.mean
            lowest = {lam: min(at[lam] for at in found.values() if lam in at) for at in found.values() for lam in at}
            axis = axes[(task, metric), split]
            for method in methods:
                lambdas = sorted(found[method])
                values = [found[method][lam] for lam in lambdas]
                if metric == "map_loss":
                    # On their own scale the losses of all methods look the same.
                    values = [max(value - lowest[lam], 1.0) for lam, value in zip(lambdas, values, strict=True)]
                    axis.set_yscale("log")
                axis.plot(lambdas, values, "o-", ms=3, **_style(method))
            axis.set_title(f"{task}, {split}")
            axis.set_xlabel("lam")
            axis.set_ylabel("loss above the lowest, nats" if metric == "map_loss" else METRICS[metric])
    return _finish(figure)


def draw_traces(traces: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Figure:
    """Of one prior: loss above the lowest against evaluations, at the smallest and the largest lam.

    A row for each task and lam, a column for each split; the end of a path is a single point.
    """
    shown = sorted({(t["task"], t["split"]) for t in traces}, key=lambda pair: list(EXPERIMENTS).index(pair[0]))
    ends = (0, -1)
    figure, axes = _grid(product(dict.fromkeys(task for task, _ in shown), ends), [split for _, split in shown])
    for task, split in shown:
        here = [t for t in traces if (t["task"], t["split"]) == (task, split)]
        images = max(t["stop"] for t in here)
        here = [t for t in here if t["stop"] == images]
        solved = [r for r in rows if (r["task"], r["split"]) == (task, split) and r["image"] < images]
        for end in ends:
            lam = here[0]["lambdas"][end]
            curves = {t["method"]: ([p[0] for p in t["trace"]], [p[1:][end] for p in t["trace"]]) for t in here}
            for name in PATHS:
                path = [r for r in solved if (r["method"], r["lam"]) == (name, lam)]
                if path:
                    means = [statistics.fmean(r[column] for r in path) for column in ("evals", "loss")]
                    curves[name] = (means[:1], means[1:])
            lowest = min((loss for _, losses in curves.values() for loss in losses if loss == loss), default=0.0)
            axis = axes[(task, end), split]
            for method in (name for name in METHODS if name in curves):
                evals, losses = curves[method]
                above = [max(loss - lowest, 1.0) for loss in losses]
                axis.loglog(evals, above, "*" if method in PATHS else "-", ms=10, **_style(method))
            axis.set_title(f"{task}, {split}, lam {lam:g}")
            axis.set_xlabel("gradient evaluations")
            axis.set_ylabel("loss above the lowest, nats")
    return _finish(figure)


def _grid(lines: Iterable[Any], splits: Iterable[str]) -> tuple[Figure, dict[tuple[Any, str], Axes]]:
    """A row for each line, a column for each split."""
    lines, columns = list(lines), [split for split in SPLITS if split in set(splits)]
    # Margins are set by hand, in inches: a layout engine takes longer than all the drawing.
    width, height = 3.4 * len(columns), 2.6 * len(lines) + LEGEND
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(len(lines), len(columns), squeeze=False)
    figure.subplots_adjust(
        left=0.65 / width,
        right=1 - 0.1 / width,
        bottom=0.45 / height,
        top=1 - (LEGEND + 0.3) / height,
        wspace=0.75 / 2.65,
        hspace=0.75 / 1.85,
    )
    return figure, dict(zip(product(lines, columns), axes.flat, strict=True))


def _style(method: str) -> dict[str, Any]:
    return {"label": METHODS[method].title, "color": COLORS[method]}


def _finish(figure: Figure) -> Figure:
    """Small print, one legend above all plots, and no empty plots."""
    for axis in figure.axes:
        axis.set_visible(bool(axis.lines))
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
            text.set_fontsize(8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    handles = {text: line for axis in figure.axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=3, fontsize=8)
    return figure


def png(figure: Figure, few_colors: bool = False) -> bytes:
    """The figure as a PNG file. With few colors, enough for lines and letters, it is a quarter as large."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a prior may be named in letters that the font lacks
        canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if few_colors:
        image = image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
