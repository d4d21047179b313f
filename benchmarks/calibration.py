"""How often the truth lies in the 90% intervals of `sample_posterior`, and how good the mean of its samples is.

    python benchmarks/calibration.py --images DIR [--prior photo-small] [--tasks ...] [--crops 20] [--center 96]
        [--samples 16] [--evals 20] [--name NAME]

Tasks and corruption are those of `benchmarks/restore.py`. Coverage is the share of values, of all pixels and of those
that were not seen, whose truth lies in the interval; PSNR that of the clipped mean, of a single sample, and of
`aipo.anneal` with 20 evaluations. The run is kept under NAME in results/calibration.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from denoise import hardware
from results import RESULTS, save_run
from torch import Tensor

import aipo
from aipo.images.metrics import psnr
from aipo.operators import Inpainting
from restore import TASKS, Measured, by_annealing, measure, read

INTERVAL = 0.9


def main() -> None:
    args = arguments()
    torch.set_grad_enabled(False)
    prior = aipo.load_prior(args.prior).to(args.device)
    rows = []
    for key in args.tasks:
        for i, (name, truth) in enumerate(read(args).items()):
            rows.append({"picture": name, "task": key, **row(prior, measure(TASKS[key], truth, i), truth, args)})
        of = [r for r in rows if r["task"] == key]
        means = {k: sum(r[k] for r in of) / len(of) for k in of[0] if k not in ("picture", "task")}
        covered = f"covered {means['covered']:.1%}, unseen {means['covered_unseen']:.1%}"
        pictures = ", ".join(f"{name} {means[name]:.2f}" for name in ("mean", "sample", "anneal"))
        print(f"{key:15} {covered}   {pictures} dB", flush=True)
    if args.name:
        about = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(), "torch": torch.__version__}
        about |= {"prior": prior.name, "sha256": prior.card["sha256"], "images": args.images.name}
        about |= {"center": args.center, "samples": args.samples, "evals": args.evals}
        save_run(RESULTS / "calibration.json", args.name, {**about, "rows": rows})


def row(prior: aipo.NoisePrior, m: Measured, truth: Tensor, args: argparse.Namespace) -> dict[str, float]:
    problem = aipo.MapProblem(prior, m.operator, aipo.Gaussian(m.task.sigma), m.y, "fast")
    posterior = aipo.sample_posterior(problem, args.samples, evals=args.evals, seed=0)
    low, high = posterior.interval(INTERVAL)
    covered = (low <= truth) & (truth <= high)
    unseen = torch.ones_like(covered)
    if isinstance(m.operator, Inpainting):
        unseen = (m.operator.mask == 0).expand_as(covered)
    pictures = {"mean": posterior.mean, "sample": posterior.samples[:, 0], "anneal": by_annealing(prior, 20)(m)}
    return {
        "covered": covered.float().mean().item(),
        "covered_unseen": covered[unseen].float().mean().item(),
        **{key: psnr(x.clamp(0, 1), truth).item() for key, x in pictures.items()},
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--crops", type=int, default=20)
    parser.add_argument("--center", type=int, default=96)
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--tasks", nargs="+", default=["inpaint", "gaussian", "superres-2"], choices=list(TASKS))
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--evals", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
