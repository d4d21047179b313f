"""What the paper leaves open, tried: readings of Algorithm 2, and step sizes of the tuned baselines.

    python benchmarks/readings.py PRIOR [--task NAME ...] --images FILE [--count 8] [--parts readings steps]
        [--precision fast] [--json FILE] [--budget SECONDS]
    python benchmarks/readings.py --table JSON ...

FILE is a mosaic of validation images; no number of this script comes from a test image.

readings: Algorithm 2 in each of READINGS, against a constant step from the three other starts with the evaluations that
it took, image by image. The paper finds Algorithm 2 lowest in every cell; the reading that comes closest to that is the
one to keep.
steps: the decayed Adam from each start, with the same evaluations, at each of ALPHAS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo import initial
from aipo.adam import Adam
from aipo.bench.cells import paper_numbers
from aipo.bench.protocol import TASKS
from aipo.dataset import load_images
from aipo.files import write_atomically
from aipo.initial import MaximumLikelihood

STARTS = ("mle", "random", "zero")
LAMBDAS = (0.3, 1.0, 2.0)
ALPHAS = (0.01, 0.03, 0.1)
CLIPPED, ONE_SWEEP = "and y clipped to [0, 1]", "and one sweep of projections in a step of the start"
PRINTED = aipo.Amortized(decay="round")
READINGS = {
    "alpha decays from round to round": PRINTED,
    "and moments kept": replace(PRINTED, moments="keep"),
    "and delta_min = ratio": replace(PRINTED, delta_min_rule="ratio"),
    "and no round at Lambda": replace(PRINTED, last_round="as printed"),
    CLIPPED: PRINTED,
    ONE_SWEEP: PRINTED,
    "alpha decays from step to step": aipo.Amortized(),
    "from step to step, and moments kept": aipo.Amortized(moments="keep"),
    "from step to step, and delta_min = ratio": aipo.Amortized(delta_min_rule="ratio"),
}


class Setting:
    """Images measured by one task, once for each lam, and the three starts."""

    def __init__(self, prior: aipo.Prior, task: str, truth: Tensor, precision: str, reading: str):
        operator, noise = TASKS[task].make_operator(prior.image_shape), TASKS[task].noise
        y = operator.measure(truth, noise, seed=1)
        if reading == CLIPPED:
            y = y.clamp(0, 1)
        once = aipo.MapProblem(prior, operator, noise, y, precision)
        sweeps = 1 if reading == ONE_SWEEP else MaximumLikelihood.sweeps
        mle = initial.mle(once) if task == "denoise" else MaximumLikelihood(sweeps=sweeps).solve(once, 0.0)
        starts = {"mle": mle.x, "random": initial.random(once, seed=2), "zero": initial.zero(once)}
        self.starts = {name: x.repeat(len(LAMBDAS), 1, 1, 1) for name, x in starts.items()}
        self.spent = mle.evals.repeat(len(LAMBDAS))
        self.problem = aipo.MapProblem(prior, operator, noise, y.repeat(len(LAMBDAS), *[1] * (y.ndim - 1)), precision)
        self.lam = torch.tensor(LAMBDAS, device=truth.device).repeat_interleave(len(truth))

    def amortized(self, solver: aipo.Amortized) -> aipo.Result:
        return solver.solve(self.problem, self.lam, self.starts["mle"])

    def fixed(self, start: str, evals: Tensor, alpha: float, schedule: str, adam: Adam) -> aipo.Result:
        """`evals` is what Algorithm 2 took; a start that cost nothing gets those of the MLE as well."""
        steps = evals - 1 if start == "mle" else evals + self.spent - 1
        solver = aipo.FixedLambda(tuple(steps.tolist()), alpha, schedule, adam)
        return solver.solve(self.problem, self.lam, self.starts[start])

    def means(self, result: aipo.Result) -> list[float]:
        return result.loss.unflatten(0, (len(LAMBDAS), -1)).double().mean(1).tolist()


def readings(
    prior: aipo.Prior, task: str, truth: Tensor, precision: str, wanted: list[str]
) -> Iterator[dict[str, Any]]:
    for name in wanted:
        solver = READINGS[name]
        if (name == CLIPPED and task.startswith("ncs")) or (name == ONE_SWEEP and not task.startswith("ncs")):
            continue  # measurements that are no picture are not clipped; only with sensing do the projections alternate
        setting = Setting(prior, task, truth, precision, name)
        found = setting.amortized(solver)
        loss = {"aipo": setting.means(found)}
        for start in setting.starts:
            fixed = setting.fixed(start, found.evals, solver.alpha, "constant", Adam())
            loss[f"{start}_init"] = setting.means(fixed)
        yield {"part": "readings", "task": task, "reading": name, "evals": found.evals.double().mean().item(), **loss}


def steps(prior: aipo.Prior, task: str, truth: Tensor, precision: str) -> Iterator[dict[str, Any]]:
    setting = Setting(prior, task, truth, precision, "")
    evals = setting.amortized(PRINTED).evals
    tuned = aipo.FixedLambda.decayed()
    for alpha in ALPHAS:
        for start in setting.starts:
            result = setting.fixed(start, evals, alpha, tuned.schedule, tuned.adam)
            yield {"part": "steps", "task": task, "alpha": alpha, "start": start, "loss": setting.means(result)}


def print_papers_margins() -> None:
    """By how much the paper's Algorithm 2 is below the best of its three baselines, over tasks, priors and splits."""
    numbers = {key: number.mean for key, number in paper_numbers().items() if key.metric == "map_loss"}
    for lam in LAMBDAS:
        ours = [key for key in numbers if (key.method, key.lam) == ("aipo", lam)]
        best = [min(numbers[replace(key, method=f"{start}_init")] for start in STARTS) for key in ours]
        margins = [b - numbers[key] for key, b in zip(ours, best, strict=True)]
        low, high, middle = min(margins), max(margins), statistics.median(margins)
        print(f"The paper, lam {lam:g}: {low:.0f} to {high:.0f} nats, median {middle:.0f}")


def print_tables(documents: list[dict[str, Any]]) -> None:
    """For each reading how often it is lowest and by how much at each lam; for each step size its loss."""
    found: dict[str, list[list[float]]] = {}
    for row in (row for document in documents for row in document["rows"] if row["part"] == "readings"):
        best = [min(losses) for losses in zip(*(row[f"{start}_init"] for start in STARTS), strict=True)]
        margins = [b - a for a, b in zip(row["aipo"], best, strict=True)]
        found.setdefault(row["reading"], []).append(margins)
    print("| reading | lowest | " + " | ".join(f"median margin, lam {lam:g}" for lam in LAMBDAS) + " |")
    print("|---" * (2 + len(LAMBDAS)) + "|")
    for reading, cells in found.items():
        won = sum(margin > 0 for margins in cells for margin in margins)
        medians = [statistics.median(column) for column in zip(*cells, strict=True)]
        total = len(cells) * len(LAMBDAS)
        print(f"| {reading} | {won} of {total} | " + " | ".join(f"{m:.0f}" for m in medians) + " |")
    print("\n| prior, task | start | " + " | ".join(f"alpha {alpha}" for alpha in ALPHAS) + " |")
    print("|---" * (2 + len(ALPHAS)) + "|")
    for document in documents:
        steps = [row for row in document["rows"] if row["part"] == "steps"]
        for task, start in dict.fromkeys((row["task"], row["start"]) for row in steps):
            by = {row["alpha"]: row["loss"] for row in steps if (row["task"], row["start"]) == (task, start)}
            cells = [", ".join(f"{loss:.0f}" for loss in by[alpha]) for alpha in ALPHAS]
            print(f"| {document['prior'].removeprefix('celeba64-')}, {task} | {start} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior", nargs="?")
    parser.add_argument("--table", nargs="+", type=Path, help="print what these results say")
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--reading", nargs="+", default=list(READINGS), choices=list(READINGS))
    parser.add_argument("--parts", nargs="+", default=["readings", "steps"], choices=["readings", "steps"])
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.table:
        print_tables([json.loads(file.read_text()) for file in args.table])
        print_papers_margins()
        return
    if not (args.prior and args.images):
        parser.error("give a prior and --images, or --table")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    prior = aipo.load_prior(args.prior).to(device)
    images = load_images(args.images, size=prior.image_shape[1], mosaics=True)[: args.count]
    truth = images.to(device).float() / 255
    document: dict[str, Any] = {
        "prior": args.prior,
        "sha256": prior.card["sha256"],
        "images": f"{args.images.name}, the first {args.count}",
        "lambdas": LAMBDAS,
        "precision": args.precision,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "rows": [],
    }
    begin = time.monotonic()
    for part in args.parts:
        for task in args.task:
            rows = (
                readings(prior, task, truth, args.precision, args.reading)
                if part == "readings"
                else steps(prior, task, truth, args.precision)
            )
            for row in rows:
                document["rows"].append(row)
                print(f"{time.monotonic() - begin:6.1f} s  {row}", flush=True)
                if args.json:
                    write_atomically(args.json, (json.dumps(document, indent=1) + "\n").encode())
                if time.monotonic() - begin > args.budget:
                    return


if __name__ == "__main__":
    main()
