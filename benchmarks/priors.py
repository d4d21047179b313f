"""How a prior behaves where it will be used: bits/dim on several sets, and MAP reconstructions off the data.

    python benchmarks/priors.py PRIOR [PRIOR ...] --data FOLDER [--count 50] [--evals 200] [--precision fast]
        [--json results/priors.json] [--update-cards]

FOLDER holds `celeba64`, `fairface64` and `ood64`, see SETS below. For each task, every lam of GRID is tried on a few
validation images; the test images are then restored at that best lam and at REPORTED. Every solve starts at G(0) and
takes `evals` gradient evaluations of a cosine-decayed Adam. With --update-cards the numbers go into the priors' cards.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from results import save
from torch import Tensor

import aipo
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.images.metrics import psnr
from aipo.priors.files import save_prior_files
from aipo.priors.likelihood import bits_per_dim
from aipo.training.dataset import load_images

SHAPE = (3, 64, 64)
SETS = {
    "val": "celeba64/val1000.webp",
    "test": "celeba64/test200.webp",
    "fairface": "fairface64/test200.webp",
    "paintings": "ood64",
}
REPORTED = (0.3, 1.0, 2.0)
GRID = (0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)


def restore(
    prior: aipo.Prior, task: str, x: Tensor, evals: int, lambdas: tuple[float, ...], precision: str
) -> list[dict[str, Any]]:
    """Restore every image at every lam, all in one batch; one row per lam."""
    operator, noise = EXPERIMENTS[task].make_operator(SHAPE), EXPERIMENTS[task].noise
    y = operator.measure(x, noise, seed=1).repeat(len(lambdas), *[1] * (len(operator.measurement_shape)))
    truth = x.repeat(len(lambdas), 1, 1, 1)
    lam = torch.tensor(lambdas, device=x.device).repeat_interleave(len(x))
    problem = aipo.MapProblem(prior, operator, noise, y, precision)
    result = aipo.FixedLambda.decayed(evals - 1, 0.03).solve(problem, lam, aipo.initial.zero(problem))
    quality = psnr(result.x.clamp(0, 1), truth)
    rows = []
    for i, value in enumerate(lambdas):
        mine = slice(i * len(x), (i + 1) * len(x))
        rows.append(
            {
                "lam": value,
                "psnr": quality[mine].mean().item(),
                "psnr_se": (quality[mine].std() / len(x) ** 0.5).item(),
                "loss": result.loss[mine].mean().item(),
                "P": result.P[mine].mean().item(),
                "not_finite": sum(status != "done" for status in result.status[mine]),
            }
        )
    return rows


def measure(prior: aipo.Prior, args: argparse.Namespace, device: str) -> dict[str, Any]:
    data, evals = args.data, args.evals
    images = {key: load_images(data / path, mosaics=True) for key, path in SETS.items()}
    bits = {key: bits_per_dim(prior.flow, x, prior.bits).mean().item() for key, x in images.items()}
    print(f"{prior.name}: bits/dim", {k: round(v, 4) for k, v in bits.items()}, flush=True)
    mean_face = images["val"].float().mean(0, keepdim=True).to(device) / 255
    center = prior.flow.decode(torch.zeros(1, prior.flow.num_dims, device=device))
    samples = prior.sample(64, 0.7)
    report: dict[str, Any] = {
        "bits_per_dim": bits,
        "samples_inside": ((samples >= 0) & (samples <= 1)).float().mean().item(),
        "center_inside": ((center >= 0) & (center <= 1)).float().mean().item(),
        "center_psnr_to_mean_face": psnr(center.clamp(0, 1), mean_face).item(),
        "tasks": {},
    }
    print(f"  samples at 0.7 inside [0,1]: {report['samples_inside']:.4f};", end=" ")
    print(f"G(0) to the mean face: {report['center_psnr_to_mean_face']:.1f} dB", flush=True)
    val, test = (images[key].to(device).float() / 255 for key in ("val", "test"))
    for task in ("denoise", "inpaint", "ncs2000"):
        start = time.monotonic()
        tried = restore(prior, task, val[: args.choose_on], evals, GRID, args.precision)
        best = max(tried, key=lambda row: row["psnr"])["lam"]
        reported = tuple(sorted({*REPORTED, best}))
        rows = restore(prior, task, test[: args.count], evals, reported, args.precision)
        report["tasks"][task] = {"best_lam": best, "test": rows, "val": tried}
        for row in rows:
            mark = "<- best on val" if row["lam"] == best else ""
            print(
                f"  {task:8} lam {row['lam']:<4} {row['psnr']:6.2f} dB  not finite: {row['not_finite']} {mark}",
                flush=True,
            )
        print(f"  {task:8} took {time.monotonic() - start:.0f} s", flush=True)
    return report


def update_card(prior: aipo.Prior, path: Path, report: dict[str, Any]) -> None:
    """The same weights, with these numbers in the card."""
    metrics = {**prior.card["metrics"], **{f"bits_per_dim_{k}": round(v, 4) for k, v in report["bits_per_dim"].items()}}
    for task, found in report["tasks"].items():
        row = next(row for row in found["test"] if row["lam"] == found["best_lam"])
        metrics[f"psnr_{task}"] = {"lam": row["lam"], "dB": round(row["psnr"], 2)}
    save_prior_files(prior.flow.cpu(), {**prior.card, "metrics": metrics}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("priors", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50, help="test images")
    parser.add_argument("--choose-on", type=int, default=16, help="validation images on which lam is chosen")
    parser.add_argument("--evals", type=int, default=200)
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--update-cards", action="store_true", help="only for priors given as files")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": name,
        "torch": torch.__version__,
        "precision": args.precision,
        "test_images": args.count,
        "evaluations": args.evals,
        "priors": {},
    }
    for source in args.priors:
        prior = aipo.load_prior(source).to(device)
        measured = measure(prior, args, device)
        report["priors"][prior.name] = {"sha256": prior.card["sha256"], **measured}
        if args.json:
            save(args.json, report)
        if args.update_cards:
            update_card(prior, Path(source), measured)


if __name__ == "__main__":
    main()
