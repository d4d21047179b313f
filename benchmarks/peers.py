"""Denoisers that users would pick instead of ours: FFDNet, DnCNN and BM3D.

The weights of the two networks come from a folder of the user's (their repositories state no license): one
`.safetensors` each, layer i as `i.weight` and `i.bias`, 3x3 convolutions with ReLU between them.

References: K. Zhang, W. Zuo, L. Zhang, "FFDNet", 2018; K. Zhang et al., "Beyond a Gaussian denoiser" (DnCNN), 2017;
Y. Mäkinen, L. Azzari, A. Foi, "Collaborative filtering of correlated noise" (the `bm3d` package), 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

__all__ = ["Denoiser", "bm3d", "load_peers"]

Denoiser = Callable[[Tensor, float], Tensor]  # images (B, 3, H, W) and sigma -> images


class Layers:
    """The convolutions of one file."""

    def __init__(self, path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32):
        tensors = load_file(path)
        count = 1 + max(int(name.split(".")[0]) for name in tensors)
        self.layers = [[tensors[f"{i}.{kind}"].to(device, dtype) for kind in ("weight", "bias")] for i in range(count)]

    def __call__(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(self.layers):
            x = F.conv2d(x, weight, bias, padding=1)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x


class FFDNet(Layers):
    def __call__(self, y: Tensor, sigma: float) -> Tensor:  # type: ignore[override]
        height, width = y.shape[2:]
        even = F.pad(y, (0, width % 2, 0, height % 2), mode="replicate")
        small = F.pixel_unshuffle(even, 2)
        level = torch.full_like(small[:, :1], sigma)
        return F.pixel_shuffle(super().__call__(torch.cat([small, level], dim=1)), 2)[..., :height, :width]


class DnCNN(Layers):
    """Trained for one sigma, 25/255; it ignores the one it is given."""

    def __call__(self, y: Tensor, sigma: float) -> Tensor:  # type: ignore[override]
        return y - super().__call__(y)


def load_peers(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Denoiser]:
    return {
        "FFDNet": FFDNet(folder / "ffdnet_color.safetensors", device, dtype),
        "DnCNN": DnCNN(folder / "dncnn_color_sigma25.safetensors", device, dtype),
    }


def bm3d(y: Tensor, sigma: float) -> Tensor:
    """CBM3D with the package's defaults."""
    import bm3d as package

    images = [package.bm3d_rgb(image.permute(1, 2, 0).double().numpy(), sigma) for image in y]
    return torch.stack([torch.from_numpy(image).permute(2, 0, 1).to(y) for image in images])
