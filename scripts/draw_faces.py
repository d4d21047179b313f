"""Draw faces from an embedded prior into a folder: something free to train on, or to corrupt and restore.

python scripts/draw_faces.py FOLDER [--count 500] [--prior celeba64-realnvp-small] [--temperature 0.8] [--seed 0]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import aipo
from aipo.cli import DEFAULT_PRIOR
from aipo.files import ensure_folder
from aipo.images import write_image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--prior", default=DEFAULT_PRIOR)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    ensure_folder(args.folder)
    prior = aipo.load_prior(args.prior)
    generator = torch.Generator().manual_seed(args.seed)
    for start in range(0, args.count, 50):
        faces = prior.sample(min(50, args.count - start), args.temperature, generator)
        for i, face in enumerate(faces, start):
            write_image(args.folder / f"face-{i:05d}.png", face)
    print(f"wrote {args.count} faces to {args.folder}")


if __name__ == "__main__":
    main()
