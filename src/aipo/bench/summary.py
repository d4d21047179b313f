"""Tables, curves and verdicts from a folder of results, as Markdown, LaTeX, CSV and one self-contained HTML page."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aipo.bench.methods import BUDGET, METHODS, NO_LAM
from aipo.bench.protocol import TASKS
from aipo.bench.store import Store
from aipo.bench.tables import METRICS, Key, Number, aggregate, one_setup, rows_of, to_csv, to_latex, to_markdown
from aipo.files import write_atomically
from aipo.report import Picture, Section, write_report

__all__ = ["verdicts", "write_summary"]

READINGS = ("aipo", BUDGET)
BASELINES = ("mle_init", "random_init", "zero_init")
TITLES = {"map_loss": "MAP loss, nats", "psnr": "PSNR, dB"}


def write_summary(folder: Path, setup: str | None = None) -> list[Path]:
    """Write tables.md, tables.tex, tables.csv, curves.png and report.html beside the results."""
    rows = one_setup(Store(folder).read_all(), setup)
    numbers = aggregate(rows)
    findings = verdicts(numbers, rows)
    markdown, latex, sections = ["# Results\n", *(f"- {line}" for line in findings), ""], [], []
    for task, prior, split, methods in _tables(numbers):
        for metric in METRICS:
            caption = f"{TASKS[task].title}; {prior}; {split} images; {TITLES[metric]}"
            header, body = rows_of(numbers, metric, task, prior, split, methods, beside=True)
            markdown += [f"## {caption}\n", to_markdown(header, body)]
            latex.append(to_latex(header, body, caption))
            sections.append(Section(caption, table=(header, body)))
    header, body = references(numbers)
    if body:
        markdown += ["## Without a learnt prior: PSNR, dB\n", to_markdown(header, body)]
        latex.append(to_latex(header, body, "Without a learnt prior: PSNR, dB"))
        sections.append(Section("Without a learnt prior: PSNR, dB", table=(header, body)))
    curves = draw_curves(numbers)
    files = {
        "tables.md": "\n".join(markdown).encode(),
        "tables.tex": "\n".join(latex).encode(),
        "tables.csv": to_csv(numbers).encode(),
        "curves.png": curves,
    }
    charts = [("Mean loss and PSNR against lam, by task, prior and split", curves)]
    traces = Store(folder).read_traces(rows[0]["setup"])
    if traces:
        files["traces.png"] = draw_traces(traces, rows)
        charts.append(("Mean loss against evaluations, first chunk of each split", files["traces.png"]))
    for name, content in files.items():
        write_atomically(folder / name, content)
    page = folder / "report.html"
    intro = "Mean and standard error over images; the paper's numbers in brackets.\n\n" + "\n\n".join(findings)
    sections = [*gallery(Store(folder), rows), *sections]
    drawn = [Section(caption.split(",")[0], chart=(caption, png)) for caption, png in charts]
    write_report(page, "AIPO benchmark", intro, [*drawn, *sections], _settings(rows))
    return [*(folder / name for name in files), page]


def _tables(numbers: dict[Key, Number]) -> Iterable[tuple[str, str, str, list[str]]]:
    """Task, prior, split and the methods there, in the order of the protocols."""
    found = {(key.task, key.prior, key.split) for key in numbers}
    splits = ("test", "ood", "fairface")
    for task, prior, split in sorted(found, key=lambda f: (list(TASKS).index(f[0]), f[1], splits.index(f[2]))):
        here = {key.method for key in numbers if (key.task, key.prior, key.split) == (task, prior, split)}
        yield task, prior, split, [name for name, method in METHODS.items() if name in here and method.knows_lam]


def references(numbers: dict[Key, Number]) -> tuple[list[str], list[list[str]]]:
    """The methods that know no lam, beside the best mean over lam of those with the prior."""
    body = []
    for task, prior, split, _ in _tables(numbers):
        for name, method in METHODS.items():
            key = Key("psnr", task, prior, split, NO_LAM, name)
            if not method.knows_lam and key in numbers:
                found = [
                    n
                    for k, n in numbers.items()
                    if (k.metric, k.task, k.prior, k.split) == ("psnr", task, prior, split) and k.lam != NO_LAM
                ]
                best = f"{max(n.mean for n in found):.2f}" if found else "-"
                body.append([f"{task}, {prior}, {split}", method.title, numbers[key].text(2), best])
    return ["where", "method", "PSNR, dB", "best with the prior, dB"], body


def verdicts(numbers: dict[Key, Number], rows: list[dict[str, Any]]) -> list[str]:
    """What of the paper's claim holds here, counted."""
    cells: dict[tuple[str, str, str, float], dict[str, float]] = defaultdict(dict)
    for key, number in numbers.items():
        if key.metric == "map_loss" and key.lam != NO_LAM:
            cells[key.task, key.prior, key.split, key.lam][key.method] = number.mean
    lines = []
    for name in (*READINGS, "path"):
        met = [at for at in cells.values() if {name, *BASELINES} <= set(at)]
        if met:
            won = sum(at[name] < min(at[other] for other in BASELINES) for at in met)
            title = METHODS[name].title
            lines.append(f"{title} has a lower mean loss than all three constant steps in {won} of {len(met)} cells.")
    for name in READINGS:
        met = [at for at in cells.values() if {name, "path"} <= set(at)]
        if met:
            won = sum(at["path"] < at[name] for at in met)
            shares = _shares(rows, "path", name)
            lines.append(
                f"follow_path has a lower mean loss than {METHODS[name].title} in {won} of {len(met)} cells, with "
                f"{min(shares):.1%} to {max(shares):.1%} of its evaluations (all lam together)."
            )
    failed = Counter(METHODS[r["method"]].title for r in rows if r["status"] not in ("done", "max evaluations"))
    lost = "; ".join(f"{title}: {count}" for title, count in failed.most_common()) or "none"
    lines.append(f"Solves: {len(rows)}. Ended by a loss that is not finite, their last finite one is counted: {lost}.")
    return lines


def _shares(rows: list[dict[str, Any]], path: str, other: str) -> list[float]:
    """Evaluations for all lam together, of a path and of separate solves: one ratio for each task, prior and split."""
    total: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        where = total[row["task"], row["prior"], row["split"]]
        if row["method"] == other:
            where[other] += row["evals"]
        elif row["method"] == path:
            # What was spent by the time a lam was done, so the most is what the whole path took.
            where[f"{path} {row['image']}"] = max(where[f"{path} {row['image']}"], row["evals"])
    sums = [(sum(n for name, n in where.items() if name != other), where[other]) for where in total.values()]
    return [mine / theirs for mine, theirs in sums if mine and theirs]


def gallery(store: Store, rows: list[dict[str, Any]]) -> list[Section]:
    """The pictures that were kept: for each task and prior the truth, what was observed, and every method.

    At the lam where the methods are best on average, so that none is shown at a weight that does not suit it.
    """
    quality = {(r["prior"], r["task"], r["split"], r["method"], r["lam"], r["image"]): r["psnr"] for r in rows}
    shown: dict[tuple[str, str], dict[tuple[str, int], list[Picture]]] = {}
    best: dict[tuple[str, str], float] = {}
    kept = list(store.read_pictures(rows[0]["setup"]))
    order = list(METHODS)
    for about, arrays in sorted(kept, key=lambda pair: (pair[0]["split"] != "test", order.index(pair[0]["method"]))):
        where = (about["task"], about["prior"])
        if where not in best:
            best[where] = _best_lam(quality, about)
        lam = best[where]
        for i in range(len(arrays["truth"])):
            line = shown.setdefault(where, {}).setdefault((about["split"], i), [])
            if not line:
                line.append(Picture("truth", _image(arrays["truth"][i]), about["split"]))
                line.append(Picture("observed", _image(arrays["observed"][i])))
            shown_at = lam if lam in about["lambdas"] else NO_LAM
            restored = _image(arrays["restored"][about["lambdas"].index(shown_at)][i])
            dB = quality[about["prior"], about["task"], about["split"], about["method"], shown_at, about["start"] + i]
            line.append(Picture(METHODS[about["method"]].title, restored, f"{dB:.2f} dB"))
    return [
        Section(f"{TASKS[task].title}; {prior}", f"Restored at lam = {best[task, prior]:g}.", rows=list(lines.values()))
        for (task, prior), lines in shown.items()
    ]


def _best_lam(quality: dict[tuple[Any, ...], float], about: dict[str, Any]) -> float:
    def mean(lam: float) -> float:
        found = [dB for key, dB in quality.items() if key[:2] == (about["prior"], about["task"]) and key[4] == lam]
        return sum(found) / len(found)

    known = {key[4] for key in quality if key[:2] == (about["prior"], about["task"])} - {NO_LAM}
    return max(known, key=mean)


def _image(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def _settings(rows: list[dict[str, Any]]) -> dict[str, object]:
    names = ("setup", "precision", "seed", "device", "torch", "aipo", "commit", "date")
    return {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in names}


def draw_curves(numbers: dict[Key, Number]) -> bytes:
    """A row for each task and metric, a column for each prior and split."""
    shown = list(_tables(numbers))
    tasks = list(dict.fromkeys(task for task, *_ in shown))
    columns = list(dict.fromkeys((prior, split) for _, prior, split, _ in shown))
    lines = [(task, metric) for task in tasks for metric in METRICS]
    figure = Figure(figsize=(3.4 * len(columns), 2.6 * len(lines)), layout="constrained")
    axes = figure.subplots(len(lines), len(columns), squeeze=False)
    for task, prior, split, methods in shown:
        for metric in METRICS:
            axis = axes[lines.index((task, metric)), columns.index((prior, split))]
            lowest: dict[float, float] = {}
            for k, n in numbers.items():
                if (k.metric, k.task, k.prior, k.split) == (metric, task, prior, split):
                    lowest[k.lam] = min(n.mean, lowest.get(k.lam, n.mean))
            for method in methods:
                key = (metric, task, prior, split, method)
                found = {
                    k.lam: n.mean for k, n in numbers.items() if (k.metric, k.task, k.prior, k.split, k.method) == key
                }
                lambdas = sorted(found)
                # Losses of all methods look alike on the scale of the losses themselves.
                values = [max(found[lam] - lowest[lam], 1.0) if metric == "map_loss" else found[lam] for lam in lambdas]
                axis.plot(lambdas, values, "o-", ms=3, **_look(method))
            if metric == "map_loss":
                axis.set_yscale("log")
            axis.set_title(f"{task}, {prior}, {split}")
            axis.set_ylabel("loss above the lowest, nats" if metric == "map_loss" else TITLES[metric])
    return _png(figure)


def draw_traces(traces: list[dict[str, Any]], rows: list[dict[str, Any]]) -> bytes:
    """Loss above the lowest against evaluations at the smallest and largest lam; a path's end is one point."""
    places = list(dict.fromkeys((t["task"], t["prior"], t["split"]) for t in traces))
    ends = (0, -1)
    figure = Figure(figsize=(3.4 * len(ends), 2.8 * len(places)), layout="constrained")
    axes = figure.subplots(len(places), len(ends), squeeze=False)
    for place, line in zip(places, axes, strict=True):
        here = [t for t in traces if (t["task"], t["prior"], t["split"]) == place]
        for end, axis in zip(ends, line, strict=True):
            lam = here[0]["lambdas"][end]
            curves = {t["method"]: ([p[0] for p in t["trace"]], [p[1:][end] for p in t["trace"]]) for t in here}
            solved = [
                row
                for row in rows
                if (row["task"], row["prior"], row["split"]) == place
                and (row["method"], row["lam"]) == ("path", lam)
                and row["image"] < here[0]["stop"]
            ]
            if solved:
                curves["path"] = tuple([sum(r[k] for r in solved) / len(solved)] for k in ("evals", "loss"))  # type: ignore[assignment]
            lowest = min(loss for _, losses in curves.values() for loss in losses if loss == loss)
            for method, (evals, losses) in curves.items():
                above = [max(loss - lowest, 1.0) for loss in losses]
                axis.loglog(evals, above, "*" if method == "path" else "-", ms=10, **_look(method))
            axis.set_title(f"{', '.join(place)}, lam {lam:g}")
            axis.set_xlabel("gradient evaluations")
            axis.set_ylabel("loss above the lowest, nats")
    return _png(figure)


def _look(method: str) -> dict[str, Any]:
    """The same colour in every plot, whichever methods it shows."""
    return {"label": METHODS[method].title, "color": f"C{list(METHODS).index(method) % 10}"}


def _png(figure: Figure) -> bytes:
    """Drawn in small print, with one legend above all plots."""
    FigureCanvasAgg(figure)
    for axis in figure.axes:
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
            text.set_fontsize(8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    handles = {text: line for axis in figure.axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
