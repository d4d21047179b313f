"""The images of a split: the user's own, or by default faces drawn from the prior, and the sample pictures."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo import samples
from aipo.dataset import load_images
from aipo.errors import InputError
from aipo.images import read_image
from aipo.prior import Prior

__all__ = ["Pictures", "default_pictures", "read_pictures"]

DRAWN = 16
DRAWN_SEED = 2023
CELEBA_FOLDER = "img_align_celeba"
CELEBA_TEST = 200
CELEBA_SHAPE = (3, 218, 178)
# Of the 178x218 pixels of CelebA's aligned images, the square in which their mean landmarks (eyes at 69, 111 and 107,
# 111) fall where those of the priors' training images do (eyes at 18.5, 19.3 and 45.5, 19.3 of 64).
CELEBA_BOX = (44, 84, 134, 174)


@dataclass(frozen=True)
class Pictures:
    """Images (N, C, H, W) in [0, 1] on the CPU, where they come from, and a hash of their content."""

    images: Tensor
    source: str

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]


def read_pictures(path: Path, size: int, mosaics: bool) -> Pictures:
    """All pictures of a folder, a file or an array, in the order of their names.

    A folder in CelebA's own layout gives the first 200 images of its official test split, cropped to the geometry of
    the embedded priors.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if (path / CELEBA_FOLDER).is_dir():
        return _read_celeba(path, size)
    return Pictures(load_images(path, size, mosaics=mosaics).float() / 255, path.name)


def _read_celeba(path: Path, size: int) -> Pictures:
    files = sorted(path.glob("list_eval_partition.*"))
    if not files:
        raise InputError(f"{path}: list_eval_partition.txt is missing beside {CELEBA_FOLDER}")
    lines = [line.replace(",", " ").split() for line in files[0].read_text().splitlines()]
    names = sorted(words[0] for words in lines if len(words) == 2 and words[1] == "2")[:CELEBA_TEST]
    if not names:
        raise InputError(f"{files[0]}: no image of the test partition (2)")
    pictures = []
    for name in names:
        image = read_image(path / CELEBA_FOLDER / name, CELEBA_SHAPE)
        left, top, right, bottom = CELEBA_BOX
        crop = image[:, top:bottom, left:right][None]
        pictures.append(F.interpolate(crop, (size, size), mode="bicubic", antialias=True, align_corners=False)[0])
    # To 8 bits, as pictures are.
    return Pictures((255 * torch.stack(pictures)).round().clamp(0, 255) / 255, f"{path.name}, test partition")


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
