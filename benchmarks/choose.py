"""What each rule for lam loses against the best lam of the same path, in dB, and the PSNR it reaches.

    python benchmarks/choose.py PRIOR --data FOLDER [--tasks ...] [--rules ...] [--images test] [--count 50]
        [--evals 60] [--sigma 0.05] [--precision fast] [--json FILE] [--name NAME]

The best lam is found with the truth, on the automatic path (for SURE, which needs one grid for all images, on that
grid's path). The run is kept under NAME in FILE, by default under the prior's name in results/choose.json. Runs with
another --sigma, --evals or --images have names of their own there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from results import RESULTS, save_run, short_name
from torch import Tensor

import aipo
from aipo.choose import EVALS, RULES
from aipo.choose.rules import crossing
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.images.metrics import psnr
from aipo.training.dataset import load_images
from priors import SETS, SHAPE

MOROZOV = "chi2=1"  # the discrepancy principle as in textbooks


def best_psnr(path: aipo.SolutionPath, truth: Tensor) -> Tensor:
    """Of each image, the highest PSNR along its path."""
    along = torch.stack([psnr(x.clamp(0, 1), truth) for x in path.x.unbind(1)], dim=1)
    return along.nan_to_num(-torch.inf).amax(1)


def choose(problem: aipo.MapProblem, rule: str, path: aipo.SolutionPath, evals: int) -> aipo.Choice:
    if rule == MOROZOV:
        lam = crossing(path.lam, path.chi2(problem), torch.ones_like(path.lam[:, 0]))
        return aipo.choose_lambda(problem, "fixed", lam=lam, path=path)
    return aipo.choose_lambda(problem, rule, path=path, evals=evals)


def measure(problem: aipo.MapProblem, rule: str, path: aipo.SolutionPath, truth: Tensor, evals: int) -> dict[str, Any]:
    """What one rule reaches on one task, as means over images."""
    choice = choose(problem, rule, path, evals)
    reached, best = psnr(choice.result.x.clamp(0, 1), truth), best_psnr(choice.path, truth)
    lost = best - reached
    return {
        "psnr": reached.mean().item(),
        "psnr_se": (reached.std() / len(reached) ** 0.5).item(),
        "oracle": best.mean().item(),
        "lost": lost.mean().item(),
        "lost_max": lost.max().item(),
        "lam": choice.lam.median().item(),
        "target": choice.target.median().item() if rule == "discrepancy" else None,
        "evaluations": choice.result.evals.double().mean().item(),
        "not_done": sum(status != "done" for status in choice.result.status),
    }


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=RESULTS / "choose.json")
    parser.add_argument("--name", help="of the run; by default the prior's")
    parser.add_argument("--tasks", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--rules", nargs="+", default=[MOROZOV, *(r for r in RULES if r not in ("auto", "fixed"))])
    parser.add_argument("--images", default="test", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--evals", type=int, default=EVALS)
    parser.add_argument("--sigma", type=float, help="of the noise, instead of the task's own")
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prior = aipo.load_prior(args.prior).to(device)
    truth = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).to(device).float() / 255
    report: dict[str, Any] = {
        "prior": prior.name,
        "sha256": prior.card["sha256"],
        "images": args.images,
        "count": args.count,
        "evaluations": args.evals,
        "sigma": args.sigma,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "precision": args.precision,
        "tasks": {},
    }
    for task in args.tasks:
        operator = EXPERIMENTS[task].make_operator(SHAPE)
        noise = aipo.Gaussian(args.sigma) if args.sigma else EXPERIMENTS[task].noise
        problem = aipo.MapProblem(prior, operator, noise, operator.measure(truth, noise, seed=1), args.precision)
        path = aipo.follow_path(problem, evals=args.evals)
        rows = report["tasks"][task] = {}
        for rule in args.rules:
            start = time.monotonic()
            row = rows[rule] = measure(problem, rule, path, truth, args.evals)
            print(
                f"{prior.name} {task:8} {rule:12} {row['psnr']:6.2f} dB, best {row['oracle']:6.2f}, "
                f"lost {row['lost']:5.2f} (max {row['lost_max']:.2f}), lam {row['lam']:.2f}, "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
        save_run(args.json, args.name or short_name(prior.name), report)


if __name__ == "__main__":
    main()
