"""What each rule for lam loses against the best lam of the same path, in dB, and the PSNR it reaches.

    python benchmarks/choose.py PRIOR --data FOLDER --json FILE [--tasks ...] [--rules ...] [--images test] [--count 50]
        [--sigma 0.05] [--precision fast]

The oracle knows the truth: it takes the best lam of the automatic path (for SURE, which needs one grid for all images,
of that grid's path).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from priors import SETS, tasks
from torch import Tensor

import aipo
from aipo.choose import EVALS, RULES, _crossing
from aipo.dataset import load_images
from aipo.files import write_atomically
from aipo.metrics import psnr

MOROZOV = "chi2=1"  # the discrepancy principle as in textbooks


def oracle(path: aipo.Path, truth: Tensor) -> Tensor:
    along = torch.stack([psnr(x.clamp(0, 1), truth) for x in path.x.unbind(1)], dim=1)
    return along.nan_to_num(-torch.inf).amax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(tasks()))
    parser.add_argument("--rules", nargs="+", default=[MOROZOV, *(r for r in RULES if r not in ("auto", "fixed"))])
    parser.add_argument("--images", default="test", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--evals", type=int, default=EVALS)
    parser.add_argument("--sigma", type=float, help="of the noise, in place of the task's own")
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    args = parser.parse_args()
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
        operator, noise = tasks()[task]
        noise = aipo.Gaussian(args.sigma) if args.sigma else noise
        y = operator.measure(truth, noise, seed=1)
        problem = aipo.MapProblem(prior, operator, noise, y, args.precision)
        path = aipo.follow_path(problem, evals=args.evals)
        rows = report["tasks"][task] = {}
        for rule in args.rules:
            start = time.monotonic()
            if rule == MOROZOV:
                lam = _crossing(path.lam, path.chi2(problem), torch.ones_like(path.lam[:, 0]))
                choice = aipo.choose_lambda(problem, "fixed", lam=lam, path=path)
            else:
                choice = aipo.choose_lambda(problem, rule, path=path, evals=args.evals)
            reached = psnr(choice.result.x.clamp(0, 1), truth)
            lost = oracle(choice.path, truth) - reached
            rows[rule] = {
                "psnr": reached.mean().item(),
                "psnr_se": (reached.std() / len(reached) ** 0.5).item(),
                "oracle": oracle(choice.path, truth).mean().item(),
                "lost": lost.mean().item(),
                "lost_max": lost.max().item(),
                "lam": choice.lam.median().item(),
                "target": choice.target.median().item() if rule == "discrepancy" else None,
                "evaluations": choice.result.evals.double().mean().item(),
                "not_done": sum(status != "done" for status in choice.result.status),
            }
            print(
                f"{prior.name} {task:8} {rule:12} {rows[rule]['psnr']:6.2f} dB, oracle {rows[rule]['oracle']:6.2f}, "
                f"lost {rows[rule]['lost']:5.2f} (max {rows[rule]['lost_max']:.2f}), lam {rows[rule]['lam']:.2f}, "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
        write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
