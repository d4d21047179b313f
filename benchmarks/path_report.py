"""The page docs/path-results.md and its figure, from what path.py, choose.py and solvers.py left in results/.

python benchmarks/path_report.py [--figure docs/path.png] > docs/path-results.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from results import RESULTS, load_runs

from aipo.choose import EVALS

INTRODUCTION = """\
# Results of the path solver and of the rules for lam

This page has the numbers behind two questions: how close does `follow_path` come to the minimum, and how good a lam
does each rule find? [method.md](method.md) explains both.

`python benchmarks/path_report.py` prints this page from `results/path.json`, `results/choose.json` and
`results/operators.json`. `benchmarks/path.py PRIOR TASK --precision fast`, `benchmarks/choose.py PRIOR --precision
fast` and `benchmarks/solvers.py --operators` wrote those files. All losses are exact float32.

What came out:
"""
NAMES = """
How to read the tables:

- `path, 120` is `follow_path` with 120 evaluations for all five lam. `W = 1` leaves out the part of its Hessian model
  that it learns on the way, `plain L-BFGS` leaves out the whole model.
- `Adam, 5 x 250` is five separate solves with a decayed step, from the same start.
- Algorithm 2 is the printed version, `Amortized(decay="round")`. We ran it here with the RealNVP in three tasks; the
  [benchmark](benchmark.md) has it in all of them.
- The oracle takes the best lam of the same path, which needs the truth.
- Paths were measured with RealNVP and Glow, rules with all four priors.
"""
TASKS = {"denoise": "denoise", "inpaint": "inpaint", "ncs2000": "NCS m=2000", "ncs4000": "NCS m=4000"}
ADAM = "Adam, 5 x 250"
ALGORITHM_2 = "Algorithm 2, once per lam"
BUDGETS = ("30", "60", "120", "400")
RULES = {"discrepancy": ", the default", "sure": "", "held-out": "", "l-curve": "", "chi2=1": ", the textbook's"}


def load(kind: str) -> list[dict[str, Any]]:
    order = list(TASKS)
    return sorted(
        load_runs(RESULTS / f"{kind}.json").values(),
        key=lambda r: (r["prior"], order.index(r["task"]) if "task" in r else 0),
    )


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def nats(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def summary(paths: list[dict[str, Any]], rules: list[dict[str, Any]], operators: dict[str, Any]) -> None:
    """The findings, as a list."""
    for evaluations in (300, 120):
        won, total = cells_won(paths, f"path, {evaluations}")
        print(f"- `follow_path` with {evaluations} evaluations for five lam ends at or below five decayed Adam solves")
        print(f"  with 1,250 in {won} of {total} cells.")
    apart = [by for report in paths for by in above_path(report)]
    above = f"{sum(by > 0 for by in apart)} of {len(apart)}"
    print("- Algorithm 2 as printed, run once per lam with the RealNVP in three tasks, ends above one path of 70")
    print(f"  evaluations in {above} cells, by {min(apart):,.0f} to {max(apart):,.0f} nats.")
    won, total = comparisons_won(paths)
    print(f"- At one lam and with equal evaluations, `follow_path` has the lowest mean gap of four methods in {won} of")
    print(f"  {total} comparisons.")
    differences = [mean(entry["local"]) - mean(entry["none"]) for entry in operators["rows"]]
    lower = f"{sum(by < 0 for by in differences)} of {len(differences)}"
    print(f"- With the model of the Hessian {operators['evals']} evaluations end lower than without it for {lower}")
    print(f"  pairs of a prior and an operator. At worst they end {max(differences):.0f} nats higher.")
    print("\nPSNR that each rule loses against the best lam of the same path: the smallest and the largest mean of all")
    print("priors and tasks, and the worst image. This is for CelebA faces, four tasks and a known sigma:\n")
    for rule, about in RULES.items():
        entries = [task[rule] for report in rules for task in report["tasks"].values()]
        lost, worst = [entry["lost"] for entry in entries], max(entry["lost_max"] for entry in entries)
        print(f"- `{rule}`{about}: {min(lost):.2f} to {max(lost):.2f} dB; the worst image {worst:.2f} dB")


def gap_tables(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        hardware = f"{report['count']} {report['images']} images, {report['hardware']}, torch {report['torch']}"
        print(f"\n**{report['prior']}, {TASKS[report['task']]}** ({hardware}, {report['date']})\n")
        print(row("method", "evaluations", *(f"lam {lam}" for lam in report["lambdas"])))
        print(row(*["---"] * (2 + len(report["lambdas"]))))
        for part in ("paths", "paper"):
            for name, entry in report.get(part, {}).items():
                images = f", {entry['count']} images" if entry["count"] != report["count"] else ""
                print(row(name + images, f"{entry['evaluations']:.0f}", *map(nats, entry["gap"])))


def cells_won(reports: list[dict[str, Any]], name: str) -> tuple[int, int]:
    """In how many cells a path is at least as low as five Adam solves, and of how many."""
    won = total = 0
    for report in reports:
        pairs = zip(report["paths"][name]["loss"], report["paths"][ADAM]["loss"], strict=True)
        outcomes = [path <= adam for path, adam in pairs]
        won, total = won + sum(outcomes), total + len(outcomes)
    return won, total


def comparisons_won(reports: list[dict[str, Any]]) -> tuple[int, int]:
    """How often the path solver has the lowest gap at one lam and a number of evaluations, and of how many times."""
    outcomes = [
        traces["follow_path"][budget] == min(trace[budget] for trace in traces.values() if budget in trace)
        for report in reports
        for traces in report.get("single", {}).get("gaps", {}).values()
        for budget in BUDGETS
    ]
    return sum(outcomes), len(outcomes)


def above_path(report: dict[str, Any]) -> list[float]:
    """By how much Algorithm 2, run once per lam, ends above one path of 70 evaluations, at each lam."""
    part = report.get("paper")
    if not part:
        return []
    ours = part.get("path, 70", report["paths"]["path, 70"])
    return [a - b for a, b in zip(part[ALGORITHM_2]["loss"], ours["loss"], strict=True)]


def paper_table(reports: list[dict[str, Any]]) -> None:
    """By how much Algorithm 2, run once per lam, ends above one path of 70 evaluations."""
    print("\n" + row("prior, task (images)", "evaluations", *(f"lam {lam}" for lam in reports[0]["lambdas"])))
    print(row(*["---"] * (2 + len(reports[0]["lambdas"]))))
    for report in reports:
        part = report.get("paper")
        if part:
            theirs = part[ALGORITHM_2]
            ours = part.get("path, 70", report["paths"]["path, 70"])
            where = f"{report['prior']}, {TASKS[report['task']]} ({theirs['count']})"
            evaluations = f"{theirs['evaluations']:.0f} and {ours['evaluations']:.0f}"
            print(row(where, evaluations, *(f"{by:+.0f}" for by in above_path(report))))


def single_table(reports: list[dict[str, Any]]) -> None:
    print("\n" + row("prior, task, lam", "method", *BUDGETS))
    print(row(*["---"] * (2 + len(BUDGETS))))
    for report in reports:
        for lam, traces in report.get("single", {}).get("gaps", {}).items():
            for method, trace in traces.items():
                where = f"{report['prior']}, {TASKS[report['task']]}, {lam}"
                print(row(where, method, *(nats(trace[b]) if b in trace else "-" for b in BUDGETS)))


def rule_table(reports: list[dict[str, Any]]) -> None:
    print("\n" + row("prior, task", "oracle, dB", "rule", "PSNR, dB", "lost, dB", "worst image", "median lam"))
    print(row(*["---"] * 7))
    for report in reports:
        for task, rules in report["tasks"].items():
            for rule, entry in rules.items():
                print(
                    row(
                        f"{report['prior']}, {TASKS[task]} ({report['count']})",
                        f"{entry['oracle']:.2f}",
                        rule,
                        f"{entry['psnr']:.2f} ± {entry['psnr_se']:.2f}",
                        f"{entry['lost']:.2f}",
                        f"{entry['lost_max']:.2f}",
                        f"{entry['lam']:.2f}",
                    )
                )


def operator_table(report: dict[str, Any]) -> None:
    print(
        f"\nMean loss of two images after {report['evals']} evaluations at lam {report['lam']} "
        f"(`benchmarks/solvers.py --operators`, two CPU cores, torch {report['torch']}, {report['date']}).\n"
    )
    print(row("prior", "operator", "plain L-BFGS", "FollowPath", "difference"))
    print(row(*["---"] * 5))
    for entry in report["rows"]:
        plain, path = mean(entry["none"]), mean(entry["local"])
        print(row(entry["prior"], entry["operator"], f"{plain:.1f}", f"{path:.1f}", f"{path - plain:+.1f}"))


def figure(reports: list[dict[str, Any]], file: Path) -> None:
    import matplotlib.pyplot as plt

    shown = [(r, lam) for r in reports for lam in r.get("single", {}).get("gaps", {})]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, (report, lam) in zip(axes.flat, shown, strict=False):
        for method, trace in report["single"]["gaps"][lam].items():
            evals = sorted(map(int, trace))
            gaps = [max(trace[str(n)], 0.1) for n in evals]
            axis.loglog(evals, gaps, "o--" if method == "Adam" else "-", label=method, markersize=4)
        axis.set_title(f"{report['prior']}, {TASKS[report['task']]}, lam {lam}", fontsize=9)
        axis.set_xlabel("gradient evaluations")
        axis.set_ylabel("mean gap, nats")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    plt.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    paths = load("path")
    # On the test images, with the sigma of each task and the default number of evaluations.
    rules = [
        run for run in load("choose") if (run["images"], run["evaluations"]) == ("test", EVALS) and not run["sigma"]
    ]
    operators = json.loads((RESULTS / "operators.json").read_text())
    print(INTRODUCTION)
    summary(paths, rules, operators)
    print(NAMES)
    print("## Mean loss above the best known minimum, in nats")
    gap_tables(paths)
    for name in ("path, 120", "path, 300"):
        won, total = cells_won(paths, name)
        print(f"\n`{name}`: a mean loss at most that of {ADAM} in {won} of {total} cells.")
    print("\n## The paper's Algorithm 2, once per lam, minus one path of 70 evaluations: mean loss in nats")
    paper_table(paths)
    print("\n## One lam: mean gap in nats after so many evaluations")
    single_table(paths)
    print("\n## Rules for lam, against the best lam of the same path")
    rule_table(rules)
    print("\n## Every linear operator and prior: does the model of the Hessian ever hurt?")
    operator_table(operators)
    if args.figure:
        figure(paths, args.figure)


if __name__ == "__main__":
    main()
