"""The work between the convolutions, in plain torch: what a CPU runs, and what the fused kernels must agree with.

Everything is channels last: activations are (B, H, W, C), a bias is (C,) or None. Activations may be in half precision
and padded with channels that are zero; the flow's own variables never are. Gradients in half precision are divided by
`SHRINK`: at images far from the data they would overflow.

What is summed over an image comes as partial sums (B, k), to be added up at the end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "add_to_first",
    "couple",
    "couple_backward",
    "first_half",
    "padded",
    "residual",
    "shrinking",
    "silu",
    "silu_backward",
    "split",
]

SHRINK = 16.0


def shrinking(dtype: torch.dtype) -> float:
    """By what gradients in this dtype are divided."""
    return SHRINK if dtype.itemsize < 4 else 1.0


def silu(u: Tensor, bias: Tensor | None) -> Tensor:
    """silu(u + bias)."""
    return F.silu(_plus(u, bias))


def silu_backward(g: Tensor, u: Tensor, bias: Tensor | None, plus: Tensor | None = None) -> Tensor:
    """g * silu'(u + bias) [+ plus], in place of g."""
    torch.ops.aten.silu_backward.grad_input(g, _plus(u, bias), grad_input=g)
    return g if plus is None else g.add_(plus)


def residual(u: Tensor, bias: Tensor | None, w: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
    """h = (u + bias) + (w + more), and silu(h)."""
    h = _plus(u, bias) + _plus(w, more)
    return h, F.silu(h)


def first_half(h: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """The first half of the channels, in another dtype and padded with zeros to so many channels."""
    return padded(h[..., : h.shape[-1] // 2].to(dtype).contiguous(), channels)


def add_to_first(g: Tensor, extra: Tensor) -> None:
    """Add a gradient from a network to the first half of the channels of g, in place."""
    half = g.shape[-1] // 2
    g[..., :half].add_(extra[..., :half], alpha=shrinking(extra.dtype))


def couple(h: Tensor, n: Tensor, bias: Tensor | None, limit: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(a, b) -> (a, b exp(s) + t), with s = limit tanh(n_0) and t = n_1.

    Returns that, the sum of s over each image, and what the way back needs.
    """
    half = h.shape[-1] // 2
    n = _plus(n, bias)
    tanh = torch.tanh(n[..., :half].to(h.dtype).contiguous())
    s = limit * tanh
    total, scale = s.sum((1, 2, 3)), s.exp_()
    b = h[..., half:]
    out = torch.cat([h[..., :half], torch.addcmul(n[..., half : 2 * half].to(h.dtype), b, scale)], dim=-1)
    return out, total[:, None], [b, tanh, scale, n]


def couple_backward(g: Tensor, saved: list[Tensor], limit: float) -> Tensor:
    """The gradient in n of <g, couple(h, n)> + the sum of s; g becomes that in h, but for the path through n."""
    b, tanh, scale, n = saved
    half = b.shape[-1]
    g_t = g[..., half:]
    g_b = g_t * scale
    g_s = (g_b * b).add_(1).mul_(limit * (1 - tanh.square()))
    g_n = padded(torch.cat([g_s, g_t], dim=-1).div_(shrinking(n.dtype)).to(n.dtype), n.shape[-1])
    g_t.copy_(g_b)
    return g_n


def split(h: Tensor, n: Tensor, bias: Tensor | None, limit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half of the channels leave as z = (b - t) exp(-s), with s = limit tanh(n_0) and t = n_1.

    Returns what stays (contiguous), the sum of -z^2/2 - s over each image, the gradient of that sum in h but for the
    path through n, and the one in n.
    """
    half = h.shape[-1] // 2
    p = _plus(n, bias).to(h.dtype)
    tanh = p[..., :half].tanh()
    s = limit * tanh
    shrink = torch.exp(-s)
    z = (h[..., half:] - p[..., half : 2 * half]) * shrink
    total = -(0.5 * z.square() + s).sum((1, 2, 3))
    g_t = z * shrink
    g_s = (z.square() - 1) * limit * (1 - tanh.square())
    g_n = padded(torch.cat([g_s, g_t], dim=-1).div_(shrinking(n.dtype)).to(n.dtype), n.shape[-1])
    return h[..., :half].contiguous(), total[:, None], torch.cat([torch.zeros_like(g_t), -g_t], dim=-1), g_n


def _plus(u: Tensor, bias: Tensor | None) -> Tensor:
    return u if bias is None else (u.to(bias.dtype) + bias).to(u.dtype)


def padded(x: Tensor, channels: int) -> Tensor:
    """x with zeros for the channels it lacks."""
    return F.pad(x, (0, channels - x.shape[-1])) if channels > x.shape[-1] else x
