"""Verdicts, tables and figures from a folder of results, as Markdown, LaTeX, CSV, PNG and one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aipo.bench.cells import METRICS, Key, Number, aggregate, alike, knowing_lam, one_setup, places, short_name
from aipo.bench.figures import compare, draw_comparison, draw_curves, draw_traces, png
from aipo.bench.methods import METHODS, NO_LAM
from aipo.bench.protocol import TASKS
from aipo.bench.store import IDENTITY, Store
from aipo.bench.tables import (
    Table,
    best_over_lam,
    images_of,
    references,
    rows_of,
    to_csv,
    to_latex,
    to_markdown,
)
from aipo.bench.verdicts import verdicts
from aipo.files import write_atomically
from aipo.report import Section, write_report

__all__ = ["write_summary"]


def write_summary(folder: Path, setup: str | None = None, beside_paper: bool = True) -> list[Path]:
    """Write tables.md, tables.tex, tables.csv, figures and report.html beside the results.

    The paper's numbers are of CelebA's test images: beside those of other pictures they say little.
    """
    rows = one_setup(Store(folder).read_all(), setup)
    numbers = aggregate([*alike(knowing_lam(rows)), *(row for row in rows if row["lam"] == NO_LAM)])
    findings = verdicts(rows)
    tables = _tables(numbers, rows, beside_paper)
    brackets = "; the paper's numbers in brackets" if beside_paper else ""
    present = {key.method for key in numbers}
    columns = [[name, method.title] for name, method in METHODS.items() if name in present]
    what = "Mean and standard error over the images that all methods of a table have, the best of each row in bold"
    intro = f"{what}{brackets}."
    markdown = ["# Results\n", f"{intro} {'; '.join(f'{name}: {title}' for name, title in columns)}.\n"]
    markdown += [*(f"- {line}" for line in findings), ""]
    markdown += [f"## {caption}\n\n{to_markdown(*table)}" for caption, table in tables.items()]
    files = {
        "tables.md": "\n".join(markdown).encode(),
        "tables.tex": "\n".join(to_latex(*table, caption) for caption, table in tables.items()).encode(),
        "tables.csv": to_csv(numbers).encode(),
    }
    sections = [
        Section("What comes out, counted", points=findings),
        Section("The methods", table=(["column", "method"], columns)),
    ]
    for name, heading, caption, content in _figures(Store(folder), numbers, rows):
        files[name] = content
        sections.append(Section(heading, chart=(caption, content)))
    sections += [Section(caption, table=table) for caption, table in tables.items()]
    for name, content in files.items():
        write_atomically(folder / name, content)
    page = folder / "report.html"
    write_report(page, "AIPO benchmark", intro, sections, _settings(rows))
    return [*(folder / name for name in files), page]


def _tables(numbers: dict[Key, Number], rows: list[dict[str, Any]], beside_paper: bool) -> dict[str, Table]:
    """By caption."""
    images = images_of(numbers, rows)
    tables = {"At the best lam of each method: PSNR, dB": best_over_lam(numbers, images)}
    for task, prior, split, methods in places(numbers):
        for metric, title in METRICS.items() if methods else ():
            count = images[task, prior, split]
            counted = f"{count} image" if count == "1" else f"{count} images"
            caption = f"{TASKS[task].title}; {prior}; {split}, {counted}; {title}"
            tables[caption] = rows_of(numbers, metric, task, prior, split, methods, beside_paper)
    tables["Without a learnt prior: PSNR, dB"] = references(rows)
    return {caption: (header, body) for caption, (header, body) in tables.items() if body}


def _figures(
    store: Store, numbers: dict[Key, Number], rows: list[dict[str, Any]]
) -> Iterator[tuple[str, str, str, bytes]]:
    """The name of the file, a heading, a caption and the drawing."""
    solved = {tuple(row[name] for name in IDENTITY) for row in rows}
    traces = [t for t in store.read_traces(rows[0]["setup"]) if tuple(t[name] for name in IDENTITY) in solved]
    for prior in sorted({key.prior for key in numbers if key.lam != NO_LAM}):
        drawn = png(draw_curves(numbers, prior), few_colours=True)
        yield f"curves-{prior}.png", f"Mean loss and PSNR against lam; {prior}", "By task and split", drawn
        traces_of_prior = [trace for trace in traces if short_name(trace["prior"]) == prior]
        if traces_of_prior:
            rows_of_prior = [row for row in rows if short_name(row["prior"]) == prior]
            drawn = png(draw_traces(traces_of_prior, rows_of_prior), few_colours=True)
            yield f"traces-{prior}.png", f"Mean loss against evaluations; {prior}", "Of the first images", drawn
    for comparison in compare(store, rows):
        caption = f"Restored at lam = {comparison.lam:g}, where the median of all is best; below, the PSNR of each."
        yield f"{comparison.name}.png", comparison.title, caption, png(draw_comparison(comparison))


def _settings(rows: list[dict[str, Any]]) -> dict[str, object]:
    names = ("setup", "precision", "seed", "device", "torch", "aipo", "commit", "date")
    return {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in names}
