"""The functions of `elementwise` as one GPU kernel each: every tensor is read and written once.

Sums inside a kernel are in float32, whatever the dtype of the activations.

Glow's coupling network is made of products of rows as well, one row per pixel. Its convolutions are either 1x1 or have
few channels on one side, and on those a library's convolution spends most of its time moving memory. Here a thin 3x3
convolution is one matrix product: with the nine neighbors of each pixel gathered beside each other, or with nine
results for each pixel that are then added up where they belong.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aipo.engine.kernels.convolution import Convolution
from aipo.engine.kernels.elementwise import shrinking
from aipo.flows.glow import ConvNet

__all__ = [
    "RowsConvNet",
    "add_to_first",
    "couple",
    "couple_backward",
    "first_half",
    "gather",
    "residual",
    "scatter",
    "shrinking",
    "silu",
    "silu_backward",
    "split",
]

BLOCK = 1024


def silu(u: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.empty_like(u)
    _silu[_grid(u)](u, u if bias is None else bias, out, u.numel(), u.shape[-1], bias is not None, BLOCK)
    return out


def silu_backward(g: Tensor, u: Tensor, bias: Tensor | None, plus: Tensor | None = None) -> Tensor:
    b, p = u if bias is None else bias, u if plus is None else plus
    _silu_backward[_grid(u)](g, u, b, p, u.numel(), u.shape[-1], bias is not None, plus is not None, BLOCK)
    return g


def residual(u: Tensor, bias: Tensor | None, w: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
    h, active = torch.empty_like(u), torch.empty_like(u)
    b, m = u if bias is None else bias, u if more is None else more
    has = (bias is not None, more is not None)
    _residual[_grid(u)](u, b, w, m, h, active, u.numel(), u.shape[-1], *has, BLOCK)
    return h, active


def first_half(h: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    out = h.new_empty(*h.shape[:-1], channels, dtype=dtype)
    _first_half[_grid(out)](h, out, out.numel(), h.shape[-1], channels, BLOCK)
    return out


def add_to_first(g: Tensor, extra: Tensor) -> None:
    total = g.numel() // 2
    grid = (triton.cdiv(total, BLOCK),)
    _add_to_first[grid](g, extra, total, g.shape[-1], extra.shape[-1], shrinking(extra.dtype), BLOCK)


def couple(h: Tensor, n: Tensor, bias: Tensor | None, limit: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    out, (grid, sums) = torch.empty_like(h), _by_image(h)
    b = n if bias is None else bias
    _couple[grid](h, n, b, out, sums, limit, h[0].numel() // 2, h.shape[-1], n.shape[-1], bias is not None, BLOCK)
    return out, sums, [h, n, b]


def couple_backward(g: Tensor, saved: list[Tensor], limit: float) -> Tensor:
    h, n, bias = saved
    g_n = torch.empty_like(n)
    # One lane for each pair of scale and shift, and for each channel of padding.
    lanes = n.shape[-1] - h.shape[-1] // 2
    total = n.numel() // n.shape[-1] * lanes
    grid = (triton.cdiv(total, BLOCK),)
    _couple_backward[grid](
        g, h, n, bias, g_n, limit, shrinking(n.dtype), total, lanes, h.shape[-1], n.shape[-1], bias is not n, BLOCK
    )
    return g_n


def split(h: Tensor, n: Tensor, bias: Tensor | None, limit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    half = h.shape[-1] // 2
    stays, g_h, (grid, sums) = h.new_empty(*h.shape[:-1], half), torch.empty_like(h), _by_image(h)
    g_n = torch.zeros_like(n)
    b = n if bias is None else bias
    _split[grid](
        h, n, b, stays, g_h, g_n, sums, limit, shrinking(n.dtype), h[0].numel() // 2, 2 * half, n.shape[-1],
        bias is not None, BLOCK,
    )  # fmt: skip
    return stays, sums, g_h, g_n


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


def _by_image(h: Tensor) -> tuple[tuple[int, int], Tensor]:
    """A grid over half of the channels, image by image, and the place for its partial sums."""
    parts = triton.cdiv(h[0].numel() // 2, BLOCK)
    return (len(h), parts), h.new_empty(len(h), parts)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _silu(u, bias, out, total, channels: tl.constexpr, biased: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(u + i, i < total).to(tl.float32)
    if biased:
        x += tl.load(bias + i % channels)
    tl.store(out + i, x * tl.sigmoid(x), i < total)


@triton.jit
def _silu_backward(
    g, u, bias, plus, total, channels: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, block: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(u + i, i < total).to(tl.float32)
    if biased:
        x += tl.load(bias + i % channels)
    sigmoid = tl.sigmoid(x)
    result = tl.load(g + i, i < total).to(tl.float32) * sigmoid * (1 + x * (1 - sigmoid))
    if added:
        result += tl.load(plus + i, i < total).to(tl.float32)
    tl.store(g + i, result, i < total)


@triton.jit
def _residual(
    u, bias, w, more, h, active, total, channels: tl.constexpr, biased: tl.constexpr, more_biased: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(u + i, i < total).to(tl.float32) + tl.load(w + i, i < total).to(tl.float32)
    if biased:
        x += tl.load(bias + i % channels)
    if more_biased:
        x += tl.load(more + i % channels)
    tl.store(h + i, x, i < total)
    tl.store(active + i, x * tl.sigmoid(x), i < total)


@triton.jit
def _first_half(h, out, total, channels: tl.constexpr, padded: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, column = i // padded, i % padded
    x = tl.load(h + row * channels + column, (i < total) & (column < channels // 2), other=0.0)
    tl.store(out + i, x, i < total)


@triton.jit
def _add_to_first(g, extra, total, channels: tl.constexpr, padded: tl.constexpr, scale, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    half: tl.constexpr = channels // 2
    row, column = i // half, i % half
    where = g + row * channels + column
    more = tl.load(extra + row * padded + column, i < total).to(tl.float32)
    tl.store(where, tl.load(where, i < total) + scale * more, i < total)


@triton.jit
def _couple(
    h, n, bias, out, sums, limit, per_image, channels: tl.constexpr, padded: tl.constexpr, biased: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = channels // 2
    j = tl.program_id(1) * block + tl.arange(0, block)
    inside = j < per_image
    i = tl.program_id(0).to(tl.int64) * per_image + j
    row, column = i // half, i % half
    s = tl.load(n + row * padded + column, inside, other=0.0).to(tl.float32)
    t = tl.load(n + row * padded + half + column, inside, other=0.0).to(tl.float32)
    if biased:
        s += tl.load(bias + column)
        t += tl.load(bias + half + column)
    s = limit * _tanh(s)
    here = row * channels + column
    a, b = tl.load(h + here, inside), tl.load(h + here + half, inside)
    tl.store(out + here, a, inside)
    tl.store(out + here + half, b * tl.exp(s) + t, inside)
    total = tl.sum(tl.where(inside, s, 0.0), 0)
    tl.store(sums + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), total)


@triton.jit
def _couple_backward(
    g, h, n, bias, g_n, limit, shrink, total, lanes: tl.constexpr, channels: tl.constexpr, padded: tl.constexpr,
    biased: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = channels // 2
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, column = i // lanes, i % lanes
    inside, real = i < total, (i < total) & (column < half)
    s = tl.load(n + row * padded + column, real, other=0.0).to(tl.float32)
    if biased:
        s += tl.load(bias + column, real, other=0.0)
    tanh = _tanh(s)
    here = row * channels + half + column
    g_t = tl.load(g + here, real, other=0.0)
    g_b = g_t * tl.exp(limit * tanh)
    g_s = (g_b * tl.load(h + here, real, other=0.0) + 1) * limit * (1 - tanh * tanh)
    tl.store(g + here, g_b, real)
    tl.store(g_n + row * padded + column, g_s / shrink, real)
    # Lanes beyond the real ones fill the padding with zeros.
    tl.store(g_n + row * padded + half + column, g_t / shrink, inside)


@triton.jit
def _split(
    h, n, bias, stays, g_h, g_n, sums, limit, shrink, per_image, channels: tl.constexpr, padded: tl.constexpr,
    biased: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = channels // 2
    j = tl.program_id(1) * block + tl.arange(0, block)
    inside = j < per_image
    i = tl.program_id(0).to(tl.int64) * per_image + j
    row, column = i // half, i % half
    s = tl.load(n + row * padded + column, inside, other=0.0).to(tl.float32)
    t = tl.load(n + row * padded + half + column, inside, other=0.0).to(tl.float32)
    if biased:
        s += tl.load(bias + column)
        t += tl.load(bias + half + column)
    tanh = _tanh(s)
    here = row * channels + column
    tl.store(stays + i, tl.load(h + here, inside), inside)
    small = tl.exp(-limit * tanh)
    z = (tl.load(h + here + half, inside, other=0.0) - t) * small
    tl.store(g_h + here, z * 0, inside)
    tl.store(g_h + here + half, -z * small, inside)
    tl.store(g_n + row * padded + column, (z * z - 1) * limit * (1 - tanh * tanh) / shrink, inside)
    tl.store(g_n + row * padded + half + column, z * small / shrink, inside)
    total = tl.sum(tl.where(inside, -0.5 * z * z - limit * tanh, 0.0), 0)
    tl.store(sums + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), total)


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
        v = silu(u, self.first_bias) @ self.middle
        return scatter(silu(v, self.middle_bias) @ self.last, a.shape[:3], self.outputs, 1), [u, v]

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor:
        u, v = saved
        g_v = silu_backward(gather(g, -1) @ self.last_back, v, self.middle_bias)
        g_u = silu_backward(g_v @ self.middle_back, u, self.first_bias)
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
