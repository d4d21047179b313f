"""From rows to the numbers of cells: means, standard errors and medians over images, and the paper's beside them."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aipo.errors import InputError
from aipo.evaluation.methods import LAM_UNUSED, METHODS
from aipo.evaluation.protocol import EXPERIMENTS

__all__ = [
    *("METRICS", "SAME_IMAGES", "SPLITS", "Key", "Number", "aggregate", "best_lam", "combinations", "on_shared_images"),
    *("one_setup", "paper_numbers", "rows_with_lam", "short_name"),
]

METRICS = {"map_loss": "MAP loss, nats", "psnr": "PSNR, dB"}
SPLITS = {"test": "Test", "ood": "OOD", "fairface": "FairFace"}
# What rows must have in common to compare methods with one prior, and to compare priors as well.
COMBINATION = ("task", "prior", "split")
SAME_IMAGES = ("task", "split", "fingerprint")


@dataclass(frozen=True)
class Key:
    """Which number of which table."""

    metric: str
    task: str
    prior: str
    split: str
    lam: float
    method: str


@dataclass(frozen=True)
class Number:
    """A mean over images with its standard error; the paper's have neither count nor median."""

    mean: float
    se: float
    count: int = 0
    median: float = math.nan

    def text(self, digits: int) -> str:
        # A single image has no standard error.
        return f"{self.mean:.{digits}f}" + ("" if math.isnan(self.se) else f" ± {self.se:.{digits}f}")


def one_setup(rows: list[dict[str, Any]], setup: str | None = None) -> list[dict[str, Any]]:
    """The rows of one setup, each image once, even if chunks overlap. Rows that do not belong together are refused."""
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
            ((row["prior"], row["split"]), "fingerprint", "images"),
        ):
            if seen.setdefault((kind, *what), row[version]) != row[version]:
                raise InputError(
                    f"{' '.join(what)} was measured with different {kind} here; move one of the two elsewhere"
                )
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        unique[tuple(row[k] for k in ("prior", "task", "split", "method", "lam", "image"))] = row
    return list(unique.values())


def short_name(prior: str) -> str:
    """As the paper calls it."""
    return prior.removeprefix("celeba64-")


def aggregate(rows: Iterable[dict[str, Any]]) -> dict[Key, Number]:
    """Mean, standard error and median over images. Images whose loss is not finite are left out, and not counted.

    Methods that have no lam have no loss, only a PSNR.
    """
    values: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        failed = row["lam"] != LAM_UNUSED and not math.isfinite(row["loss"])
        for metric, column in zip(METRICS, ("loss", "psnr"), strict=True):
            if not failed and math.isfinite(row[column]):
                prior = short_name(row["prior"])
                values[Key(metric, row["task"], prior, row["split"], row["lam"], row["method"])].append(row[column])
    return {key: _number(found) for key, found in values.items()}


def _number(values: list[float]) -> Number:
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Number(statistics.fmean(values), se, len(values), statistics.median(values))


def rows_with_lam(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those of methods that have no lam."""
    return [row for row in rows if row["lam"] != LAM_UNUSED]


def on_shared_images(rows: list[dict[str, Any]], within: Sequence[str] = COMBINATION) -> list[dict[str, Any]]:
    """Only the rows of images that every prior, method and lam has solved, among rows with equal columns `within`.

    So that means are over the same images.
    """
    solved: dict[tuple[Any, ...], dict[tuple[Any, ...], set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        images = solved[tuple(row[name] for name in within)][row["prior"], row["method"], row["lam"]]
        if row["lam"] == LAM_UNUSED or math.isfinite(row["loss"]):
            images.add(row["image"])
    shared = {group: set.intersection(*by_solve.values()) for group, by_solve in solved.items()}
    return [row for row in rows if row["image"] in shared[tuple(row[name] for name in within)]]


def paper_numbers() -> dict[Key, Number]:
    """The 640 numbers of the paper's tables."""
    with (Path(__file__).parent / "paper.csv").open(newline="") as file:
        return {
            Key(r["metric"], r["task"], r["prior"], r["split"], float(r["lam"]), r["method"]): Number(
                float(r["mean"]), float(r["se"])
            )
            for r in csv.DictReader(file)
        }


def combinations(numbers: dict[Key, Number]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Task, prior, split and the methods with lam that were measured there, in the order of the protocols."""
    found = {(key.task, key.prior, key.split) for key in numbers}
    tasks, splits = list(EXPERIMENTS), list(SPLITS)
    for task, prior, split in sorted(found, key=lambda f: (tasks.index(f[0]), f[1], splits.index(f[2]))):
        here = {key.method for key in numbers if (key.task, key.prior, key.split) == (task, prior, split)}
        yield task, prior, split, [name for name, method in METHODS.items() if name in here and method.uses_lam]


def best_lam(numbers: dict[Key, Number]) -> dict[tuple[str, str, str], dict[str, tuple[float, float]]]:
    """By task, prior and split, and by method: the highest mean PSNR, and its lam."""
    found: dict[tuple[str, str, str], dict[str, tuple[float, float]]] = {}
    for task, prior, split, methods in combinations(numbers):
        for name in methods:
            over_lam = [
                (n.mean, k.lam)
                for k, n in numbers.items()
                if (k.metric, k.task, k.prior, k.split, k.method) == ("psnr", task, prior, split, name)
            ]
            if over_lam:
                found.setdefault((task, prior, split), {})[name] = max(over_lam)
    return found
