"""Tables of means over images, and how they are written as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

from aipo.evaluation.analysis.cells import (
    SAME_IMAGES,
    Key,
    Number,
    aggregate,
    best_lam,
    combinations,
    on_shared_images,
    paper_numbers,
    rows_with_lam,
    short_name,
)
from aipo.evaluation.methods import LAM_UNUSED, METHODS
from aipo.report.html import Marked

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
    """For each task, prior and split the highest mean PSNR of each method, and the lam where it is."""
    found = best_lam(numbers)
    methods = [name for name in METHODS if any(name in here for here in found.values())]
    body = []
    for where, here in found.items():
        highest = max(best for best, _ in here.values())
        cells = [f"{here[name][0]:.2f} (lam {here[name][1]:g})" if name in here else "-" for name in methods]
        marked = [name in here and here[name][0] == highest for name in methods]
        cells = [Marked(cell) if mark else cell for cell, mark in zip(cells, marked, strict=True)]
        body.append([", ".join(where), images[where], *cells])
    return ["where", "images", *methods], body


def references(rows: list[dict[str, Any]]) -> Table:
    """The methods without lam, and so without a prior, beside the best mean over lam and methods with each prior.

    Only priors that were measured on the same images are compared: each prior draws faces of its own.
    """
    rows = on_shared_images(rows, SAME_IMAGES)
    numbers = aggregate(rows)
    best = {where: max(quality for quality, _ in here.values()) for where, here in best_lam(numbers).items()}
    priors = sorted({prior for _, prior, _ in best})
    image_set = {(short_name(row["prior"]), row["split"]): row["fingerprint"] for row in rows}
    body: dict[tuple[str, ...], list[str]] = {}
    for (task, prior, split, _), name in product(combinations(numbers), METHODS):
        key = Key("psnr", task, prior, split, LAM_UNUSED, name)
        if key not in numbers:
            continue
        shown = image_set[prior, split]
        same = [other for other in priors if image_set.get((other, split)) == shown and (task, other, split) in best]
        qualities = {other: best[task, other, split] for other in same}
        highest = max([numbers[key].mean, *qualities.values()])
        cells = [(numbers[key].mean, numbers[key].text(2))]
        cells += [(qualities[p], f"{qualities[p]:.2f}") if p in qualities else (math.nan, "-") for p in priors]
        marked = [Marked(text) if quality == highest else text for quality, text in cells]
        where = [f"{task}, {split}", f"{numbers[key].count}"]
        body[task, split, shown, name] = [*where, METHODS[name].title, *marked]
    return ["where", "images", "method", "PSNR, dB", *(f"best with {prior}" for prior in priors)], list(body.values())


def images_of(numbers: dict[Key, Number], rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], str]:
    """How many images a table is over, by task, prior and split; "2 of 3" if some methods have solved more."""
    shown = {(key.task, key.prior, key.split): number.count for key, number in numbers.items() if key.lam != LAM_UNUSED}
    measured: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for row in rows_with_lam(rows):
        measured[row["task"], short_name(row["prior"]), row["split"]].add(row["image"])
    total = {where: len(images) for where, images in measured.items()}
    return {where: f"{n}" if n == total[where] else f"{n} of {total[where]}" for where, n in shown.items()}


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
