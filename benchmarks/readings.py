"""What the paper leaves open, tried: readings of Algorithm 2, and step sizes of the tuned baselines.

    python benchmarks/readings.py PRIOR [--task NAME ...] --images FILE [--count 8]
        [--parts readings steps first-round] [--precision fast] [--budget SECONDS]
        [--json results/readings.json] [--name NAME]
    python benchmarks/readings.py --table [results/readings.json]

The images are a mosaic of validation images: no number of this script comes from a test image. The run is kept under
NAME, by default the prior's.

readings: Algorithm 2 in each of READINGS, against a constant step from the three other starts with the evaluations that
it took, image by image. The paper finds Algorithm 2 lowest in every cell; the reading that comes closest to that is the
one to keep.
steps: the decayed Adam from each start, with the same evaluations, at each of ALPHAS.
first-round: Algorithm 2 with and without its round at lam = 0, in both readings of alpha, and the constant steps with
the evaluations that it took with that round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from results import RESULTS, load_runs, save_run, short_name
from torch import Tensor

import aipo
from aipo import initial
from aipo.evaluation.analysis.cells import paper_numbers
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.solvers.adam import Adam
from aipo.solvers.initial import MaximumLikelihood
from aipo.training.dataset import load_images

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
    """The problem of one experiment, every image once for each lam, and its three starts."""

    def __init__(self, prior: aipo.Prior, task: str, truth: Tensor, precision: str, reading: str):
        operator, noise = EXPERIMENTS[task].make_operator(prior.image_shape), EXPERIMENTS[task].noise
        y = operator.measure(truth, noise, seed=1)
        if reading == CLIPPED:
            y = y.clamp(0, 1)
        once = aipo.MapProblem(prior, operator, noise, y, precision)
        sweeps = 1 if reading == ONE_SWEEP else MaximumLikelihood.sweeps
        mle = initial.mle(once) if task == "denoise" else MaximumLikelihood(sweeps=sweeps).solve(once)
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

    def constant(self, evals: Tensor) -> dict[str, aipo.Result]:
        """The paper's baselines."""
        return {f"{start}_init": self.fixed(start, evals, PRINTED.alpha, "constant", Adam()) for start in STARTS}

    def losses(self, result: aipo.Result) -> list[list[float]]:
        """One list per lam, one number per image."""
        return result.loss.unflatten(0, (len(LAMBDAS), -1)).tolist()

    def means(self, result: aipo.Result) -> list[float]:
        return result.loss.unflatten(0, (len(LAMBDAS), -1)).double().mean(1).tolist()


def readings(
    prior: aipo.Prior, task: str, truth: Tensor, precision: str, wanted: list[str]
) -> Iterator[dict[str, Any]]:
    for name in wanted:
        solver = READINGS[name]
        if (name == CLIPPED and task.startswith("ncs")) or (name == ONE_SWEEP and not task.startswith("ncs")):
            continue  # only images are clipped, and only sensing alternates projections
        setting = Setting(prior, task, truth, precision, name)
        found = setting.amortized(solver)
        loss = {"aipo": setting.means(found)}
        loss |= {name: setting.means(fixed) for name, fixed in setting.constant(found.evals).items()}
        yield {"part": "readings", "task": task, "reading": name, "evals": found.evals.double().mean().item(), **loss}


def steps(prior: aipo.Prior, task: str, truth: Tensor, precision: str) -> Iterator[dict[str, Any]]:
    setting = Setting(prior, task, truth, precision, "")
    evals = setting.amortized(PRINTED).evals
    tuned = aipo.FixedLambda.decayed()
    for alpha in ALPHAS:
        for start in setting.starts:
            result = setting.fixed(start, evals, alpha, tuned.schedule, tuned.adam)
            yield {"part": "steps", "task": task, "alpha": alpha, "start": start, "loss": setting.means(result)}


def first_round(prior: aipo.Prior, task: str, truth: Tensor, precision: str) -> Iterator[dict[str, Any]]:
    setting = Setting(prior, task, truth, precision, "")
    for decay in ("round", "step"):
        with_round = setting.amortized(aipo.Amortized(decay=decay))
        without = setting.amortized(aipo.Amortized(decay=decay, first_round="at delta_min"))
        yield {
            "part": "first-round",
            "task": task,
            "decay": decay,
            "evals": [found.evals.double().mean().item() for found in (with_round, without)],
            "with": setting.losses(with_round),
            "without": setting.losses(without),
            **{name: setting.losses(fixed) for name, fixed in setting.constant(with_round.evals).items()},
        }


def print_first_rounds(documents: list[dict[str, Any]]) -> None:
    """Mean losses over the images: Algorithm 2 with and without its round at lam = 0, and the best baseline."""
    print("\n| prior, task | alpha decays | lam | with | without | lower without | best baseline |")
    print("|---" * 7 + "|")
    for document in documents:
        for row in (row for row in document["rows"] if row["part"] == "first-round"):
            place = f"| {short_name(document['prior'])}, {row['task']} | every {row['decay']}"
            for i, lam in enumerate(document["lambdas"]):
                before, after = row["with"][i], row["without"][i]
                lower = f"{sum(b < a for a, b in zip(before, after, strict=True))} of {len(before)}"
                best = min(statistics.mean(row[f"{start}_init"][i]) for start in STARTS)
                means = f"{statistics.mean(before):.0f} | {statistics.mean(after):.0f} | {lower} | {best:.0f}"
                print(f"{place} | {lam:g} | {means} |")


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
    """For each reading how often it is lowest, and by how much at each lam; for each step size its loss."""
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
            print(f"| {short_name(document['prior'])}, {task} | {start} | " + " | ".join(cells) + " |")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior", nargs="?")
    parser.add_argument("--table", type=Path, nargs="?", const=RESULTS / "readings.json", help="print what FILE says")
    parser.add_argument("--task", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--reading", nargs="+", default=list(READINGS), choices=list(READINGS))
    parser.add_argument(
        "--parts", nargs="+", default=["readings", "steps"], choices=["readings", "steps", "first-round"]
    )
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--name", help="of the run; by default the prior's")
    args = parser.parse_args()
    if not args.table and not (args.prior and args.images):
        parser.error("give a prior and --images, or --table")
    return args


def measured(prior: aipo.Prior, truth: Tensor, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rows = {"readings": partial(readings, wanted=args.reading), "steps": steps, "first-round": first_round}
    for part in args.parts:
        for task in args.task:
            yield from rows[part](prior, task, truth, args.precision)


def main() -> None:
    args = read_arguments()
    if args.table:
        documents = list(load_runs(args.table).values())
        print_tables(documents)
        print_first_rounds(documents)
        print_papers_margins()
        return
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
    for row in measured(prior, truth, args):
        document["rows"].append(row)
        print(f"{time.monotonic() - begin:6.1f} s  {row}", flush=True)
        if args.json:
            save_run(args.json, args.name or short_name(prior.name), document)
        if time.monotonic() - begin > args.budget:
            return


if __name__ == "__main__":
    main()
