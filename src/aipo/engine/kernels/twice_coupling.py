"""A coupling given the last convolution of its network, on the way there and on the way back, differentiable once more.

The pixels of an image are rows and its bands are columns, (B, H, W, 12). A coupling sees and changes all of them: a
mask says which ones it really changes. With o the convolution's output, in float32,

    n = scale o + shift,   s = mask L tanh(n_s / L),   out = h exp(s) + mask n_t.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from aipo.engine.kernels.twice_nets import ROWS, like, sums
from aipo.flows.any_size import BANDS
from aipo.flows.noise_flow import LOG_SCALE_LIMIT

__all__ = ["FILM", "LANES", "OUTPUTS", "Couple", "CoupleBackward"]

LANES = 16  # bands, padded to what tensor cores read at once
OUTPUTS = 2 * BANDS  # of a network: log-scales and shifts
FILM = 2 * OUTPUTS  # scales and shifts of these


class Couple(Function):
    """h exp(log_scale) + shift, that in the dtype and layout for the next network, and the sum of log_scale."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, o: Tensor, film: Tensor, mask: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, (programs, partial) = torch.empty_like(h), sums(h.permute(0, 3, 1, 2), 1)
        seen = torch.empty(*h.shape[:3], LANES, dtype=dtype, device=h.device)
        _couple[programs](
            h, o, film, mask, out, seen, partial, LOG_SCALE_LIMIT, film.stride(0), h[0, ..., 0].numel(), *_lanes()
        )
        ctx.save_for_backward(h, o, film, mask)
        ctx.set_materialize_grads(False)
        return out, seen.permute(0, 3, 1, 2), partial.sum((1, 2))

    @staticmethod
    def backward(
        ctx: Any, g: Tensor, g_seen: Tensor | None, g_log_det: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        h, o, film, mask = ctx.saved_tensors
        g, (programs, partial) = g.contiguous(), sums(h.permute(0, 3, 1, 2), FILM)
        g_seen = None if g_seen is None else g_seen.contiguous(memory_format=torch.channels_last)
        g_h, g_o = torch.empty_like(h), torch.empty_like(o)
        _couple_backward[programs](
            g, g_seen if g_seen is not None else g, g_log_det.contiguous(), h, o, film, mask, g_h, g_o, partial,
            LOG_SCALE_LIMIT, film.stride(0), h[0, ..., 0].numel(), g_seen is not None, True, *_lanes(),
        )  # fmt: skip
        return g_h, g_o, partial.sum(1), None, None


class CoupleBackward(Function):
    """The gradient in h and o of log p, given that in the coupling's output: g, and `more`, which is to be added."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, more: Tensor | None, h: Tensor, o: Tensor, film: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        g, (programs, _) = g.contiguous(), sums(h.permute(0, 3, 1, 2), 1)
        more = None if more is None else more.contiguous(memory_format=torch.channels_last)
        g_h, g_o = torch.empty_like(h), torch.empty_like(o)
        _couple_backward[programs](
            g, more if more is not None else g, g, h, o, film, mask, g_h, g_o, g,
            LOG_SCALE_LIMIT, film.stride(0), h[0, ..., 0].numel(), more is not None, False, *_lanes(),
        )  # fmt: skip
        ctx.save_for_backward(g, more, h, o, film, mask)
        return g_h, g_o

    @staticmethod
    def backward(ctx: Any, A: Tensor, N: Tensor) -> tuple[Tensor | None, ...]:
        g, more, h, o, film, mask = ctx.saved_tensors
        (N,) = like(o, N)
        g_g, g_h, g_o, (programs, partial) = (
            torch.empty_like(h),
            torch.empty_like(h),
            torch.empty_like(o),
            sums(h.permute(0, 3, 1, 2), FILM),
        )
        g_more = None if more is None else torch.empty_like(more)
        _couple_twice[programs](
            A.contiguous(), N, g, more if more is not None else g, h, o, film, mask,
            g_g, g_more if g_more is not None else g_g, g_h, g_o, partial,
            LOG_SCALE_LIMIT, film.stride(0), h[0, ..., 0].numel(), more is not None, *_lanes(),
        )  # fmt: skip
        return g_g, g_more, g_h, g_o, partial.sum(1), None


def _lanes() -> tuple[int, int, int]:
    return BANDS, LANES, ROWS


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _place(positions, bands: tl.constexpr, lanes: tl.constexpr, rows: tl.constexpr):
    """Of a tile: the numbers of its positions over all images, its bands, and which of both are real."""
    row = tl.program_id(1) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, lanes)[None, :]
    return (
        tl.program_id(0).to(tl.int64) * positions + row,
        column,
        (row < positions) & (column < bands),
        row < positions,
    )


@triton.jit
def _parameters(o, film, mask, position, column, inside, stride, bands: tl.constexpr):
    """The raw outputs and what film makes of them: scale, shift (before the mask), and mask."""
    image = tl.program_id(0)
    real = column < bands
    raw_s = tl.load(o + position * (2 * bands) + column, inside, other=0.0).to(tl.float32)
    raw_t = tl.load(o + position * (2 * bands) + bands + column, inside, other=0.0).to(tl.float32)
    where = film + image * stride + column
    gain_s, gain_t = 1 + tl.load(where, real, other=0.0), 1 + tl.load(where + bands, real, other=0.0)
    n_s = gain_s * raw_s + tl.load(where + 2 * bands, real, other=0.0)
    n_t = gain_t * raw_t + tl.load(where + 3 * bands, real, other=0.0)
    m = tl.load(mask + image * bands + column, real, other=0.0)
    return raw_s, raw_t, gain_s, gain_t, n_s, n_t, m


@triton.jit
def _store_film(sums, of_s, of_t, of_shift_s, of_shift_t, bands: tl.constexpr, lanes: tl.constexpr):
    column = tl.arange(0, lanes)
    tile = sums + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * (4 * bands) + column
    tl.store(tile, tl.sum(of_s, 0), column < bands)
    tl.store(tile + bands, tl.sum(of_t, 0), column < bands)
    tl.store(tile + 2 * bands, tl.sum(of_shift_s, 0), column < bands)
    tl.store(tile + 3 * bands, tl.sum(of_shift_t, 0), column < bands)


@triton.jit
def _couple(
    h, o, film, mask, out, seen, sums, limit, stride, positions, bands: tl.constexpr, lanes: tl.constexpr,
    rows: tl.constexpr,
):  # fmt: skip
    position, column, inside, row_inside = _place(positions, bands, lanes, rows)
    _, _, _, _, n_s, n_t, m = _parameters(o, film, mask, position, column, inside, stride, bands)
    s = m * limit * _tanh(n_s / limit)
    result = tl.load(h + position * bands + column, inside, other=0.0) * tl.exp(s) + m * n_t
    tl.store(out + position * bands + column, result, inside)
    tl.store(seen + position * lanes + column, tl.where(inside, result, 0.0), row_inside)
    tl.store(sums + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(tl.where(inside, s, 0.0)))


@triton.jit
def _couple_backward(
    g, more, g_log_det, h, o, film, mask, g_h, g_o, sums, limit, stride, positions, has_more: tl.constexpr,
    weights: tl.constexpr, bands: tl.constexpr, lanes: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """The gradient of <g + more, out> + g_log_det * sum of s; without `weights` g_log_det is 1 and no sums are made."""
    position, column, inside, _ = _place(positions, bands, lanes, rows)
    raw_s, raw_t, gain_s, gain_t, n_s, _, m = _parameters(o, film, mask, position, column, inside, stride, bands)
    upper = tl.load(g + position * bands + column, inside, other=0.0)
    if has_more:
        upper += tl.load(more + position * lanes + column, inside, other=0.0).to(tl.float32)
    tanh = _tanh(n_s / limit)
    down = upper * tl.exp(m * limit * tanh)
    of_log_det = tl.load(g_log_det + tl.program_id(0)) if weights else 1.0
    g_s = m * (1 - tanh * tanh) * (down * tl.load(h + position * bands + column, inside, other=0.0) + of_log_det)
    g_t = m * upper
    tl.store(g_h + position * bands + column, down, inside)
    tl.store(g_o + position * (2 * bands) + column, gain_s * g_s, inside)
    tl.store(g_o + position * (2 * bands) + bands + column, gain_t * g_t, inside)
    if weights:
        g_s, g_t = tl.where(inside, g_s, 0.0), tl.where(inside, g_t, 0.0)
        _store_film(sums, g_s * raw_s, g_t * raw_t, g_s, g_t, bands, lanes)


@triton.jit
def _couple_twice(
    A, N, g, more, h, o, film, mask, g_g, g_more, g_h, g_o, sums, limit, stride, positions, has_more: tl.constexpr,
    bands: tl.constexpr, lanes: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """The derivative of `_couple_backward` without weights: A and N are the gradients in its g_h and g_o.

    With E = exp(s), k = ds/dn = m (1 - tanh^2) and upper = g + more, it computes g_h = upper E,
    g_s = k (upper h E + 1) and g_t = m upper, the last two times the gains.
    """
    position, column, inside, row_inside = _place(positions, bands, lanes, rows)
    raw_s, _, gain_s, gain_t, n_s, _, m = _parameters(o, film, mask, position, column, inside, stride, bands)
    upper = tl.load(g + position * bands + column, inside, other=0.0)
    if has_more:
        upper += tl.load(more + position * lanes + column, inside, other=0.0).to(tl.float32)
    value, of_h = (
        tl.load(h + position * bands + column, inside, other=0.0),
        tl.load(A + position * bands + column, inside, other=0.0),
    )
    of_os = tl.load(N + position * (2 * bands) + column, inside, other=0.0).to(tl.float32)
    of_ot = tl.load(N + position * (2 * bands) + bands + column, inside, other=0.0).to(tl.float32)
    tanh = _tanh(n_s / limit)
    scale, k = tl.exp(m * limit * tanh), m * (1 - tanh * tanh)
    of_s, of_t = gain_s * of_os, gain_t * of_ot
    inner = of_h + of_s * k * value
    of_upper = inner * scale + of_t * m
    grown = upper * value * scale + 1
    of_n = inner * upper * scale * k - 2 * tanh * k / limit * of_s * grown
    tl.store(g_g + position * bands + column, of_upper, inside)
    if has_more:
        tl.store(g_more + position * lanes + column, tl.where(inside, of_upper, 0.0), row_inside)
    tl.store(g_h + position * bands + column, of_s * k * upper * scale, inside)
    tl.store(g_o + position * (2 * bands) + column, gain_s * of_n, inside)
    tl.store(g_o + position * (2 * bands) + bands + column, tl.zeros_like(of_n), inside)
    of_n = tl.where(inside, of_n, 0.0)
    of_gain_s = tl.where(inside, of_os * k * grown, 0.0) + of_n * raw_s
    of_gain_t = tl.where(inside, of_ot * m * upper, 0.0)
    _store_film(sums, of_gain_s, of_gain_t, of_n, tl.zeros_like(of_n), bands, lanes)
