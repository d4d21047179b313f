"""Measure the Gaussian surrogate of priors on training images and write it into their cards (weights unchanged).

python scripts/measure_surrogates.py IMAGES PRIOR.safetensors [PRIOR.safetensors ...] [--mosaics]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aipo.priors.files import load_prior_files, save_prior_files
from aipo.priors.surrogate import measure_surrogate
from aipo.training.dataset import load_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("priors", type=Path, nargs="+")
    parser.add_argument("--mosaics", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for path in args.priors:
        prior = load_prior_files(path).to(device)
        images = load_images(args.images, prior.image_shape[-1], limit=4096, mosaics=args.mosaics)
        surrogate = measure_surrogate(prior.gradient, images.to(device).float() / 255)
        save_prior_files(prior.flow.cpu(), {**prior.card, "surrogate": surrogate}, path)
        print(f"{path.stem}: curvature from {surrogate['curvature'][0][0]:g} to {surrogate['curvature'][0][-1]:g}")


if __name__ == "__main__":
    main()
