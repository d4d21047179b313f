"""What of the paper's claim holds, counted in cells: a cell is a task, a prior, a split and a lam."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aipo.evaluation.analysis.cells import Key, Number, aggregate, best_lam, on_shared_images, rows_with_lam, short_name
from aipo.evaluation.methods import BUDGET_METHOD, LAM_UNUSED, METHODS, PATHS
from aipo.evaluation.protocol import PROTOCOLS, Protocol

__all__ = ["verdicts"]

READINGS = ("aipo", BUDGET_METHOD)
CONSTANT_STEPS = ("mle_init", "random_init", "zero_init")
TUNED = ("adam_mle", "adam_random", "adam_zero", "lbfgs")
MOST_NAMED = 8
BLOWN_UP = 100_000  # nats; no image has a loss near this

TableCell = tuple[str, str, str, float]  # task, prior, split, lam
Values = dict[TableCell, dict[str, float]]  # by method


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """What holds of the paper's claim, against constant steps, tuned baselines and the path, counted in cells.

    Each comparison is over the images that all of its methods have solved.
    """
    everyone = on_shared_images(rows_with_lam(rows))
    numbers = aggregate(everyone)
    means = _by_cell(numbers, "map_loss", "mean")
    with_path = on_shared_images([row for row in rows if row["method"] in (*READINGS, *PATHS)])
    with_constant = [row for row in rows if row["method"] in (*READINGS, *CONSTANT_STEPS, "path")]
    constant = aggregate(on_shared_images(with_constant))
    failed = Counter(METHODS[r["method"]].title for r in rows if r["status"] not in ("done", "max evaluations"))
    return [
        *_against_constant_steps(*(_by_cell(constant, "map_loss", statistic) for statistic in ("mean", "median"))),
        *_paths_against_aipo(_by_cell(aggregate(with_path), "map_loss", "mean"), with_path),
        *_against_tuned(means),
        *_lowest_of_all(means, _by_cell(numbers, "psnr", "mean")),
        *_highest_psnr(numbers),
        *_starts(means),
        *_evaluations(everyone),
        *_blown_up(rows),
        f"Solves: {len(rows)}. Stopped by a loss that was not finite, and counted with the last finite one: "
        f"{_tally(failed)}.",
    ]


def _by_cell(numbers: dict[Key, Number], metric: str, statistic: str) -> Values:
    found: Values = defaultdict(dict)
    for key, number in numbers.items():
        if key.metric == metric and key.lam != LAM_UNUSED:
            found[key.task, key.prior, key.split, key.lam][key.method] = getattr(number, statistic)
    return found


@dataclass(frozen=True)
class Contest:
    """The cells that have a method and all its rivals, and those of them in which its loss is the lowest."""

    met: list[TableCell]
    won: list[TableCell]

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
        lines.append(f"The same by medians, because a few solves that blow up decide a mean. {'; '.join(by_medians)}.")
    return lines


def _paths_against_aipo(means: Values, rows: list[dict[str, Any]]) -> list[str]:
    paper = PROTOCOLS["paper"]
    papers_combinations = {(short_name(prior), split) for prior in paper.priors for split in paper.splits}
    papers_means = {cell: at for cell, at in means.items() if cell[1:3] in papers_combinations}
    papers_rows = [row for row in rows if (short_name(row["prior"]), row["split"]) in papers_combinations]
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


def _methods_with_lam(protocol: Protocol) -> set[str]:
    return {name for name in protocol.methods if METHODS[name].uses_lam}


def _lowest_of_all(means: Values, quality: Values) -> list[str]:
    everyone = _methods_with_lam(PROTOCOLS["fair"])
    met = {cell: min(at, key=at.__getitem__) for cell, at in means.items() if everyone <= set(at)}
    if not met:
        return []
    lowest = Counter(METHODS[name].title for name in met.values())
    best = [cell for cell, name in met.items() if quality[cell][name] == max(quality[cell].values())]
    return [
        f"Lowest mean loss, in {len(met)} cells that have all of these methods. {_tally(lowest)}.",
        f"In {len(best)} of them the method with the lowest mean loss also has the highest mean PSNR.",
    ]


def _highest_psnr(numbers: dict[Key, Number]) -> list[str]:
    met = [
        here
        for here in best_lam(numbers).values()
        if any(_methods_with_lam(p) <= set(here) for p in PROTOCOLS.values())
    ]
    best = Counter(METHODS[max(here, key=here.__getitem__)].title for here in met)
    where = f"in {len(met)} combinations of task, prior and split that have all methods of a protocol"
    return [f"Highest mean PSNR, each method at its best lam, {where}. {_tally(best)}."] if met else []


def _starts(means: Values) -> list[str]:
    """How little the start matters if the step decays."""
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
    what = "Largest difference, in nats, between the mean losses of the decayed Adam from its three starts."
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
    return [f"Solves that end above {BLOWN_UP:,} nats, at {quality:.1f} dB on average. {parts}."]


def _named(cells: list[TableCell]) -> str:
    lambdas = defaultdict(list)
    for task, prior, split, lam in cells:
        lambdas[f"{task} {prior} {split}"].append(f"{lam:g}")
    return "; ".join(f"{where} at lam {', '.join(found)}" for where, found in lambdas.items())


def _tally(counts: Counter[str]) -> str:
    return "; ".join(f"{name}: {count}" for name, count in counts.most_common()) or "none"


def _shares(rows: list[dict[str, Any]], path: str, other: str) -> str:
    """The evaluations of a path as a share of those of separate solves: the range over task, prior and split."""
    mine: Counter[tuple[Any, ...]] = Counter()
    theirs: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        image = (row["task"], row["prior"], row["split"], row["image"])
        if row["method"] == path:
            # A row has all that was spent until its lam was done, so the most is what the whole path took.
            mine[image] = max(mine[image], row["evals"])
        elif row["method"] == other:
            theirs[image] += row["evals"]
    totals: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for image in mine.keys() & theirs.keys():
        totals[image[:3]].update(mine=mine[image], theirs=theirs[image])
    shares = [total["mine"] / total["theirs"] for total in totals.values()]
    return f"{min(shares):.1%} to {max(shares):.1%}"
