"""How well `estimate_sigma` does on real faces, as a share of the truth, against the usual estimate from R, G and B.

python benchmarks/sigma.py --data FOLDER [--images val] [--count 64]
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from priors import SETS
from torch import Tensor

from aipo.dataset import load_images
from aipo.sigma import MEDIAN_OF_NORMAL, estimate_sigma


def from_rgb(y: Tensor) -> Tensor:
    diagonal = (y[..., ::2, ::2] - y[..., 1::2, ::2] - y[..., ::2, 1::2] + y[..., 1::2, 1::2]) / 2
    return diagonal.flatten(1).abs().median(1).values / MEDIAN_OF_NORMAL


def as_jpeg(y: Tensor) -> Tensor:
    """As a JPEG file of quality 90 with colours at half the resolution has them, which is what most cameras write."""
    pictures = []
    for image in y:
        buffer = io.BytesIO()
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90, subsampling="4:2:0")
        pictures.append(torch.from_numpy(np.array(Image.open(buffer))).permute(2, 0, 1) / 255)
    return torch.stack(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="val", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=64)
    args = parser.parse_args()
    x = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True).float() / 255
    print("| sigma | picture | opponent colours: mean, spread | R, G and B |\n|---|---|---|---|")
    for sigma in (0.01, 0.02, 0.05, 0.1, 0.2):
        y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        rounded = (y.clamp(0, 1) * 255).round() / 255
        for kind, picture in (("float", y), ("8 bits", rounded), ("JPEG, half colours", as_jpeg(rounded))):
            ours, usual = estimate_sigma(picture) / sigma, from_rgb(picture) / sigma
            print(f"| {sigma} | {kind} | {ours.mean():.3f}, {ours.std():.3f} | {usual.mean():.3f}, {usual.std():.3f} |")


if __name__ == "__main__":
    main()
