"""The page docs/performance-results.md, from results/engine.json, which engine.py wrote.

python benchmarks/engine_report.py > docs/performance-results.md
"""

from __future__ import annotations

from typing import Any

from results import RESULTS, load_runs

INTRODUCTION = """\
# Results of the engine benchmark

How fast is one value and gradient of P, how exact, and how much memory does it take? This page has the numbers;
[performance.md](performance.md) explains them.

`python benchmarks/engine_report.py` prints this page from `results/engine.json`, which `benchmarks/engine.py` wrote: on
the GPU with `--seconds 0.4` (the TarFlow, after a fix, with `--seconds 0.2`), on the CPU with `--batches 1 16 --seconds
3`. A star in a table: normflows has no TarFlow, so its baseline is our own flow by autograd. What came out:
"""


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def head(*cells: str) -> None:
    print("\n" + row(*cells))
    print(row(*["---"] * len(cells)))


def summary(report: dict[str, Any]) -> None:
    """The findings on one machine, as a list."""
    rows, mode = report["speed"], report["speed"][-1]["method"]
    print(f"\n**{report['hardware']}**\n")
    for batch in (min(r["batch"] for r in rows), max(r["batch"] for r in rows)):
        here = [r for r in rows if r["batch"] == batch]
        baseline = {r["prior"]: r for r in reversed(here)}  # the first of each prior, as in the table
        gain = {
            r["prior"]: r["gradients_per_second"] / baseline[r["prior"]]["gradients_per_second"]
            for r in here
            if r["method"] == mode
        }
        others = [value for prior, value in gain.items() if "tarflow" not in prior]
        print(f"- `{mode}`, batch {batch}: {min(others):.1f} to {max(others):.1f} times as fast as normflows;")
        print(f"  the TarFlow {gain['celeba64-tarflow']:.1f} times as fast as our own flow by autograd.")
    for method in dict.fromkeys(r["method"] for r in rows if r["method"].startswith("engine")):
        wrong = [(r["error"]["nats"], r["prior"]) for r in rows if r["method"] == method]
        others = max(nats for nats, prior in wrong if "tarflow" not in prior)
        tarflow = max(nats for nats, prior in wrong if "tarflow" in prior)
        print(f"- `{method}`: P is off by {others:.2g} nats at most, with the TarFlow by {tarflow:.2g}.")
    large = {r["method"]: r["peak_bytes"] / 2**20 for r in report["memory"] if r["prior"] == "glow, 256x256"}
    print(f"- One 256x256 image with a Glow takes {large['exact']:.1f} MiB in `exact`, {large['exact, recompute']:.1f}")
    print(f"  with `recompute`, and {large['autograd']:.1f} by autograd.")


def speed(report: dict[str, Any]) -> None:
    baseline = {}
    head("prior", "batch", "method", "ms", "gradients/s", "against normflows", "TFLOP/s", "of the ceiling")
    for r in report["speed"]:
        key = (r["prior"], r["batch"])
        # TarFlow has no counterpart in normflows: there the baseline is our own flow by autograd.
        baseline.setdefault(key, r["gradients_per_second"])
        times = f"{r['gradients_per_second'] / baseline[key]:.1f}x" + ("" if "tarflow" not in r["prior"] else " *")
        share, flops = f"{r['share_of_ceiling']:.1%}", f"{r['tflops']:.3g}"
        print(
            row(
                *key,
                r["method"],
                f"{r['milliseconds']:.2f}",
                f"{r['gradients_per_second']:,.0f}",
                times,
                flops,
                share,
            )
        )


def errors(report: dict[str, Any]) -> None:
    head("prior", "GFLOP per gradient", "method", "largest error of a value, nats", "of a gradient, relative")
    seen = set()
    for r in report["speed"]:
        if (r["prior"], r["method"]) not in seen:
            seen.add((r["prior"], r["method"]))
            wrong = f"{r['error']['nats']:.2g}", f"{r['error']['gradient']:.0e}"
            print(row(r["prior"], f"{r['gflop']:.1f}", r["method"], *wrong))


def memory(report: dict[str, Any]) -> None:
    methods = list(dict.fromkeys(r["method"] for r in report["memory"]))
    head("MiB for one image", *methods)
    for prior in dict.fromkeys(r["prior"] for r in report["memory"]):
        found = {r["method"]: r["peak_bytes"] / 2**20 for r in report["memory"] if r["prior"] == prior}
        print(row(prior, *(f"{found[m]:.1f}" if m in found else "-" for m in methods)))


def sensing(report: dict[str, Any]) -> None:
    batches = sorted({r["batch"] for r in report["sensing"]})
    head("share of D, m = 4000", *(f"batch {b}" for b in batches))
    for prior in dict.fromkeys(r["prior"] for r in report["sensing"]):
        found = {r["batch"]: r["share_of_D"] for r in report["sensing"] if r["prior"] == prior}
        print(row(prior, *(f"{max(found[b], 0):.0%}" if b in found else "-" for b in batches)))


def solve(report: dict[str, Any]) -> None:
    head("prior", "task", "solver", "mean difference", "largest", "seconds, exact", "seconds, fast")
    for r in report["solve"]:
        apart = f"{r['mean_difference']:+.3f}", f"{r['largest_difference']:.3f}"
        print(row(r["prior"], r["task"], r["solver"], *apart, *(f"{s:.1f}" for s in r["seconds"].values())))


def profile(report: dict[str, Any]) -> None:
    head("prior", "share", "calls", "kernel")
    for r in report["profile"]:
        print(row(r["prior"], f"{r['share']:.1%}", r["count"], f"`{r['kernel']}`"))


PARTS = {
    "speed": ("Speed", speed),
    "memory": ("Memory", memory),
    "sensing": ("Compressed sensing", sensing),
    "solve": ("Solves in fast and in exact precision", solve),
    "profile": ("Where the time of a fast gradient goes, batch 200", profile),
}


def main() -> None:
    reports = list(load_runs(RESULTS / "engine.json").values())
    print(INTRODUCTION, end="")
    for report in reports:
        summary(report)
    for report in reports:
        ceilings = ", ".join(f"{name} {value:.3g}" for name, value in report["ceiling_tflops"].items())
        print(f"\n## {report['hardware']}, torch {report['torch']}, {report['threads']} threads, {report['date']}")
        print(f"\nMatrix-multiply ceiling, TFLOP/s: {ceilings}.")
        for part, (title, table) in PARTS.items():
            if part in report:
                print(f"\n### {title}")
                table(report)
                if part == "speed":
                    errors(report)


if __name__ == "__main__":
    main()
