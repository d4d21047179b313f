"""log p(y | s) of a noise flow and its gradient in y, written out as an ordinary function of the weights.

Training needs the gradient of a gradient. Asked of autograd twice, that is a graph of thousands of small kernels. But
the gradient in y is a few transposed convolutions and some arithmetic between them; written out, it is differentiated
once, like any other function. Here it is in plain torch; `kernels.fused_score` does the same on a GPU in a quarter of
the kernels.

The networks run in the flow's compute dtype, the flow's own variables and all sums in that of y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from aipo.flows.any_size import BANDS, CENTER, COLORS
from aipo.flows.noise_flow import LOG_SCALE_LIMIT, Coupling, NoiseFlow, NoiseNet
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

__all__ = ["Score", "log_prob_and_score", "score_function"]

Back = Callable[[Tensor], Tensor]
Score = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def log_prob_and_score(flow: NoiseFlow, y: Tensor, s: Tensor, gray: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y | s) (B,) and its gradient in y (B, 3, H, W), both differentiable in the weights.

    Arguments:
        y: color images (B, 3, H, W), sides divisible by the flow's stride.
        s: noise levels (B,).
        gray: which of them to take as gray (B,): their colors are ignored, and the values are those of the brightness
            (r + g + b) / sqrt(3) alone.
    """
    color = torch.stack([torch.ones_like(gray), ~gray, ~gray], dim=1).to(y.dtype)
    exists = color.repeat(1, BANDS // COLORS)[..., None, None]
    h = opponent(y - CENTER) * color[..., None, None]
    embedding = flow.embedding(s, gray)
    value = -0.5 * math.log(2 * math.pi) * color.sum(1) * y[0, 0].numel()

    tape: list[Back] = []
    for level, scale in zip(flow.levels, flow.band_scales(s), strict=True):
        h = haar(h) * scale
        value = value + (scale.log() * exists).sum((1, 2, 3)) * h[0, 0].numel()
        tape.append(partial(_bands_backward, scale))
        couplings: Any = level.couplings
        for coupling in couplings:
            h, change, back = _couple(coupling, h, embedding, exists)
            value = value + change
            tape.append(back)
        h, details = h.split([COLORS, BANDS - COLORS], dim=1)
        value = value - 0.5 * details.square().sum((1, 2, 3))
        tape.append(partial(_details_backward, details))
    value = value - 0.5 * h.square().sum((1, 2, 3))
    g = -h
    while tape:
        g = tape.pop()(g)
    return value, opponent_inverse(g * color[..., None, None])


def _bands_backward(scale: Tensor, g: Tensor) -> Tensor:
    return haar_inverse(g * scale)


def _details_backward(details: Tensor, g: Tensor) -> Tensor:
    return torch.cat([g, -details], dim=1)


def _couple(coupling: Coupling, h: Tensor, embedding: Tensor, exists: Tensor) -> tuple[Tensor, Tensor, Back]:
    """What a coupling makes of h, its log-determinant, and the way back for a gradient."""
    order, back_order, seen = coupling.order, coupling.back_order, coupling.seen
    a, b = h.index_select(1, order).split([seen, BANDS - seen], dim=1)
    exists = exists[:, order[seen:]]
    dtype = coupling.net.compute_dtype or h.dtype
    n, net_back = _run(coupling.net, a.to(dtype, memory_format=torch.channels_last), embedding)
    out, log_scales = _couple_forward(b, n, exists)

    def back(g: Tensor) -> Tensor:
        g_a, g_out = g.index_select(1, order).split([seen, BANDS - seen], dim=1)
        g_b, g_n = _couple_backward(g_out, b, n, exists)
        return torch.cat([g_a + net_back(g_n), g_b], dim=1).index_select(1, back_order)

    return torch.cat([a, out], dim=1).index_select(1, back_order), log_scales.sum((1, 2, 3)), back


def _run(net: NoiseNet, a: Tensor, embedding: Tensor) -> tuple[Tensor, Back]:
    """The network's output and the way back for a gradient, both in the dtype of the embedding."""
    dtype = a.dtype
    (scale, shift), (last_scale, last_shift) = net.scales_and_shifts(embedding)
    blocks: Any = net.blocks
    # Channels last: on a CPU two to three times as fast.
    first, last, *inner = (
        conv.weight.to(dtype, memory_format=torch.channels_last)
        for conv in (net.first, net.last, *(conv for block in blocks for conv in block))
    )
    h = scale.to(dtype) * _convolve(a, first) + shift.to(dtype)
    saved, inside = [h], []
    for one, two in zip(inner[::2], inner[1::2], strict=True):
        v = _convolve(F.silu(h), one)
        inside.append(v)
        h = h + _convolve(F.silu(v), two)
        saved.append(h)
    n = last_scale * _convolve(F.silu(h), last).to(embedding.dtype) + last_shift

    def back(g: Tensor) -> Tensor:
        g = (last_scale * g).to(dtype, memory_format=torch.channels_last)
        g = times_slope(_transposed(g, last), saved[-1])
        for i in reversed(range(len(inside))):
            g_v = times_slope(_transposed(g, inner[2 * i + 1]), inside[i])
            g = g + times_slope(_transposed(g_v, inner[2 * i]), saved[i])
        return _transposed(scale.to(dtype) * g, first).to(embedding.dtype)

    return n, back


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def _transposed(g: Tensor, weight: Tensor) -> Tensor:
    return F.conv_transpose2d(g, weight, padding=1)


def times_slope(g: Tensor, h: Tensor) -> Tensor:
    """g times the derivative of SiLU at h."""
    return _TimesSlope.apply(g, h)


class _TimesSlope(torch.autograd.Function):
    """In one pass over memory, and its gradient in few: on a CPU such passes cost as much as the convolutions."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(g, h)
        return torch.ops.aten.silu_backward(g, h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, Tensor]:
        g, h = ctx.saved_tensors
        sigmoid = torch.sigmoid(h)
        # The second derivative: sigmoid (1 - sigmoid) (2 + h (1 - 2 sigmoid)).
        second = torch.addcmul(h, h, sigmoid, value=-2).add_(2).mul_(sigmoid)
        second.addcmul_(second, sigmoid, value=-1).mul_(g).mul_(up)
        return torch.ops.aten.silu_backward(up, h), second


def _couple_forward(b: Tensor, n: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
    """b exp(log_scale) + shift, and log_scale, both zero where nothing exists."""
    raw, shift = n.chunk(2, dim=1)
    log_scale = exists * LOG_SCALE_LIMIT * torch.tanh(raw / LOG_SCALE_LIMIT)
    return b * log_scale.exp() + exists * shift, log_scale


def _couple_backward(g: Tensor, b: Tensor, n: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient in b and n of <g, out> + the sum of log_scale."""
    tanh = torch.tanh(n[:, : b.shape[1]] / LOG_SCALE_LIMIT)
    g_b = g * torch.exp(exists * LOG_SCALE_LIMIT * tanh)
    g_raw = exists * (g_b * b + 1) * (1 - tanh.square())
    return g_b, torch.cat([g_raw, exists * g], dim=1)


def score_function(flow: NoiseFlow) -> Score:
    """`log_prob_and_score` of a flow, as fast as there is one for its device."""
    if next(flow.parameters()).is_cuda:
        try:
            from aipo.engine.kernels.fused_score import FusedScore
        except ImportError:
            return partial(log_prob_and_score, flow)
        return FusedScore(flow)
    return partial(log_prob_and_score, flow)
