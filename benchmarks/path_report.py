"""Tables and the figure of the path benchmarks, from the JSON files that path.py, choose.py and operators.py wrote.

    python benchmarks/path_report.py [--figure docs/path.png]

Prints Markdown; what it prints is in docs/path-results.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TASKS = {"denoise": "denoise", "inpaint": "inpaint", "ncs2000": "NCS m=2000", "ncs4000": "NCS m=4000"}
ADAM = "Adam, 5 x 250"


def load(kind: str) -> list[dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in sorted((RESULTS / kind).glob("*.json"))]
    order = list(TASKS)
    return sorted(found, key=lambda r: (r["prior"], order.index(r["task"]) if "task" in r else 0))


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def nats(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


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


def cells_won(reports: list[dict[str, Any]], name: str) -> None:
    """In how many cells a path is at least as low as five Adam solves."""
    won = total = 0
    for report in reports:
        pairs = zip(report["paths"][name]["loss"], report["paths"][ADAM]["loss"], strict=True)
        outcomes = [path <= adam for path, adam in pairs]
        won, total = won + sum(outcomes), total + len(outcomes)
    print(f"\n`{name}`: a mean loss at most that of {ADAM} in {won} of {total} cells.")


def paper_table(reports: list[dict[str, Any]]) -> None:
    """By how much Algorithm 2, run once per lam, ends above one path of 70 evaluations."""
    print("\n" + row("prior, task (images)", "evaluations", *(f"lam {lam}" for lam in reports[0]["lambdas"])))
    print(row(*["---"] * (2 + len(reports[0]["lambdas"]))))
    for report in reports:
        part = report.get("paper")
        if part:
            theirs = part["Algorithm 2, once per lam"]
            ours = part.get("path, 70", report["paths"]["path, 70"])
            apart = [a - b for a, b in zip(theirs["loss"], ours["loss"], strict=True)]
            where = f"{report['prior']}, {TASKS[report['task']]} ({theirs['count']})"
            print(
                row(where, f"{theirs['evaluations']:.0f} and {ours['evaluations']:.0f}", *(f"{v:+.0f}" for v in apart))
            )


def single_table(reports: list[dict[str, Any]]) -> None:
    budgets = ("30", "60", "120", "400")
    print("\n" + row("prior, task, lam", "method", *budgets))
    print(row(*["---"] * (2 + len(budgets))))
    for report in reports:
        for lam, traces in report.get("single", {}).get("gaps", {}).items():
            for method, trace in traces.items():
                where = f"{report['prior']}, {TASKS[report['task']]}, {lam}"
                print(row(where, method, *(nats(trace[b]) if b in trace else "-" for b in budgets)))


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
        f"\nMean loss of two pictures after {report['evals']} evaluations at lam {report['lam']} "
        f"(`benchmarks/operators.py`, two CPU cores, torch {report['torch']}, {report['date']}).\n"
    )
    print(row("prior", "operator", "plain L-BFGS", "FollowPath", "difference"))
    print(row(*["---"] * 5))
    for entry in report["rows"]:
        plain, path = (sum(entry[model]) / len(entry[model]) for model in ("none", "local"))
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
    paths, rules = load("path"), load("choose")
    print("## Mean loss above the best known minimum, in nats")
    gap_tables(paths)
    for name in ("path, 120", "path, 300"):
        cells_won(paths, name)
    print("\n## The paper's Algorithm 2, once per lam, minus one path of 70 evaluations: mean loss in nats")
    paper_table(paths)
    print("\n## One lam: mean gap in nats after so many evaluations")
    single_table(paths)
    print("\n## Rules for lam, against the best lam of the same path")
    rule_table(rules)
    print("\n## Every linear operator and prior: does the model of the Hessian ever hurt?")
    operator_table(json.loads((RESULTS / "operators.json").read_text()))
    if args.figure:
        figure(paths, args.figure)


if __name__ == "__main__":
    main()
