"""Findings, tables and figures from a folder of results, as Markdown, LaTeX, CSV, PNG and one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aipo.evaluation.analysis.cells import (
    METRICS,
    Key,
    Number,
    aggregate,
    combinations,
    on_shared_images,
    one_setup,
    rows_with_lam,
    short_name,
)
from aipo.evaluation.analysis.figures import comparisons, draw_comparison, draw_curves, draw_traces, png
from aipo.evaluation.analysis.tables import (
    Table,
    best_over_lam,
    images_of,
    references,
    rows_of,
    to_csv,
    to_latex,
    to_markdown,
)
from aipo.evaluation.analysis.verdicts import verdicts
from aipo.evaluation.cell import file_safe
from aipo.evaluation.methods import LAM_UNUSED, METHODS
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.evaluation.store import IDENTITY, Store
from aipo.files import write_atomically
from aipo.report.html import Section, write_report

__all__ = ["Summary", "summarize", "write_summary"]


@dataclass(frozen=True)
class Summary:
    """What rows of one setup say: means over images, findings, and tables by their captions."""

    numbers: dict[Key, Number]
    findings: list[str]
    tables: dict[str, Table]
    intro: str

    @property
    def methods(self) -> list[list[str]]:
        """Name and title of each method that was measured."""
        measured = {key.method for key in self.numbers}
        return [[name, method.title] for name, method in METHODS.items() if name in measured]

    def markdown(self) -> str:
        lines = ["# Results\n", f"{self.intro} {'; '.join(f'{name}: {title}' for name, title in self.methods)}.\n"]
        lines += [*(f"- {line}" for line in self.findings), ""]
        lines += [f"## {caption}\n\n{to_markdown(*table)}" for caption, table in self.tables.items()]
        return "\n".join(lines)

    def latex(self) -> str:
        return "\n".join(to_latex(*table, caption) for caption, table in self.tables.items())


def summarize(rows: list[dict[str, Any]], beside_paper: bool = True) -> Summary:
    """A summary of rows of one setup; with the paper's numbers in brackets if `beside_paper`.

    The paper's numbers are of CelebA's test images: beside those of other images they say little.
    """
    without_lam = [row for row in rows if row["lam"] == LAM_UNUSED]
    numbers = aggregate([*on_shared_images(rows_with_lam(rows)), *without_lam])
    intro = "Mean and standard error over the images that all methods of a table have, the best of each row in bold"
    intro += "; the paper's numbers in brackets." if beside_paper else "."
    return Summary(numbers, verdicts(rows), _tables(numbers, rows, beside_paper), intro)


def write_summary(folder: Path, setup: str | None = None, beside_paper: bool = True) -> list[Path]:
    """Write tables.md, tables.tex, tables.csv, figures and report.html beside the results, and return their paths."""
    store = Store(folder)
    rows = one_setup(store.read_all(for_report=True), setup)
    summary = summarize(rows, beside_paper)
    files = {
        "tables.md": summary.markdown().encode(),
        "tables.tex": summary.latex().encode(),
        "tables.csv": to_csv(summary.numbers).encode(),
    }
    sections = [
        Section("Findings", points=summary.findings),
        Section("Methods", table=(["column", "method"], summary.methods)),
    ]
    for name, heading, caption, content in _figures(store, summary.numbers, rows):
        files[name] = content
        sections.append(Section(heading, chart=(caption, content)))
    sections += [Section(caption, table=table) for caption, table in summary.tables.items()]
    for name, content in files.items():
        write_atomically(folder / name, content)
    page = folder / "report.html"
    write_report(page, "AIPO benchmark", summary.intro, sections, _settings(rows))
    return [*(folder / name for name in files), page]


def _tables(numbers: dict[Key, Number], rows: list[dict[str, Any]], beside_paper: bool) -> dict[str, Table]:
    """By caption."""
    images = images_of(numbers, rows)
    tables = {"At the best lam of each method: PSNR, dB": best_over_lam(numbers, images)}
    for task, prior, split, methods in combinations(numbers):
        for metric, title in METRICS.items() if methods else ():
            count = images[task, prior, split]
            counted = f"{count} image" if count == "1" else f"{count} images"
            caption = f"{EXPERIMENTS[task].title}; {prior}; {split}, {counted}; {title}"
            tables[caption] = rows_of(numbers, metric, task, prior, split, methods, beside_paper)
    tables["Without a learned prior: PSNR, dB"] = references(rows)
    return {caption: (header, body) for caption, (header, body) in tables.items() if body}


def _figures(
    store: Store, numbers: dict[Key, Number], rows: list[dict[str, Any]]
) -> Iterator[tuple[str, str, str, bytes]]:
    """The name of the file, a heading, a caption and the drawing."""
    solved = {tuple(row[name] for name in IDENTITY) for row in rows}
    kept = store.read_traces(rows[0]["setup"], for_report=True)
    traces = [trace for trace in kept if tuple(trace[name] for name in IDENTITY) in solved]
    for prior in sorted({key.prior for key in numbers if key.lam != LAM_UNUSED}):
        drawn = png(draw_curves(numbers, prior), few_colors=True)
        yield f"curves-{file_safe(prior)}.png", f"Mean loss and PSNR against lam; {prior}", "By task and split", drawn
        traces_of_prior = [trace for trace in traces if short_name(trace["prior"]) == prior]
        if traces_of_prior:
            rows_of_prior = [row for row in rows if short_name(row["prior"]) == prior]
            drawn = png(draw_traces(traces_of_prior, rows_of_prior), few_colors=True)
            yield (
                f"traces-{file_safe(prior)}.png",
                f"Mean loss against evaluations; {prior}",
                "Of the first images",
                drawn,
            )
    for comparison in comparisons(store, rows):
        caption = f"Restored at lam = {comparison.lam:g}, where the median over all is best; below, the PSNR of each."
        yield f"{comparison.name}.png", comparison.title, caption, png(draw_comparison(comparison))


def _settings(rows: list[dict[str, Any]]) -> dict[str, object]:
    names = ("setup", "precision", "seed", "device", "torch", "aipo", "commit", "date")
    return {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in names}
