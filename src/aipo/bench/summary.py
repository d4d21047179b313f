"""Verdicts, tables and figures from a folder of results, as Markdown, LaTeX, CSV, PNG and one self-contained page."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from aipo.bench.figures import PATHS, compare, draw_comparison, draw_curves, draw_traces, png
from aipo.bench.methods import BUDGET, METHODS, NO_LAM
from aipo.bench.protocol import PROTOCOLS, TASKS, Protocol
from aipo.bench.store import IDENTITY, Store
from aipo.bench.tables import (
    METRICS,
    Key,
    Number,
    aggregate,
    one_setup,
    places,
    rows_of,
    short_name,
    to_csv,
    to_latex,
    to_markdown,
)
from aipo.files import write_atomically
from aipo.report import Marked, Section, write_report

__all__ = ["verdicts", "write_summary"]

READINGS = ("aipo", BUDGET)
CONSTANT_STEPS = ("mle_init", "random_init", "zero_init")
TUNED = ("adam_mle", "adam_random", "adam_zero", "lbfgs")
MOST_NAMED = 8
BLOWN_UP = 100_000  # such a loss is far from that of any picture

PLACE = ("task", "prior", "split")
SAME_PICTURES = ("task", "split", "fingerprint")

Table = tuple[list[str], list[list[str]]]
Cell = tuple[str, str, str, float]  # task, prior, split, lam
Values = dict[Cell, dict[str, float]]  # by method


def write_summary(folder: Path, setup: str | None = None, beside_paper: bool = True) -> list[Path]:
    """Write tables.md, tables.tex, tables.csv, figures and report.html beside the results.

    The paper's numbers are of CelebA's test images: beside those of other pictures they say little.
    """
    rows = one_setup(Store(folder).read_all(), setup)
    numbers = aggregate([*alike(_knowing_lam(rows)), *(row for row in rows if row["lam"] == NO_LAM)])
    findings = verdicts(rows)
    tables = _tables(numbers, rows, beside_paper)
    brackets = "; the paper's numbers in brackets" if beside_paper else ""
    present = {key.method for key in numbers}
    columns = "; ".join(f"{name}: {method.title}" for name, method in METHODS.items() if name in present)
    what = "Mean and standard error over the images that all methods of a table have, the best of each row in bold"
    intro = f"{what}{brackets}. {columns}."
    markdown = ["# Results\n", f"{intro}\n"]
    markdown += [*(f"- {line}" for line in findings), ""]
    markdown += [f"## {caption}\n\n{to_markdown(*table)}" for caption, table in tables.items()]
    files = {
        "tables.md": "\n".join(markdown).encode(),
        "tables.tex": "\n".join(to_latex(*table, caption) for caption, table in tables.items()).encode(),
        "tables.csv": to_csv(numbers).encode(),
    }
    sections = []
    for name, heading, caption, content in _figures(Store(folder), numbers, rows):
        files[name] = content
        sections.append(Section(heading, chart=(caption, content)))
    sections += [Section(caption, table=table) for caption, table in tables.items()]
    for name, content in files.items():
        write_atomically(folder / name, content)
    page = folder / "report.html"
    write_report(page, "AIPO benchmark", "\n\n".join([intro, *findings]), sections, _settings(rows))
    return [*(folder / name for name in files), page]


def _tables(numbers: dict[Key, Number], rows: list[dict[str, Any]], beside_paper: bool) -> dict[str, Table]:
    """By caption."""
    images = _images(numbers, rows)
    tables = {"At the best lam of each method: PSNR, dB": best_over_lam(numbers, images)}
    for task, prior, split, methods in places(numbers):
        for metric, title in METRICS.items() if methods else ():
            caption = f"{TASKS[task].title}; {prior}; {split}, {images[task, prior, split]} images; {title}"
            tables[caption] = rows_of(numbers, metric, task, prior, split, methods, beside_paper)
    tables["Without a learnt prior: PSNR, dB"] = references(rows)
    return {caption: (header, body) for caption, (header, body) in tables.items() if body}


def _images(numbers: dict[Key, Number], rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], str]:
    """How many, by task, prior and split; before a run is at its end, some methods have more of them."""
    shown = {(key.task, key.prior, key.split): number.count for key, number in numbers.items() if key.lam != NO_LAM}
    measured: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for row in _knowing_lam(rows):
        measured[row["task"], short_name(row["prior"]), row["split"]].add(row["image"])
    total = {place: len(images) for place, images in measured.items()}
    return {place: f"{n}" if n == total[place] else f"{n} of {total[place]}" for place, n in shown.items()}


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


def best_over_lam(numbers: dict[Key, Number], images: dict[tuple[str, str, str], str]) -> Table:
    """For each task, prior and split the highest mean PSNR of each method, and the lam where it has it."""
    found = _best_lam(numbers)
    methods = [name for name in METHODS if any(name in here for here in found.values())]
    body = []
    for place, here in found.items():
        highest = max(best for best, _ in here.values())
        cells = [f"{here[name][0]:.2f} (lam {here[name][1]:g})" if name in here else "-" for name in methods]
        marked = [name in here and here[name][0] == highest for name in methods]
        cells = [Marked(cell) if mark else cell for cell, mark in zip(cells, marked, strict=True)]
        body.append([", ".join(place), images[place], *cells])
    return ["where", "images", *methods], body


def _best_lam(numbers: dict[Key, Number]) -> dict[tuple[str, str, str], dict[str, tuple[float, float]]]:
    """By task, prior and split, and by method: the highest mean PSNR, and its lam."""
    found: dict[tuple[str, str, str], dict[str, tuple[float, float]]] = {}
    for task, prior, split, methods in places(numbers):
        for name in methods:
            over_lam = [
                (n.mean, k.lam)
                for k, n in numbers.items()
                if (k.metric, k.task, k.prior, k.split, k.method) == ("psnr", task, prior, split, name)
            ]
            if over_lam:
                found.setdefault((task, prior, split), {})[name] = max(over_lam)
    return found


def references(rows: list[dict[str, Any]]) -> Table:
    """The methods that know no lam, and thus no prior, beside the best mean over lam and methods with each prior.

    Only priors that met the same pictures are compared: faces drawn from a prior are its own.
    """
    rows = alike(rows, SAME_PICTURES)
    numbers = aggregate(rows)
    best = {place: max(quality for quality, _ in here.values()) for place, here in _best_lam(numbers).items()}
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


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """What of the paper's claim holds here, and what of it against tuned baselines and the path, counted.

    Each comparison is of the images that all of its methods have.
    """
    everyone = alike(_knowing_lam(rows))
    numbers = aggregate(everyone)
    means = _by_cell(numbers, "map_loss", "mean")
    with_path = alike([row for row in rows if row["method"] in (*READINGS, *PATHS)])
    constant = aggregate(alike([row for row in rows if row["method"] in (*READINGS, *CONSTANT_STEPS, "path")]))
    failed = Counter(METHODS[r["method"]].title for r in rows if r["status"] not in ("done", "max evaluations"))
    return [
        *_against_constant_steps(*(_by_cell(constant, "map_loss", statistic) for statistic in ("mean", "median"))),
        *_paths_against_aipo(_by_cell(aggregate(with_path), "map_loss", "mean"), with_path),
        *_against_tuned(means),
        *_lowest_of_all(means, _by_cell(numbers, "psnr", "mean")),
        *_best_pictures(numbers),
        *_starts(means),
        *_evaluations(everyone),
        *_blown_up(rows),
        f"Solves: {len(rows)}. Ended by a loss that is not finite, their last finite one is counted: {_tally(failed)}.",
    ]


def _knowing_lam(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["lam"] != NO_LAM]


def alike(rows: list[dict[str, Any]], place: Sequence[str] = PLACE) -> list[dict[str, Any]]:
    """The rows of images that everything measured in the same place has a result for, so that like meets like."""
    solved: dict[tuple[Any, ...], dict[tuple[Any, ...], set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        images = solved[tuple(row[name] for name in place)][row["prior"], row["method"], row["lam"]]
        if row["lam"] == NO_LAM or math.isfinite(row["loss"]):
            images.add(row["image"])
    shared = {where: set.intersection(*by_solve.values()) for where, by_solve in solved.items()}
    return [row for row in rows if row["image"] in shared[tuple(row[name] for name in place)]]


def _by_cell(numbers: dict[Key, Number], metric: str, statistic: str) -> Values:
    found: Values = defaultdict(dict)
    for key, number in numbers.items():
        if key.metric == metric and key.lam != NO_LAM:
            found[key.task, key.prior, key.split, key.lam][key.method] = getattr(number, statistic)
    return found


@dataclass(frozen=True)
class Contest:
    """The cells in which a method met others, and those in which its loss is lower than all of theirs."""

    met: list[Cell]
    won: list[Cell]

    def __str__(self) -> str:
        won, met = (Counter(prior for _, prior, *_ in cells) for cells in (self.won, self.met))
        by_prior = ", ".join(f"{prior} {won[prior]}/{met[prior]}" for prior in met)
        return f"{len(self.won)} of {len(self.met)} cells" + (f" ({by_prior})" if len(met) > 1 else "")


def _contest(losses: Values, name: str, others: Sequence[str]) -> Contest:
    met = [cell for cell, at in losses.items() if {name, *others} <= set(at)]
    return Contest(met, [cell for cell in met if losses[cell][name] < min(losses[cell][other] for other in others)])


def _against_constant_steps(means: Values, medians: Values) -> list[str]:
    lines, by_medians = [], []
    for name in (*READINGS, "path"):
        contest = _contest(means, name, CONSTANT_STEPS)
        if contest.met:
            title, lost = METHODS[name].title, [cell for cell in contest.met if cell not in contest.won]
            named = f" Not in {_named(lost)}." if name in READINGS and 0 < len(lost) <= MOST_NAMED else ""
            lines.append(f"{title} has a lower mean loss than all three constant steps in {contest}.{named}")
            by_medians.append(f"{title}: {_contest(medians, name, CONSTANT_STEPS)}")
    if lines:
        lines.append(f"The same by medians, since a few solves that blow up decide a mean. {'; '.join(by_medians)}.")
    return lines


def _paths_against_aipo(means: Values, rows: list[dict[str, Any]]) -> list[str]:
    paper = PROTOCOLS["paper"]
    papers_places = {(short_name(prior), split) for prior in paper.priors for split in paper.splits}
    papers_means = {cell: at for cell, at in means.items() if cell[1:3] in papers_places}
    papers_rows = [row for row in rows if (short_name(row["prior"]), row["split"]) in papers_places]
    lines = []
    for path in PATHS:
        for reading in READINGS:
            contest = _contest(means, path, [reading])
            if not contest.met:
                continue
            line = f"{METHODS[path].title} has a lower mean loss than {METHODS[reading].title} in {contest}, with "
            line += f"{_shares(rows, path, reading)} of the evaluations of its separate solves."
            within = _contest(papers_means, path, [reading])
            if within.met and within.met != contest.met:
                line += f" In the paper's cells: {within}, with {_shares(papers_rows, path, reading)}."
            lines.append(line)
    return lines


def _against_tuned(means: Values) -> list[str]:
    lines = []
    contest = _contest(means, "aipo", TUNED)
    if contest.met:
        lines.append(f"{METHODS['aipo'].title} has a lower mean loss than all four tuned baselines in {contest}.")
    singly = []
    for name in TUNED:
        contest = _contest(means, name, ["aipo"])
        if contest.met:
            above = statistics.median(means[cell][name] - means[cell]["aipo"] for cell in contest.met)
            singly.append(f"{METHODS[name].title}: {contest}, {above:+.0f} nats")
    if singly:
        what = (
            "Tuned baselines: cells with a lower mean loss than AIPO, and the median over cells of loss minus AIPO's."
        )
        lines.append(f"{what} {'; '.join(singly)}.")
    return lines


def _with_lam(protocol: Protocol) -> set[str]:
    """Its methods that know lam."""
    return {name for name in protocol.methods if METHODS[name].knows_lam}


def _lowest_of_all(means: Values, quality: Values) -> list[str]:
    everyone = _with_lam(PROTOCOLS["fair"])
    met = {cell: min(at, key=at.__getitem__) for cell, at in means.items() if everyone <= set(at)}
    if not met:
        return []
    lowest = Counter(METHODS[name].title for name in met.values())
    best = [cell for cell, name in met.items() if quality[cell][name] == max(quality[cell].values())]
    return [
        f"Lowest mean loss in {len(met)} cells with all of these methods. {_tally(lowest)}.",
        f"In {len(best)} of them the method with the lowest mean loss has the highest mean PSNR too.",
    ]


def _best_pictures(numbers: dict[Key, Number]) -> list[str]:
    met = [here for here in _best_lam(numbers).values() if any(_with_lam(p) <= set(here) for p in PROTOCOLS.values())]
    best = Counter(METHODS[max(here, key=here.__getitem__)].title for here in met)
    what = "Highest mean PSNR where a protocol's methods are all measured, each at its best lam, in so many of"
    return [f"{what} {len(met)} combinations of task, prior and split. {_tally(best)}."] if met else []


def _starts(means: Values) -> list[str]:
    """How little the start matters to a decayed step."""
    names = [name for name in TUNED if name.startswith("adam")]
    spread: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for (_, prior, _, lam), at in sorted(means.items()):
        if set(names) <= set(at):
            losses = [at[name] for name in names]
            spread[prior][lam] = max(spread[prior][lam], max(losses) - min(losses))
    found = (
        f"{prior}: " + ", ".join(f"{nats:.0f} at lam {lam:g}" for lam, nats in sorted(by_lam.items()))
        for prior, by_lam in spread.items()
    )
    what = "Mean losses of the decayed Adam's three starts are at most so many nats apart."
    return [f"{what} {'; '.join(found)}."] if spread else []


def _evaluations(rows: list[dict[str, Any]]) -> list[str]:
    spent = {name: [row["evals"] for row in rows if row["method"] == name] for name in READINGS}
    means = [f"{METHODS[name].title}: {statistics.fmean(evals):.0f}" for name, evals in spent.items() if evals]
    return [f"Mean evaluations for one image and lam. {'; '.join(means)}."] if means else []


def _blown_up(rows: list[dict[str, Any]]) -> list[str]:
    lost = [row for row in rows if row["loss"] > BLOWN_UP]
    if not lost:
        return []
    found, total = (
        Counter(f"{METHODS[row['method']].title}, {short_name(row['prior'])}" for row in some) for some in (lost, rows)
    )
    parts = "; ".join(f"{name}: {count} of {total[name]}" for name, count in found.most_common())
    quality = statistics.fmean(row["psnr"] for row in lost)
    return [f"Solves that end above {BLOWN_UP:,} nats, their mean PSNR is {quality:.1f} dB. {parts}."]


def _named(cells: list[Cell]) -> str:
    lambdas = defaultdict(list)
    for task, prior, split, lam in cells:
        lambdas[f"{task} {prior} {split}"].append(f"{lam:g}")
    return "; ".join(f"{place} at lam {', '.join(found)}" for place, found in lambdas.items())


def _tally(counts: Counter[str]) -> str:
    return "; ".join(f"{name}: {count}" for name, count in counts.most_common()) or "none"


def _shares(rows: list[dict[str, Any]], path: str, other: str) -> str:
    """Of evaluations for all lam together, a path's of those of separate solves: over task, prior and split."""
    mine: Counter[tuple[Any, ...]] = Counter()
    theirs: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        image = (row["task"], row["prior"], row["split"], row["image"])
        if row["method"] == path:
            # What was spent by the time a lam was done, so the most is what the whole path took.
            mine[image] = max(mine[image], row["evals"])
        elif row["method"] == other:
            theirs[image] += row["evals"]
    totals: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for image in mine.keys() & theirs.keys():
        totals[image[:3]].update(mine=mine[image], theirs=theirs[image])
    shares = [total["mine"] / total["theirs"] for total in totals.values()]
    return f"{min(shares):.1%} to {max(shares):.1%}"


def _settings(rows: list[dict[str, Any]]) -> dict[str, object]:
    names = ("setup", "precision", "seed", "device", "torch", "aipo", "commit", "date")
    return {name: ", ".join(sorted({str(row[name]) for row in rows})) for name in names}
