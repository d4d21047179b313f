"""`engine.score` for GPUs: the same function of the weights, in a quarter of the kernels.

A coupling's convolutions have zeros for the bands that it must not see, and a mask for those that it must not change.
So no band is ever moved, and between two convolutions there is one kernel (`twice_nets`, `twice_coupling`). All weights
are packed into one vector, once in a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from aipo.engine.kernels.twice_coupling import FILM, LANES, OUTPUTS, Couple, CoupleBackward
from aipo.engine.kernels.twice_nets import Activate, ActivateBackward, Add, AddBackward, Enter, Scale
from aipo.flows.any_size import BANDS, CENTER, COLORS
from aipo.flows.noise_flow import Coupling, NoiseFlow
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

__all__ = ["FusedScore"]

Part = tuple[Tensor, Tensor]  # a parameter, and its layout: for each place the number of a value, or -1 for zero
Back = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


class FusedScore:
    """log p(y | s) (B,) and its gradient in y (B, 3, H, W) of a noise flow on a GPU, see `score.log_prob_and_score`."""

    def __init__(self, flow: NoiseFlow):
        self.flow = flow
        device = next(flow.parameters()).device
        couplings: list[list[Coupling]] = [list(level.couplings) for level in flow.levels]  # type: ignore[arg-type]
        self.weights = Packed([part for level in couplings for c in level for part in _kernels(c)], device)
        self.films = Packed([part for level in couplings for c in level for part in _film(c)], device)
        self.levels = [[_Shape(c) for c in level] for level in couplings]
        self.masks = [[_changed(c).to(device) for c in level] for level in couplings]

    def __call__(self, y: Tensor, s: Tensor, gray: Tensor) -> tuple[Tensor, Tensor]:
        flow = self.flow
        dtype = flow.levels[0].couplings[0].net.compute_dtype or y.dtype  # type: ignore[union-attr,index]
        color = torch.stack([torch.ones_like(gray), ~gray, ~gray], dim=1).to(y.dtype)
        exists = color.repeat(1, BANDS // COLORS)
        kernels, films = iter(self.weights(dtype)), self._films(flow.embedding(s, gray))
        h = (opponent(y - CENTER) * color[..., None, None]).permute(0, 2, 3, 1)
        value = -0.5 * math.log(2 * math.pi) * color.sum(1) * y[0, 0].numel()
        tape: list[Back] = []
        for level, masks, scale in zip(self.levels, self.masks, flow.band_scales(s), strict=True):
            h = haar(h.permute(0, 3, 1, 2)).mul(scale).permute(0, 2, 3, 1).contiguous()
            value = value + (scale.flatten(1).log() * exists).sum(1) * h[0, ..., 0].numel()
            tape.append(_bands_backward(scale))
            seen = F.pad(h.to(dtype), (0, LANES - BANDS)).permute(0, 3, 1, 2)
            for shape, mask in zip(level, masks, strict=True):
                h, seen, change, back = shape.couple(
                    h, seen, [next(kernels) for _ in range(shape.count)], films, exists * mask
                )
                value = value + change
                tape.append(back)
            h, details = h.split([COLORS, BANDS - COLORS], dim=3)
            value = value - 0.5 * details.square().sum((1, 2, 3))
            tape.append(_details_backward(details))
        value = value - 0.5 * h.square().sum((1, 2, 3))
        g, more = -h, None
        while tape:
            g, more = tape.pop()(g, more)
        return value, opponent_inverse(g.permute(0, 3, 1, 2) * color[..., None, None])

    def _films(self, embedding: Tensor) -> Any:
        """For each coupling: scales and shifts of its first features, and of its outputs (B, channels)."""
        parts = self.films(embedding.dtype)
        weight, bias = torch.cat(parts[::2]), torch.cat(parts[1::2])
        films = torch.addmm(bias, embedding, weight.mT)
        return iter(films.split([len(part) for part in parts[1::2]], dim=1))


class _Shape:
    """The sizes of a coupling."""

    def __init__(self, coupling: Coupling):
        self.hidden = coupling.net.first.out_channels
        self.blocks = len(coupling.net.blocks)
        self.count = 2 + 2 * self.blocks

    def couple(
        self, h: Tensor, seen: Tensor, kernels: list[Tensor], films: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Back]:
        """What a coupling makes of h, that as the next one sees it, its log-determinant, and the way back."""
        first, *inner, last = kernels
        enter, leave = next(films), next(films)
        hidden, active = Enter.apply(_convolve(seen, first), enter)
        saved, inside = [hidden], []
        for one, two in zip(inner[::2], inner[1::2], strict=True):
            v = _convolve(active, one)
            inside.append(v)
            hidden, active = Add.apply(hidden, _convolve(Activate.apply(v), two))
            saved.append(hidden)
        o = _convolve(active, last)
        out, next_seen, log_det = Couple.apply(h, o, leave, mask, seen.dtype)

        def back(g: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor | None]:
            g, g_o = CoupleBackward.apply(g, more, h, o, leave, mask)
            q = ActivateBackward.apply(_transposed(g_o, last), saved[-1])
            for i in reversed(range(self.blocks)):
                g_v = ActivateBackward.apply(_transposed(q, inner[2 * i + 1]), inside[i])
                q = AddBackward.apply(q, _transposed(g_v, inner[2 * i]), saved[i])
            return g, _transposed(Scale.apply(q, enter), first)

        return out, next_seen, log_det, back


def _bands_backward(scale: Tensor) -> Back:
    def back(g: Tensor, more: Tensor | None) -> tuple[Tensor, None]:
        if more is not None:
            g = g + more[:, :BANDS].permute(0, 2, 3, 1)
        return haar_inverse(g.permute(0, 3, 1, 2) * scale).permute(0, 2, 3, 1), None

    return back


def _details_backward(details: Tensor) -> Back:
    def back(g: Tensor, more: Tensor | None) -> tuple[Tensor, None]:
        return torch.cat([g, -details], dim=3), None

    return back


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def _transposed(g: Tensor, weight: Tensor) -> Tensor:
    return F.conv_transpose2d(g, weight, padding=1)


def _kernels(coupling: Coupling) -> list[Part]:
    """The convolutions of a coupling: the first reads all bands, the last writes scales and shifts of all."""
    net = coupling.net
    first, second = coupling.order[: coupling.seen].cpu(), coupling.order[coupling.seen :].cpu()
    entry = torch.full((net.first.out_channels, LANES, 3, 3), -1)
    entry[:, first] = _numbered(net.first.weight)
    exit = torch.full((OUTPUTS, net.last.in_channels, 3, 3), -1)
    exit[torch.cat([second, BANDS + second])] = _numbered(net.last.weight)
    blocks: Any = net.blocks
    inner = [(conv.weight, _numbered(conv.weight)) for block in blocks for conv in block]
    parts = [(net.first.weight, entry), *inner, (net.last.weight, exit)]
    return [(weight, places.permute(0, 2, 3, 1).contiguous()) for weight, places in parts]


def _film(coupling: Coupling) -> list[Part]:
    """What makes scales and shifts of an embedding, weights and biases; of the outputs, for all bands."""
    net = coupling.net
    second = coupling.order[coupling.seen :].cpu()
    rows = torch.cat([second + i * BANDS for i in range(FILM // BANDS)])
    parts: list[Part] = [(p, _numbered(p)) for p in (net.enter.weight, net.enter.bias)]
    for p in (net.leave.weight, net.leave.bias):
        places = torch.full((FILM, *p.shape[1:]), -1)
        places[rows] = _numbered(p)
        parts.append((p, places))
    return parts


def _numbered(p: Tensor) -> Tensor:
    return torch.arange(p.numel()).view(p.shape)


def _changed(coupling: Coupling) -> Tensor:
    mask = torch.zeros(BANDS)
    mask[coupling.order[coupling.seen :].cpu()] = 1
    return mask


class Packed:
    """Many parameters as one vector in a new layout: each value has one place, other places are zero.

    That takes a few kernels in a step instead of a few for each parameter.
    """

    def __init__(self, parts: list[Part], device: torch.device):
        self.params = [param for param, _ in parts]
        self.shapes = [places.shape for _, places in parts]
        offsets = torch.tensor([0, *(p.numel() for p in self.params)]).cumsum(0)
        layouts = [
            torch.where(places < 0, -1, places + start).flatten()
            for (_, places), start in zip(parts, offsets[:-1], strict=True)
        ]
        source = torch.cat(layouts)
        # A place that holds nothing reads the zero behind the last value.
        self.source = torch.where(source < 0, int(offsets[-1]), source).to(device)
        target = torch.empty(int(offsets[-1]), dtype=torch.int64)
        target[source[source >= 0]] = (source >= 0).nonzero()[:, 0]
        self.target = target.to(device)

    def __call__(self, dtype: torch.dtype) -> list[Tensor]:
        """The parameters, in order: kernels (O, h, w, I) come as (O, I, h, w), channels last."""
        flat = torch.cat([p.reshape(-1) for p in self.params])
        packed = Pack.apply(flat, self.source, self.target, dtype)
        parts = packed.split([math.prod(shape) for shape in self.shapes])
        views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return [view.permute(0, 3, 1, 2) if view.ndim == 4 else view for view in views]


class Pack(Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, source: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(target)
        return F.pad(flat.to(dtype), (0, 1))[source]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (target,) = ctx.saved_tensors
        return g[target].float() if g.dtype.itemsize < 4 else g[target], None, None, None
