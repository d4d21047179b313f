"""What a classical method makes of the same photograph, to be seen beside ours: `aipo restore --compare`.

denoise   non-local means: A. Buades et al., "A non-local algorithm for image denoising", 2005
inpaint   biharmonic functions: S. Damelin, N. Hoang, "On surface completion and image inpainting", 2018
superres  bicubic interpolation
deblur    Richardson-Lucy: L. Lucy, "An iterative technique for the rectification of observed distributions", 1974
demosaic  bilinear interpolation

Those that are not interpolations are scikit-image's. It is named by itself where it is missing: the extra `classical`
would bring BM3D too, which is for non-commercial use only.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.images.tiles import Tile, tiles
from aipo.restore.whole import Whole

__all__ = ["NAMES", "check_installed", "classical"]

NAMES = {
    "denoise": "non-local means",
    "inpaint": "biharmonic filling",
    "superres": "bicubic enlargement",
    "deblur": "Richardson-Lucy",
    "demosaic": "bilinear interpolation",
}
SIDE, MARGIN, MULTIPLE = 240, 48, 12  # of tiles; the multiple contains every factor
PATCH, DISTANCE, STRENGTH = 5, 6, 0.6  # of non-local means; the strength in units of sigma is scikit-image's advice
ITERATIONS = 20  # of Richardson-Lucy; more would amplify the noise


def check_installed(task: str) -> None:
    """`InputError` if the task's method needs a package that is not there."""
    if task in ("denoise", "inpaint", "deblur"):
        _restoration()


@torch.no_grad()
def classical(whole: Whole) -> Tensor:
    """A photograph restored by the classical method of its task: (C, H, W) in [0, 1]."""
    x = whole.y.new_empty(whole.shape)
    for tile in tiles(*whole.shape[1:], SIDE, MARGIN, MULTIPLE):
        missing = not whole.nothing_missing(tile)
        tile.put(x, _restored(whole, tile) if missing else whole.cut(tile)[0])
    if whole.observed is not None:
        x = torch.where(whole.observed, whole.y, x)
    return x.clamp(0, 1)


def _restored(whole: Whole, tile: Tile) -> Tensor:
    """A tile (C, h, w)."""
    y = whole.cut(tile)
    if whole.kernel is not None:
        return _richardson_lucy(y, whole.kernel)
    if whole.factor > 1:
        return F.interpolate(y, scale_factor=whole.factor, mode="bicubic")[0]
    if whole.observed is None:
        return _array_function(
            _restoration().denoise_nl_means,
            y[0],
            patch_size=PATCH,
            patch_distance=DISTANCE,
            h=STRENGTH * whole.sigma,
            sigma=whole.sigma,
        )
    observed = tile.cut(whole.observed)
    if len(observed) > 1:
        return _bilinear(y[0], observed)
    missing = ~observed[0].numpy()
    return _array_function(_restoration().inpaint_biharmonic, y[0], mask=missing, split_into_regions=True)


def _richardson_lucy(y: Tensor, kernel: Tensor) -> Tensor:
    """Deconvolve (1, C, h, w) to (C, h, w)."""
    height, width = kernel.shape
    odd = F.pad(kernel, (0, 1 - width % 2, 0, 1 - height % 2)).double().numpy()  # its middle is then scikit-image's
    # The method takes what lies beyond the border for black, and leaves a frame there.
    image = F.pad(y, (width, width, height, height), "replicate")[0].clamp(1e-3, 1).double().numpy()
    channels = [_restoration().richardson_lucy(channel, odd, ITERATIONS) for channel in image]
    return torch.from_numpy(np.stack(channels)).to(y)[:, height:-height, width:-width]


def _array_function(function: Any, y: Tensor, **options: Any) -> Tensor:
    """A function of scikit-image, of arrays (H, W, C), applied to (C, H, W)."""
    array = y.permute(1, 2, 0).double().numpy()
    return torch.from_numpy(np.ascontiguousarray(function(array, **options, channel_axis=-1))).permute(2, 0, 1).to(y)


def _bilinear(y: Tensor, observed: Tensor) -> Tensor:
    """Each color of a mosaic (C, H, W) as the mean of those around, the nearer the heavier."""
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(len(y), 1, 3, 3)
    weight = observed.to(y.dtype)
    sums = F.conv2d((y * weight)[None], kernel, padding=1, groups=len(y))
    return (sums / F.conv2d(weight[None], kernel, padding=1, groups=len(y)))[0]


def _restoration() -> Any:
    try:
        return importlib.import_module("skimage.restoration")
    except ImportError:
        raise InputError("--compare needs the package scikit-image: pip install scikit-image") from None
