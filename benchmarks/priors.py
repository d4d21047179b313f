"""How a prior behaves where it will be used: bits/dim on several sets, and MAP reconstructions off the data.

    python benchmarks/priors.py PRIOR [PRIOR ...] --data FOLDER [--images val] [--count 50] [--evals 200]
        [--lambdas 0.3 1 2] [--json FILE]

FOLDER holds `celeba64`, `fairface64` and `ood64`, see SETS below. For every task and lam the solve starts at G(0) and
takes `evals` gradient evaluations of a cosine-decayed Adam.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo.dataset import load_images
from aipo.likelihood import bits_per_dim
from aipo.metrics import psnr

SHAPE = (3, 64, 64)
SETS = {
    "val": "celeba64/val1000.webp",
    "test": "celeba64/test200.webp",
    "fairface": "fairface64/test200.webp",
    "paintings": "ood64",
}


def tasks() -> dict[str, tuple[aipo.operators.Operator, aipo.Gaussian]]:
    ops = aipo.operators
    return {
        "denoise": (ops.Denoising(SHAPE), aipo.Gaussian(0.1)),
        "inpaint": (ops.Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=0), aipo.Gaussian(0.02)),
        "ncs2000": (ops.CompressedSensing(SHAPE, m=2000, seed=0), aipo.Gaussian(0.1)),
    }


def restore(prior: aipo.Prior, x: Tensor, evals: int, lambdas: list[float]) -> list[dict[str, Any]]:
    """One row per task and lam: finite images and mean PSNR."""
    rows = []
    for task, (operator, noise) in tasks().items():
        y = operator.measure(x, noise, seed=1)
        problem = aipo.MapProblem(prior, operator, noise, y)
        x0 = aipo.initial.zero(problem)
        for lam in lambdas:
            start = time.monotonic()
            result = aipo.FixedLambda.decayed(evals - 1, 0.03).solve(problem, lam, x0)
            quality = psnr(result.x.clamp(0, 1), x)
            rows.append(
                {
                    "task": task,
                    "lam": lam,
                    "psnr": quality.mean().item(),
                    "psnr_se": (quality.std() / len(quality) ** 0.5).item(),
                    "loss": result.loss.mean().item(),
                    "non_finite": sum(s != "done" for s in result.status),
                    "seconds": time.monotonic() - start,
                }
            )
            print(f"  {task:8} lam {lam:<4} {rows[-1]['psnr']:6.2f} dB  failed {rows[-1]['non_finite']}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("priors", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="test", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--evals", type=int, default=200)
    parser.add_argument("--lambdas", type=float, nargs="+", default=[0.3, 0.5, 1.0, 1.5, 2.0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    report = {}
    for name in args.priors:
        prior = aipo.load_prior(name).to(device)
        bits = {
            key: bits_per_dim(prior.flow, load_images(args.data / path, mosaics=True), prior.bits).mean().item()
            for key, path in SETS.items()
        }
        samples = prior.sample(64, 0.7)
        inside = ((samples >= 0) & (samples <= 1)).float().mean().item()
        print(f"{prior.name}: bits/dim {bits}, samples at 0.7 inside [0,1]: {inside:.4f}", flush=True)
        x = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).to(device).float() / 255
        report[prior.name] = {
            "bits_per_dim": bits,
            "inside": inside,
            "map": restore(prior, x, args.evals, args.lambdas),
        }
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "device": device, **report}, indent=2))


if __name__ == "__main__":
    main()
