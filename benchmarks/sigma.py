"""How well `estimate_sigma` does on real faces, and what a wrong sigma costs.

    python benchmarks/sigma.py --data FOLDER [--images val] [--count 64]
    python benchmarks/sigma.py --data FOLDER --wrong [--prior celeba64-realnvp-small] [--tasks denoise] [--count 8]

The first prints the estimate as a share of the truth, against the usual estimate from R, G and B. The second restores
with `choose_lambda`, given a sigma that is off by a factor, in the paper's four tasks.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import aipo
from aipo.choose.sigma import estimate_sigma
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.training.dataset import load_images
from aipo.transforms.haar import MEDIAN_OF_NORMAL
from priors import SETS

FACTORS = (1.0, 0.7, 0.9, 1.1, 1.3)


def from_rgb(y: Tensor) -> Tensor:
    diagonal = (y[..., ::2, ::2] - y[..., 1::2, ::2] - y[..., ::2, 1::2] + y[..., 1::2, 1::2]) / 2
    return diagonal.flatten(1).abs().median(1).values / MEDIAN_OF_NORMAL


def as_jpeg(y: Tensor) -> Tensor:
    """As a JPEG file of quality 90 with colors at half the resolution has them, which is what most cameras write."""
    pictures = []
    for image in y:
        buffer = io.BytesIO()
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90, subsampling="4:2:0")
        pictures.append(torch.from_numpy(np.array(Image.open(buffer))).permute(2, 0, 1) / 255)
    return torch.stack(pictures)


def wrong_sigma(x: Tensor, prior: aipo.Prior, tasks: list[str]) -> None:
    """For each task and factor: what is chosen, how many sigma are replaced, and what is lost against the right one."""
    print("| task | sigma given / true | replaced | chosen lam | PSNR | best of the path | lost |\n|---|" + "---|" * 6)
    for task in tasks:
        experiment = EXPERIMENTS[task]
        operator = experiment.make_operator(prior.image_shape)
        y = operator.measure(x, experiment.noise, seed=1)
        right = None
        # The first one is right, and taken as it is.
        for factor, trust in ((1.0, True), *((f, False) for f in FACTORS)):
            problem = aipo.MapProblem(prior, operator, aipo.Gaussian(factor * experiment.sigma), y)
            choice = aipo.choose_lambda(problem, trust_sigma=trust)
            found = psnr(choice.x, x).mean().item()
            along = torch.stack([psnr(image, x) for image in choice.path.x.unbind(1)], dim=1)
            best = along.nan_to_num(-torch.inf).amax(1).mean().item()
            right = found if right is None else right
            given = f"{factor}, trusted" if trust else f"{factor}"
            replaced = f"{int(choice.sigma_replaced.sum())} of {len(x)}"
            numbers = (choice.lam.mean().item(), found, best, right - found)
            row = (task, given, replaced, *(f"{number:.2f}" for number in numbers))
            print("| " + " | ".join(row) + " |", flush=True)


def psnr(image: Tensor, x: Tensor) -> Tensor:
    return aipo.metrics.psnr(image.clamp(0, 1), x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="val", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--wrong", action="store_true", help="what a wrong sigma costs")
    parser.add_argument("--prior", default="celeba64-realnvp-small")
    parser.add_argument("--tasks", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    args = parser.parse_args()
    x = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).float() / 255
    if args.wrong:
        wrong_sigma(x, aipo.load_prior(args.prior), args.tasks)
        return
    print("| sigma | picture | opponent colors: mean, spread | R, G and B |\n|---|---|---|---|")
    for sigma in (0.01, 0.02, 0.05, 0.1, 0.2):
        y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        rounded = (y.clamp(0, 1) * 255).round() / 255
        for kind, picture in (("float", y), ("8 bits", rounded), ("JPEG, half colors", as_jpeg(rounded))):
            ours, usual = estimate_sigma(picture) / sigma, from_rgb(picture) / sigma
            print(f"| {sigma} | {kind} | {ours.mean():.3f}, {ours.std():.3f} | {usual.mean():.3f}, {usual.std():.3f} |")


if __name__ == "__main__":
    main()
