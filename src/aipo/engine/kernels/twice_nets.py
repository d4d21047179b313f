"""What happens between two convolutions of a network, on the way there and on the way back, differentiable once more.

    enter      h = scale u + shift, p = SiLU(h)          after the first convolution
    activate   r = SiLU(v)                               inside a residual block
    add        h' = h + w, p = SiLU(h')                  after it

Each is an `autograd.Function`, whose derivative is one kernel again. With d = SiLU' and e = SiLU'':

    activate             g_v = g d(v)
    activate_backward    q = g d(v)         g_g = G d(v),  g_v = G g e(v)
    add                  g_h = g_w = g_h' + g_p d(h')
    add_backward         q = g + a d(h)     g_g = G,  g_a = G d(h),  g_h = G a e(h)
    enter                t = g_h + g_p d(h):  g_u = scale t,  sums of t u and of t

Activations are channels last, (B, C, H, W); arithmetic and sums are in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

__all__ = [
    "BLOCK",
    "ROWS",
    "Activate",
    "ActivateBackward",
    "Add",
    "AddBackward",
    "Enter",
    "Scale",
    "grid",
    "like",
    "sums",
    "tile",
]

# Kernels walk through all values in a row, or through tiles of positions whose sums are taken.
BLOCK = 1024  # values for a program
ROWS = 64  # positions in a tile of a kernel that sums over positions


def grid(x: Tensor) -> tuple[int]:
    """One program for each block of values."""
    return (triton.cdiv(x.numel(), BLOCK),)


def like(x: Tensor, *others: Tensor) -> list[Tensor]:
    """Tensors in the memory layout of x: kernels walk through memory, whatever the shape is called."""
    return [o if o.stride() == x.stride() else torch.empty_like(x).copy_(o) for o in others]


def sums(x: Tensor, count: int) -> tuple[tuple[int, int], Tensor]:
    """A grid of tiles of positions, image by image, and the place for their partial sums (B, tiles, count)."""
    tiles = triton.cdiv(x.shape[2] * x.shape[3], ROWS)
    return (len(x), tiles), torch.empty(len(x), tiles, count, device=x.device)


def tile(x: Tensor) -> tuple[int, int, int, int]:
    """Positions and channels of activations (B, C, H, W), and the tile that covers all channels of some positions."""
    return x.shape[2] * x.shape[3], x.shape[1], ROWS, triton.next_power_of_2(x.shape[1])


class Activate(Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        out = torch.empty_like(v)
        _silu[grid(v)](v, out, v.numel(), BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return _sloped(g, v)


class ActivateBackward(Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, v: Tensor) -> Tensor:
        (g,) = like(v, g)
        ctx.save_for_backward(g, v)
        return _sloped(g, v)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor]:
        return _bent(G, *ctx.saved_tensors)


class Add(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        (w,) = like(h, w)
        out, active = torch.empty_like(h), torch.empty_like(h)
        _add[grid(h)](h, w, out, active, h.numel(), BLOCK)
        ctx.save_for_backward(out)
        return out, active

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_active: Tensor) -> tuple[Tensor, Tensor]:
        (h,) = ctx.saved_tensors
        total = _added(g, g_active, h)
        return total, total


class AddBackward(Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, g_active: Tensor, h: Tensor) -> Tensor:
        g, g_active = like(h, g, g_active)
        ctx.save_for_backward(g_active, h)
        return _added(g, g_active, h)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (G, *_bent(G, *ctx.saved_tensors))


class Enter(Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, film: Tensor) -> tuple[Tensor, Tensor]:
        h, active = torch.empty_like(u), torch.empty_like(u)
        _enter[grid(u)](u, film, h, active, u.numel(), u[0].numel(), film.stride(0), u.shape[1], BLOCK)
        ctx.save_for_backward(u, h, film)
        return h, active

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_active: Tensor) -> tuple[Tensor, Tensor]:
        u, h, film = ctx.saved_tensors
        g, g_active = like(u, g, g_active)
        g_u, (programs, partial) = torch.empty_like(u), sums(u, film.shape[1])
        _enter_backward[programs](g, g_active, u, h, film, g_u, partial, film.stride(0), *tile(u))
        return g_u, partial.sum(1)


class Scale(Function):
    """scale g, with the scale of `Enter`."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, film: Tensor) -> Tensor:
        ctx.save_for_backward(g, film)
        out = torch.empty_like(g)
        _scale[grid(g)](g, film, out, g.numel(), g[0].numel(), film.stride(0), g.shape[1], BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor]:
        g, film = ctx.saved_tensors
        (G,) = like(g, G)
        g_g, (programs, partial) = torch.empty_like(g), sums(g, film.shape[1])
        _scale_backward[programs](G, g, film, g_g, partial, film.stride(0), *tile(g))
        return g_g, partial.sum(1)


def _sloped(g: Tensor, v: Tensor) -> Tensor:
    """g d(v)."""
    (g,) = like(v, g)
    out = torch.empty_like(v)
    _silu_backward[grid(v)](g, v, out, v.numel(), BLOCK)
    return out


def _added(g: Tensor, g_active: Tensor, h: Tensor) -> Tensor:
    """g + g_active d(h)."""
    g, g_active = like(h, g, g_active)
    out = torch.empty_like(h)
    _add_backward[grid(h)](g, g_active, h, out, h.numel(), BLOCK)
    return out


def _bent(G: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """G d(v) and G g e(v)."""
    (G,) = like(v, G)
    g_g, g_v = torch.empty_like(v), torch.empty_like(v)
    _silu_twice[grid(v)](G, g, v, g_g, g_v, v.numel(), BLOCK)
    return g_g, g_v


@triton.jit
def _silu(v, out, total, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(v + i, i < total).to(tl.float32)
    tl.store(out + i, x * tl.sigmoid(x), i < total)


@triton.jit
def _silu_backward(g, v, out, total, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(v + i, i < total).to(tl.float32)
    sigmoid = tl.sigmoid(x)
    tl.store(out + i, tl.load(g + i, i < total).to(tl.float32) * sigmoid * (1 + x * (1 - sigmoid)), i < total)


@triton.jit
def _silu_twice(G, g, v, g_g, g_v, total, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(v + i, i < total).to(tl.float32)
    upper = tl.load(G + i, i < total).to(tl.float32)
    sigmoid = tl.sigmoid(x)
    tl.store(g_g + i, upper * sigmoid * (1 + x * (1 - sigmoid)), i < total)
    bend = sigmoid * (1 - sigmoid) * (2 + x * (1 - 2 * sigmoid))
    tl.store(g_v + i, upper * tl.load(g + i, i < total).to(tl.float32) * bend, i < total)


@triton.jit
def _add(h, w, out, active, total, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(h + i, i < total).to(tl.float32) + tl.load(w + i, i < total).to(tl.float32)
    tl.store(out + i, x, i < total)
    tl.store(active + i, x * tl.sigmoid(x), i < total)


@triton.jit
def _add_backward(g, g_active, h, out, total, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(h + i, i < total).to(tl.float32)
    sigmoid = tl.sigmoid(x)
    more = tl.load(g_active + i, i < total).to(tl.float32) * sigmoid * (1 + x * (1 - sigmoid))
    tl.store(out + i, tl.load(g + i, i < total).to(tl.float32) + more, i < total)


@triton.jit
def _enter(u, film, h, active, total, per_image, stride, channels: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    where = film + (i // per_image) * stride + i % channels
    x = tl.load(u + i, i < total).to(tl.float32)
    x = x * (1 + tl.load(where, i < total)) + tl.load(where + channels, i < total)
    tl.store(h + i, x, i < total)
    tl.store(active + i, x * tl.sigmoid(x), i < total)


@triton.jit
def _enter_backward(
    g, g_active, u, h, film, g_u, sums, stride, positions, channels: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = part * rows + tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    inside = (row < positions) & (column < channels)
    i = (image * positions + row) * channels + column
    x = tl.load(h + i, inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(x)
    t = tl.load(g_active + i, inside, other=0.0).to(tl.float32) * sigmoid * (1 + x * (1 - sigmoid))
    t += tl.load(g + i, inside, other=0.0).to(tl.float32)
    tl.store(g_u + i, t * (1 + tl.load(film + image * stride + column, column < channels, other=0.0)), inside)
    tile = sums + (image * tl.num_programs(1) + part) * (2 * channels) + tl.arange(0, columns)
    real = tl.arange(0, columns) < channels
    tl.store(tile, tl.sum(t * tl.load(u + i, inside, other=0.0).to(tl.float32), 0), real)
    tl.store(tile + channels, tl.sum(t, 0), real)


@triton.jit
def _scale(g, film, out, total, per_image, stride, channels: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    scale = 1 + tl.load(film + (i // per_image) * stride + i % channels, i < total)
    tl.store(out + i, tl.load(g + i, i < total).to(tl.float32) * scale, i < total)


@triton.jit
def _scale_backward(
    G, g, film, g_g, sums, stride, positions, channels: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = part * rows + tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    inside = (row < positions) & (column < channels)
    i = (image * positions + row) * channels + column
    upper = tl.load(G + i, inside, other=0.0).to(tl.float32)
    tl.store(g_g + i, upper * (1 + tl.load(film + image * stride + column, column < channels, other=0.0)), inside)
    of_scale = tl.sum(upper * tl.load(g + i, inside, other=0.0).to(tl.float32), 0)
    tile = sums + (image * tl.num_programs(1) + part) * (2 * channels) + tl.arange(0, columns)
    real = tl.arange(0, columns) < channels
    tl.store(tile, of_scale, real)
    tl.store(tile + channels, tl.zeros_like(of_scale), real)
