"""The likelihood of quantized images: what bits per dimension mean, in training and in reports."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aipo.flows import Flow

__all__ = ["bits_per_dim", "dequantize"]


def dequantize(images: Tensor, bits: int, noise: Tensor) -> Tensor:
    """uint8 images -> [0, 1): keep the top `bits` bits and add uniform noise within the quantization cell."""
    levels = 2**bits
    cells = images.div(256 // levels, rounding_mode="floor").to(noise.dtype)
    return (cells + noise) / levels


@torch.no_grad()
def bits_per_dim(flow: Flow, images: Tensor, bits: int = 5, batch: int = 200, seed: int = 0) -> Tensor:
    """Bits per dimension (N,) of uint8 images (N, C, H, W), one uniform dequantization each (unbiased bound)."""
    device = next(flow.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for chunk in images.split(batch):
        noise = torch.rand(chunk.shape, generator=generator).to(device)
        nats = -flow.log_prob(dequantize(chunk.to(device), bits, noise))
        parts.append(nats.cpu() / (flow.num_dims * math.log(2)) + bits)
    return torch.cat(parts)
