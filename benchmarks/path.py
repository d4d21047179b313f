"""Loss above the best known minimum along lam, at equal evaluations, and the PSNR that goes with it.

    python benchmarks/path.py PRIOR --data FOLDER [--images val] [--count 3] [--tasks denoise inpaint ncs2000]
        [--paper] [--json FILE]

Side by side: `FollowPath` with its three models of the Hessian, five independent cosine-decayed Adam solves of 250
evaluations from the same start and from G(0), and with --paper Algorithm 2 run once per lam. The reference is the
lowest loss of each image and lam over all of them and a path of 1,500 evaluations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from priors import SETS, tasks
from torch import Tensor

import aipo
from aipo.dataset import load_images
from aipo.metrics import psnr
from aipo.solvers.path import LAMBDAS

# (losses (B, L), images (B, L, C, H, W), evaluations per image)
Outcome = tuple[Tensor, Tensor, float]


def path(evals: int, **options: Any) -> Callable[[aipo.MapProblem], Outcome]:
    def run(problem: aipo.MapProblem) -> Outcome:
        found = aipo.FollowPath(LAMBDAS, evals, **options).solve(problem, LAMBDAS[-1])
        return found.loss, found.x, found.evals[:, -1].mean().item()

    return run


def one_by_one(solver: Any, start: Callable[[aipo.MapProblem], Tensor | None]) -> Callable[[aipo.MapProblem], Outcome]:
    def run(problem: aipo.MapProblem) -> Outcome:
        results = [solver.solve(problem, lam, start(problem)) for lam in LAMBDAS]
        evals = sum(r.evals.double().mean().item() for r in results)
        return torch.stack([r.loss for r in results], 1), torch.stack([r.x for r in results], 1), evals

    return run


def methods(paper: bool) -> dict[str, Callable[[aipo.MapProblem], Outcome]]:
    adam = aipo.FixedLambda.decayed(249)
    found = {
        "path, 70": path(70),
        "path, 120": path(120),
        "path, 120, W = 1": path(120, model="global"),
        "path, 120, plain L-BFGS": path(120, model="none"),
        "Adam, 5 x 250": one_by_one(adam, aipo.initial.gaussian),
        "Adam, 5 x 250, from G(0)": one_by_one(adam, aipo.initial.zero),
        "path, 1500 (reference)": path(1500, tolerance=0.01),
    }
    if paper:
        found["Algorithm 2, per lam"] = one_by_one(aipo.Amortized(), lambda problem: None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="val", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(tasks()))
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    prior = aipo.load_prior(args.prior).to(device)
    x = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).to(device).float() / 255
    report: dict[str, Any] = {}
    for task in args.tasks:
        operator, noise = tasks()[task]
        problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
        outcomes, seconds = {}, {}
        for name, run in methods(args.paper).items():
            start = time.monotonic()
            outcomes[name] = run(problem)
            seconds[name] = time.monotonic() - start
        best = torch.stack([losses for losses, _, _ in outcomes.values()]).amin(0)
        print(f"{prior.name}, {task}, {len(x)} images: mean gap in nats | PSNR in dB at lam {LAMBDAS}")
        for name, (losses, images, evals) in outcomes.items():
            gaps = (losses - best).mean(0).tolist()
            quality = [psnr(images[:, i].clamp(0, 1), x).mean().item() for i in range(len(LAMBDAS))]
            report[f"{task}, {name}"] = {"evaluations": evals, "gap": gaps, "psnr": quality, "seconds": seconds[name]}
            shown = " ".join(f"{g:7.1f}" for g in gaps), " ".join(f"{q:6.2f}" for q in quality)
            print(f"  {name:26} {evals:6.0f} evals {seconds[name]:5.0f} s | {shown[0]} | {shown[1]}", flush=True)
    if args.json:
        head = {"prior": prior.name, "images": args.images, "count": args.count, "lambdas": LAMBDAS, "device": device}
        report = {**head, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "results": report}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
