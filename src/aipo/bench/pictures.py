"""The images of a split: the user's own, or by default faces drawn from the prior, and the sample pictures."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aipo import samples
from aipo.dataset import load_images
from aipo.errors import InputError
from aipo.prior import Prior

__all__ = ["Pictures", "default_pictures", "read_pictures"]

DRAWN = 16
DRAWN_SEED = 2023


@dataclass(frozen=True)
class Pictures:
    """Images (N, C, H, W) in [0, 1] on the CPU, where they come from, and a hash of their content."""

    images: Tensor
    source: str

    def __len__(self) -> int:
        return len(self.images)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]


def read_pictures(path: Path, size: int, mosaics: bool) -> Pictures:
    """All pictures of a folder, a file or an array, in the order of their names."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    return Pictures(load_images(path, size, mosaics=mosaics).float() / 255, path.name)


def default_pictures(prior: Prior, split: str) -> Pictures | None:
    """What everyone has: `test` is drawn from the prior itself, so that the truth really comes from p_G; `ood` is not.

    Drawn at temperature 1 and clipped to [0, 1]. There is no default for other splits.
    """
    if split == "test":
        return Pictures(prior.sample(DRAWN, seed=DRAWN_SEED).cpu().clamp(0, 1), f"drawn from {prior.name}")
    if split == "ood":
        pictures = [samples.load(name) for name in samples.names()]
        if tuple(pictures[0].shape) != prior.image_shape:
            raise InputError(f"the sample pictures are {tuple(pictures[0].shape)}, the prior wants {prior.image_shape}")
        return Pictures(torch.stack(pictures), ", ".join(samples.names()))
    return None
