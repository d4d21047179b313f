"""Glow's coupling network as products of rows, one row per pixel, for GPUs.

Its convolutions are either 1x1 or have few channels on one side, and on those a library's convolution spends most of
its time moving memory. Here a thin 3x3 convolution is one matrix product: with the nine neighbors of each pixel
gathered beside each other, or with nine results for each pixel that are then added up where they belong.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aipo.engine.kernels import fused
from aipo.engine.kernels.convolution import Convolution
from aipo.flows.glow import ConvNet

__all__ = ["RowsConvNet", "gather", "scatter"]

BLOCK = 1024


class RowsConvNet:
    """See `FrozenConvNet`, which computes the same."""

    def __init__(self, net: ConvNet, dtype: torch.dtype, row_scale: Tensor):
        first, middle = Convolution.of(net.first, dtype), Convolution.of(net.middle, dtype)
        last = Convolution.of(net.last, dtype, row_scale)
        self.inputs, self.outputs, self.bias = first.inputs, last.outputs, last.bias
        self.first_bias, self.middle_bias = first.bias, middle.bias
        # Kernels (O, I, 3, 3) as (9 I, O) for gathered neighbors, and as (I, 9 O) for results to be scattered.
        self.first = first.weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous()
        self.first_back = first.weight.permute(0, 2, 3, 1).flatten(1).contiguous()
        self.middle_back = middle.weight[:, :, 0, 0].contiguous()
        self.middle = self.middle_back.T.contiguous()
        self.last = last.weight.permute(1, 2, 3, 0).flatten(1).contiguous()
        self.last_back = last.weight.permute(2, 3, 0, 1).flatten(0, 2).contiguous()

    def forward(self, a: Tensor) -> tuple[Tensor, list[Tensor]]:
        u = gather(a, 1) @ self.first
        v = fused.silu(u, self.first_bias) @ self.middle
        return scatter(fused.silu(v, self.middle_bias) @ self.last, a.shape[:3], self.outputs, 1), [u, v]

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor:
        u, v = saved
        g_v = fused.silu_backward(gather(g, -1) @ self.last_back, v, self.middle_bias)
        g_u = fused.silu_backward(g_v @ self.middle_back, u, self.first_bias)
        return scatter(g_u @ self.first_back, g.shape[:3], self.inputs, -1)


def gather(x: Tensor, sign: int) -> Tensor:
    """(B, H, W, C) -> (B H W, 9 C): at each pixel its nine neighbors, mirrored for sign -1, zero outside.

    C must be a multiple of four, in half precision: four channels are moved as one number.
    """
    batch, height, width, channels = x.shape
    out = x.new_empty(batch * height * width, 9 * channels)
    total = out.numel() // 4
    grid = (triton.cdiv(total, BLOCK),)
    _gather[grid](x.view(torch.int64), out.view(torch.int64), total, height, width, channels // 4, sign, BLOCK)
    return out


def scatter(q: Tensor, shape: torch.Size, channels: int, sign: int) -> Tensor:
    """(B H W, 9 C) -> (B, H, W, C): the sum of what the nine neighbors have for each pixel."""
    out = q.new_empty(*shape, channels)
    _, height, width = shape
    _scatter[(triton.cdiv(out.numel(), BLOCK),)](q, out, out.numel(), height, width, channels, sign, BLOCK)
    return out


@triton.jit
def _gather(x, out, total, height, width, channels: tl.constexpr, sign: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    pixel, rest = i // (9 * channels), (i % (9 * channels)).to(tl.int32)
    tap, channel = rest // channels, rest % channels
    down, right = sign * (tap // 3 - 1), sign * (tap % 3 - 1)
    place = (pixel % (height * width)).to(tl.int32)
    row, column = place // width + down, place % width + right
    inside = (i < total) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    value = tl.load(x + (pixel + down * width + right) * channels + channel, inside, other=0)
    tl.store(out + i, value, i < total)


@triton.jit
def _scatter(q, out, total, height, width, channels: tl.constexpr, sign: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    pixel, channel = i // channels, i % channels
    place = (pixel % (height * width)).to(tl.int32)
    row, column = place // width, place % width
    result = tl.zeros([block], tl.float32)
    for tap in tl.static_range(9):
        down, right = sign * (tap // 3 - 1), sign * (tap % 3 - 1)
        inside = (i < total) & (row + down >= 0) & (row + down < height)
        inside = inside & (column + right >= 0) & (column + right < width)
        where = (pixel + down * width + right) * (9 * channels) + tap * channels + channel
        result += tl.load(q + where, inside, other=0.0).to(tl.float32)
    tl.store(out + i, result, i < total)
