"""PSNR of the classical methods over their weights, on validation faces: what `aipo.evaluation.classical` fixes.

python benchmarks/classical.py --data FOLDER [--count 12]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import aipo
from aipo.evaluation import classical
from aipo.evaluation.chunk import Chunk
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.images.metrics import psnr
from aipo.training.dataset import load_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12)
    args = parser.parse_args()
    prior = aipo.load_prior("celeba64-realnvp-small")
    truth = load_images(args.data / "celeba64/val1000.webp", limit=args.count, mosaics=True).float() / 255
    grids = {
        "tv": ("TV_WEIGHT", (0.06, 0.08, 0.1, 0.12)),
        "wavelets": ("WAVELET_WEIGHT", (0.04, 0.08, 0.16, 0.32)),
    }
    for name, methods in classical.CLASSICAL.items():
        for task, method in methods.items():
            operator = EXPERIMENTS[task].make_operator(prior.image_shape)
            numbers = tuple(range(len(truth)))
            chunk = Chunk(prior, EXPERIMENTS[task], operator, truth, numbers, (), 0, "exact", {})
            constant, values = grids.get(name, (None, (None,)))
            for value in values:
                if constant:
                    setattr(classical, constant, value)
                found = psnr(method(chunk).clamp(0, 1), truth)
                print(f"{name:12} {task:8} {value or '':<6} {found.mean():.2f} dB", flush=True)


if __name__ == "__main__":
    main()
