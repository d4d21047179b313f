"""Tables of the numbers of cells, and how they are written as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

from aipo.bench.cells import (
    SAME_PICTURES,
    Key,
    Number,
    aggregate,
    alike,
    best_lam,
    knowing_lam,
    paper_numbers,
    places,
    short_name,
)
from aipo.bench.methods import METHODS, NO_LAM
from aipo.report import Marked

__all__ = ["Table", "best_over_lam", "images_of", "references", "rows_of", "to_csv", "to_latex", "to_markdown"]

Table = tuple[list[str], list[list[str]]]  # its header and its body


def rows_of(
    numbers: dict[Key, Number], metric: str, task: str, prior: str, split: str, methods: Iterable[str], beside: bool
) -> Table:
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


def best_over_lam(numbers: dict[Key, Number], images: dict[tuple[str, str, str], str]) -> Table:
    """For each task, prior and split the highest mean PSNR of each method, and the lam where it has it."""
    found = best_lam(numbers)
    methods = [name for name in METHODS if any(name in here for here in found.values())]
    body = []
    for place, here in found.items():
        highest = max(best for best, _ in here.values())
        cells = [f"{here[name][0]:.2f} (lam {here[name][1]:g})" if name in here else "-" for name in methods]
        marked = [name in here and here[name][0] == highest for name in methods]
        cells = [Marked(cell) if mark else cell for cell, mark in zip(cells, marked, strict=True)]
        body.append([", ".join(place), images[place], *cells])
    return ["where", "images", *methods], body


def references(rows: list[dict[str, Any]]) -> Table:
    """The methods that know no lam, and thus no prior, beside the best mean over lam and methods with each prior.

    Only priors that met the same pictures are compared: faces drawn from a prior are its own.
    """
    rows = alike(rows, SAME_PICTURES)
    numbers = aggregate(rows)
    best = {place: max(quality for quality, _ in here.values()) for place, here in best_lam(numbers).items()}
    priors = sorted({prior for _, prior, _ in best})
    pictures = {(short_name(row["prior"]), row["split"]): row["fingerprint"] for row in rows}
    body: dict[tuple[str, ...], list[str]] = {}
    for (task, prior, split, _), name in product(places(numbers), METHODS):
        key = Key("psnr", task, prior, split, NO_LAM, name)
        if key not in numbers:
            continue
        shown = pictures[prior, split]
        same = [other for other in priors if pictures.get((other, split)) == shown and (task, other, split) in best]
        qualities = {other: best[task, other, split] for other in same}
        highest = max([numbers[key].mean, *qualities.values()])
        cells = [(numbers[key].mean, numbers[key].text(2))]
        cells += [(qualities[p], f"{qualities[p]:.2f}") if p in qualities else (math.nan, "-") for p in priors]
        marked = [Marked(text) if quality == highest else text for quality, text in cells]
        where = [f"{task}, {split}", f"{numbers[key].count}"]
        body[task, split, shown, name] = [*where, METHODS[name].title, *marked]
    return ["where", "images", "method", "PSNR, dB", *(f"best with {prior}" for prior in priors)], list(body.values())


def images_of(numbers: dict[Key, Number], rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], str]:
    """How many, by task, prior and split; before a run is at its end, some methods have more of them."""
    shown = {(key.task, key.prior, key.split): number.count for key, number in numbers.items() if key.lam != NO_LAM}
    measured: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for row in knowing_lam(rows):
        measured[row["task"], short_name(row["prior"]), row["split"]].add(row["image"])
    total = {place: len(images) for place, images in measured.items()}
    return {place: f"{n}" if n == total[place] else f"{n} of {total[place]}" for place, n in shown.items()}


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
