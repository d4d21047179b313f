"""Means, standard errors and medians of every cell, and tables of them beside the paper's."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aipo.bench.methods import METHODS, NO_LAM
from aipo.bench.protocol import TASKS
from aipo.errors import InputError
from aipo.report import Marked

__all__ = [
    *("METRICS", "SPLITS", "Key", "Number", "aggregate", "one_setup", "paper_numbers", "places", "rows_of"),
    *("short_name", "to_csv", "to_latex", "to_markdown"),
]

METRICS = {"map_loss": "MAP loss, nats", "psnr": "PSNR, dB"}
SPLITS = {"test": "Test", "ood": "OOD", "fairface": "FairFace"}


@dataclass(frozen=True)
class Key:
    """A number of a table."""

    metric: str
    task: str
    prior: str
    split: str
    lam: float
    method: str


@dataclass(frozen=True)
class Number:
    mean: float
    se: float
    count: int = 0
    median: float = math.nan

    def text(self, digits: int) -> str:
        # A single image has no standard error.
        return f"{self.mean:.{digits}f}" + ("" if math.isnan(self.se) else f" ± {self.se:.{digits}f}")


def one_setup(rows: list[dict[str, Any]], setup: str | None = None) -> list[dict[str, Any]]:
    """The rows of one setup, each image once, though chunks may overlap; refused if they do not belong together."""
    setups = sorted({row["setup"] for row in rows})
    if setup is None and len(setups) > 1:
        raise InputError(f"these results have different settings; choose one with --setup: {', '.join(setups)}")
    chosen = setup or setups[0]
    if chosen not in setups:
        raise InputError(f"no results have the setup {chosen}; there are {', '.join(setups)}")
    rows = [row for row in rows if row["setup"] == chosen]
    seen: dict[tuple[str, ...], str] = {}
    for row in rows:
        for what, version, kind in (
            ((row["method"],), "settings", "settings"),
            ((row["prior"],), "prior_sha256", "weights"),
            ((row["prior"], row["split"]), "fingerprint", "pictures"),
        ):
            if seen.setdefault((kind, *what), row[version]) != row[version]:
                raise InputError(f"{' '.join(what)} was measured with different {kind} here; move one set of rows away")
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        unique[tuple(row[k] for k in ("prior", "task", "split", "method", "lam", "image"))] = row
    return list(unique.values())


def short_name(prior: str) -> str:
    """As the paper calls it."""
    return prior.removeprefix("celeba64-")


def aggregate(rows: Iterable[dict[str, Any]]) -> dict[Key, Number]:
    """Mean, standard error and median over images; those whose loss is not finite are left out, and not counted.

    Methods that know no lam have no loss, only pictures.
    """
    values: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        failed = row["lam"] != NO_LAM and not math.isfinite(row["loss"])
        for metric, column in zip(METRICS, ("loss", "psnr"), strict=True):
            if not failed and math.isfinite(row[column]):
                prior = short_name(row["prior"])
                values[Key(metric, row["task"], prior, row["split"], row["lam"], row["method"])].append(row[column])
    return {key: _number(found) for key, found in values.items()}


def _number(values: list[float]) -> Number:
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Number(statistics.fmean(values), se, len(values), statistics.median(values))


def paper_numbers() -> dict[Key, Number]:
    """The 640 numbers of the paper's tables."""
    with (Path(__file__).parent / "paper.csv").open(newline="") as file:
        return {
            Key(r["metric"], r["task"], r["prior"], r["split"], float(r["lam"]), r["method"]): Number(
                float(r["mean"]), float(r["se"])
            )
            for r in csv.DictReader(file)
        }


def places(numbers: dict[Key, Number]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Task, prior, split and the methods there that know lam, in the order of the protocols."""
    found = {(key.task, key.prior, key.split) for key in numbers}
    tasks, splits = list(TASKS), list(SPLITS)
    for task, prior, split in sorted(found, key=lambda f: (tasks.index(f[0]), f[1], splits.index(f[2]))):
        here = {key.method for key in numbers if (key.task, key.prior, key.split) == (task, prior, split)}
        yield task, prior, split, [name for name, method in METHODS.items() if name in here and method.knows_lam]


def rows_of(
    numbers: dict[Key, Number], metric: str, task: str, prior: str, split: str, methods: Iterable[str], beside: bool
) -> tuple[list[str], list[list[str]]]:
    """One table: a row for each lam, a column for each method, with the paper's number in brackets if `beside`.

    The best mean of each row is marked.
    """
    paper = paper_numbers() if beside else {}
    digits = 0 if metric == "map_loss" else 2
    methods = list(methods)
    here = [key for key in numbers if (key.task, key.prior, key.split) == (task, prior, split)]
    lambdas = sorted({key.lam for key in here if key.method in methods})
    body = []
    for lam in lambdas:
        keys = [Key(metric, task, prior, split, lam, method) for method in methods]
        means = [numbers[key].mean for key in keys if key in numbers]
        best = (min if metric == "map_loss" else max)(means, default=math.nan)
        cells = []
        for key in keys:
            text = numbers[key].text(digits) if key in numbers else "-"
            text = f"{text} ({paper[key].text(digits)})" if key in paper else text
            cells.append(Marked(text) if key in numbers and numbers[key].mean == best else text)
        body.append([f"{lam:g}", *cells])
    return ["lam", *methods], body


def to_markdown(header: list[str], body: list[list[str]]) -> str:
    marked = [[f"**{cell}**" if isinstance(cell, Marked) else cell for cell in row] for row in body]
    lines = [header, ["---"] * len(header), *marked]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def to_latex(header: list[str], body: list[list[str]], caption: str) -> str:
    def text(cell: str) -> str:
        plain = cell.replace("_", r"\_").replace("±", r"$\pm$")
        return rf"\textbf{{{plain}}}" if isinstance(cell, Marked) else plain

    def line(cells: list[str]) -> str:
        return " & ".join(map(text, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption.replace('_', chr(92) + '_')}}}",
            rf"\begin{{tabular}}{{{'l' + 'r' * (len(header) - 1)}}}",
            r"\hline",
            line(header),
            r"\hline",
            *(line(row) for row in body),
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(numbers: dict[Key, Number]) -> str:
    """Every number beside the paper's, one line each."""
    paper = paper_numbers()
    lines = ["metric,task,prior,split,lam,method,mean,se,count,median,paper_mean,paper_se"]
    for key in sorted(numbers, key=lambda k: (k.metric, k.task, k.prior, k.split, k.lam, k.method)):
        n, theirs = numbers[key], paper.get(key)
        known = f"{theirs.mean:g},{theirs.se:g}" if theirs else ","
        where = f"{key.metric},{key.task},{key.prior},{key.split},{key.lam:g},{key.method}"
        lines.append(f"{where},{n.mean:.6g},{n.se:.4g},{n.count},{n.median:.6g},{known}")
    return "\n".join(lines) + "\n"
