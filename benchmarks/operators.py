"""Does the model of the Hessian ever hurt? FollowPath against plain L-BFGS, for every linear operator and prior.

    python benchmarks/operators.py [PRIOR ...] [--evals 40] [--lam 0.5] [--json results/operators.json]

Two pictures that ship with the package (the astronaut, and a face drawn from the prior), one lam, the same start and
the same number of evaluations. Negative differences mean that the model helps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from results import save

import aipo
from aipo import operators as ops

SHAPE = (3, 64, 64)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("priors", nargs="*", default=aipo.prior_names())
    parser.add_argument("--evals", type=int, default=40)
    parser.add_argument("--lam", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| prior | operator | plain L-BFGS, mean loss | FollowPath | difference |\n|---|---|---|---|---|")
    for name in args.priors:
        prior = aipo.load_prior(name)
        x = torch.stack([aipo.samples.load("astronaut"), prior.sample(1, 0.7, seed=0)[0].clamp(0, 1)])
        for case, (operator, sigma) in cases().items():
            noise = aipo.Gaussian(sigma)
            problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
            losses = {
                model: aipo.LBFGS(args.evals, model=model).solve(problem, args.lam).loss for model in ("none", "local")
            }
            means = {model: loss.mean().item() for model, loss in losses.items()}
            rows.append({"prior": name, "operator": case, **{m: loss.tolist() for m, loss in losses.items()}})
            difference = means["local"] - means["none"]
            print(
                f"| {name} | {case} | {means['none']:.1f} | {means['local']:.1f} | {difference:+.1f} |",
                flush=True,
            )
    if args.json:
        about = {"evals": args.evals, "lam": args.lam, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__}
        save(args.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
