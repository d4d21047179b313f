"""Loss and evaluations of the solvers on pictures that ship with the package, as a Markdown table.

    python benchmarks/solvers.py [--prior NAME] [--json results/solvers.json]

Two pictures (the astronaut, and a face drawn from the prior), three tasks, each at a lam near its best.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch
from results import save

import aipo
from aipo.cli import DEFAULT_PRIOR
from aipo.images.metrics import psnr
from aipo.restore.demo import DEMO_TASKS

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prior", default=DEFAULT_PRIOR)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prior = aipo.load_prior(args.prior)
    x = torch.stack([aipo.samples.load("astronaut"), prior.sample(1, 0.7, seed=0)[0].clamp(0, 1)])
    rows = []
    print("| task | lam | solver | mean loss | evaluations | PSNR |\n|---|---|---|---|---|---|")
    for task in DEMO_TASKS:
        operator, noise = task.operator(torch.Generator().manual_seed(0)), aipo.Gaussian(task.sigma)
        problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
        for name, solver in SOLVERS.items():
            start = time.monotonic()
            lam = LAM[task.name]
            result = solver.solve(problem, lam)
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
            print(
                "| {task} | {lam} | {solver} | {loss:.0f} | {evaluations:.0f} | {psnr:.2f} |".format(**row), flush=True
            )
    if args.json:
        about = {"torch": torch.__version__, "machine": platform.machine(), "prior": prior.card["sha256"]}
        save(args.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
