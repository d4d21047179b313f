"""The solvers on pictures that ship with the package, as Markdown tables.

    python benchmarks/solvers.py [PRIOR] [--json results/solvers.json]
    python benchmarks/solvers.py [PRIOR ...] --operators [--json results/operators.json]

The first has loss and evaluations of all solvers in three tasks, each at a lam near its best. The second asks whether
the model of the Hessian ever hurts: FollowPath against plain L-BFGS with as many evaluations, for every linear operator
and prior. Negative differences mean that the model helps. Two pictures: the astronaut, and a face drawn from the prior.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import torch
from results import save
from torch import Tensor

import aipo
from aipo import operators as ops
from aipo.cli import DEFAULT_PRIOR
from aipo.images.metrics import psnr
from aipo.restore.demo import DEMO_TASKS

SHAPE = (3, 64, 64)
LAM = {"denoise": 0.3, "inpaint": 1.0, "sensing": 0.2}

SOLVERS = {
    "Algorithm 2, the paper's settings": aipo.Amortized(),
    "Algorithm 2, alpha decays from round to round": aipo.Amortized(decay="round"),
    "Algorithm 2, Adam's moments kept": aipo.Amortized(moments="keep"),
    "Amortized.quick()": aipo.Amortized.quick(),
    "FollowPath, one lam": aipo.LBFGS(),  # the same iteration
    "Adam, constant step, 500 steps from G(0)": aipo.FixedLambda(500),
    "FixedLambda.decayed(), 250 steps from G(0)": aipo.FixedLambda.decayed(),
}


EVALS, LOW_LAM = 40, 0.5  # of the comparison for every operator


def cases() -> dict[str, tuple[ops.LinearOperator, float]]:
    return {
        "denoising, sigma 0.1": (ops.Denoising(SHAPE), 0.1),
        "inpainting, sigma 0.02": (ops.Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=0), 0.02),
        "sensing m=2000, sigma 0.1": (ops.CompressedSensing(SHAPE, m=2000, seed=0), 0.1),
        "super-resolution x2, sigma 0.05": (ops.SuperResolution(SHAPE, factor=2), 0.05),
        "blur, sigma 0.05": (ops.Blur.gaussian(SHAPE, width=1.5), 0.05),
        "grayscale, sigma 0.05": (ops.Grayscale(SHAPE), 0.05),
        "Fourier 4x, sigma 0.05": (ops.FourierSubsampling.random(SHAPE, fraction=0.25, seed=0), 0.05),
    }


def two_pictures(prior: aipo.Prior) -> Tensor:
    return torch.stack([aipo.samples.load("astronaut"), prior.sample(1, 0.7, seed=0)[0].clamp(0, 1)])


def compare_solvers(prior: aipo.Prior) -> list[dict[str, Any]]:
    x = two_pictures(prior)
    rows = []
    print("| task | lam | solver | mean loss | evaluations | PSNR |\n|---|---|---|---|---|---|")
    for task in DEMO_TASKS:
        operator, noise = task.operator(torch.Generator().manual_seed(0)), aipo.Gaussian(task.sigma)
        problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
        for name, solver in SOLVERS.items():
            start = time.monotonic()
            result = solver.solve(problem, LAM[task.name])
            row = {
                "task": task.name,
                "lam": LAM[task.name],
                "solver": name,
                "loss": result.loss.mean().item(),
                "evaluations": result.evals.double().mean().item(),
                "psnr": psnr(result.x.clamp(0, 1), x).mean().item(),
                "seconds": time.monotonic() - start,
            }
            rows.append(row)
            line = "| {task} | {lam} | {solver} | {loss:.0f} | {evaluations:.0f} | {psnr:.2f} |"
            print(line.format(**row), flush=True)
    return rows


def compare_models(names: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    print("| prior | operator | plain L-BFGS, mean loss | FollowPath | difference |\n|---|---|---|---|---|")
    for name in names:
        prior = aipo.load_prior(name)
        x = two_pictures(prior)
        for case, (operator, sigma) in cases().items():
            noise = aipo.Gaussian(sigma)
            problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
            losses = {model: aipo.LBFGS(EVALS, model=model).solve(problem, LOW_LAM).loss for model in ("none", "local")}
            plain, ours = (losses[model].mean().item() for model in ("none", "local"))
            rows.append({"prior": name, "operator": case, **{m: loss.tolist() for m, loss in losses.items()}})
            print(f"| {name} | {case} | {plain:.1f} | {ours:.1f} | {ours - plain:+.1f} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("priors", nargs="*", metavar="PRIOR")
    parser.add_argument("--operators", action="store_true", help="with and without the model, for every operator")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about: dict[str, Any] = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    if args.operators:
        about |= {"evals": EVALS, "lam": LOW_LAM}
        rows = compare_models(args.priors or aipo.prior_names())
    else:
        prior = aipo.load_prior((args.priors or [DEFAULT_PRIOR])[0])
        about |= {"machine": platform.machine(), "prior": prior.card["sha256"]}
        rows = compare_solvers(prior)
    if args.json:
        save(args.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
