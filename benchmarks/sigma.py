"""How well `estimate_sigma` does on real faces, and what a wrong sigma costs.

    python benchmarks/sigma.py --data FOLDER [--images val] [--count 64]
    python benchmarks/sigma.py --data FOLDER --wrong [--prior celeba64-realnvp-small] [--count 8]

The first prints the estimate as a share of the truth, against the usual estimate from R, G and B. The second denoises
with `choose_lambda`, given a sigma that is off by a factor.
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
from aipo.training.dataset import load_images
from aipo.transforms.haar import MEDIAN_OF_NORMAL
from priors import SETS

SIGMA, FACTORS = 0.1, (1.0, 0.7, 0.9, 1.1, 1.3)


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


def wrong_sigma(x: Tensor, prior: aipo.Prior) -> None:
    """PSNR of what is chosen, and of the best image of its path, for each factor."""
    operator = aipo.operators.Denoising(prior.image_shape)
    y = operator.measure(x, aipo.Gaussian(SIGMA), seed=1)
    print("| sigma given / true | chosen lam | PSNR | best of the path | lost |\n|---|---|---|---|---|")
    right = None
    for factor in FACTORS:
        choice = aipo.choose_lambda(aipo.MapProblem(prior, operator, aipo.Gaussian(factor * SIGMA), y))
        found = psnr(choice.x, x)
        along = torch.stack([psnr(image, x) for image in choice.path.x.unbind(1)], dim=1)
        best = along.nan_to_num(-torch.inf).amax(1).mean().item()
        right = found if right is None else right
        lost = right.mean().item() - found.mean().item()
        print(f"| {factor} | {choice.lam.mean():.2f} | {found.mean():.2f} | {best:.2f} | {lost:.2f} |", flush=True)


def psnr(image: Tensor, x: Tensor) -> Tensor:
    return aipo.metrics.psnr(image.clamp(0, 1), x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="val", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--wrong", action="store_true", help="what a wrong sigma costs")
    parser.add_argument("--prior", default="celeba64-realnvp-small")
    args = parser.parse_args()
    x = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).float() / 255
    if args.wrong:
        wrong_sigma(x, aipo.load_prior(args.prior))
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
