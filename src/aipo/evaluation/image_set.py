"""The images of a split: the user's own, or by default faces drawn from the prior, and the sample images."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.errors import InputError
from aipo.images import read_image, samples
from aipo.images.reading import existing_file
from aipo.priors.prior import Prior
from aipo.training.dataset import load_images

__all__ = ["ImageSet", "default_image_set", "read_image_set"]

DRAWN = 16
DRAWN_SEED = 2023
CELEBA_FOLDER = "img_align_celeba"
CELEBA_TEST = 200
CELEBA_SHAPE = (3, 218, 178)
# Left, top, right, bottom: the square of CelebA's aligned images, 178x218 pixels, in which their mean landmarks (eyes
# at 69, 111 and 107, 111) fall where those of the priors' training images do (eyes at 18.5, 19.3 and 45.5, 19.3 of 64).
CELEBA_BOX = (44, 84, 134, 174)


@dataclass(frozen=True)
class ImageSet:
    """Images (N, C, H, W) in [0, 1] on the CPU, and where they come from."""

    images: Tensor
    source: str

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the pixels."""
        return hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]


def read_image_set(path: Path, size: int, mosaics: bool) -> ImageSet:
    """All images of a folder, a file or an array, in the order of their names.

    A folder in CelebA's own layout gives the first 200 images of its official test split, cropped to the geometry of
    the embedded priors.
    """
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist")
    if os.path.isdir(path / CELEBA_FOLDER):
        return _read_celeba(path, size)
    if not os.path.isdir(path):
        existing_file(path)  # reading a pipe may never end
    return ImageSet(load_images(path, size, mosaics=mosaics).float() / 255, path.name)


def _read_celeba(path: Path, size: int) -> ImageSet:
    files = sorted(path.glob("list_eval_partition.*"))
    if not files:
        raise InputError(f"{path}: list_eval_partition.txt is missing; put it beside {CELEBA_FOLDER}")
    text = existing_file(files[0]).read_text(errors="replace")
    lines = [line.replace(",", " ").split() for line in text.splitlines()]
    names = sorted(words[0] for words in lines if len(words) == 2 and words[1] == "2")[:CELEBA_TEST]
    if not names:
        raise InputError(f"{files[0]}: it lists no image of the test partition (2)")
    crops = []
    for name in names:
        image = read_image(path / CELEBA_FOLDER / name, CELEBA_SHAPE)
        left, top, right, bottom = CELEBA_BOX
        crop = image[:, top:bottom, left:right][None]
        crops.append(F.interpolate(crop, (size, size), mode="bicubic", antialias=True, align_corners=False)[0])
    # To 8 bits, as images in files are.
    return ImageSet((255 * torch.stack(crops)).round().clamp(0, 255) / 255, f"{path.name}, test partition")


def default_image_set(prior: Prior, split: str) -> ImageSet | None:
    """What everyone has: `test` is drawn from the prior itself, so that the truth really comes from p_G; `ood` is not.

    Drawn at temperature 1 and clipped to [0, 1]. There is no default for other splits.
    """
    if split == "test":
        return ImageSet(prior.sample(DRAWN, seed=DRAWN_SEED).cpu().clamp(0, 1), f"drawn from {prior.name}")
    if split == "ood":
        images = [samples.load(name) for name in samples.names()]
        if tuple(images[0].shape) != prior.image_shape:
            shape = tuple(images[0].shape)
            raise InputError(f"the sample images are {shape}, but {prior.name} is for {prior.image_shape}; give --ood")
        return ImageSet(torch.stack(images), ", ".join(samples.names()))
    return None
