"""Log-density and gradient of a noise flow at one noise level, without autograd.

At a fixed s a noise flow is a plain RealNVP of any size: the scales and shifts that depend on s are folded into its
convolutions, and everything linear between two coupling networks into one matrix per coupling. What is left to do
beside `frozen.FrozenMultiScale` are the coefficients that odd sides and gray images do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.engine.kernels.convolution import Convolution
from aipo.engine.kernels.frozen import gather_pixels, scatter_pixels
from aipo.engine.kernels.nets import FrozenResidualNet
from aipo.flows.any_size import BANDS, CENTER, COLORS, existence
from aipo.flows.noise_flow import LOG_SCALE_LIMIT, Coupling, NoiseFlow, NoiseNet
from aipo.transforms.color import opponent
from aipo.transforms.haar import haar

__all__ = ["FrozenNoiseFlow"]

Back = Callable[[Tensor], Tensor]


class FrozenNoiseFlow:
    """y (B, C, H, W) -> log p(y | s) (B,) and its gradient (B, C, H, W), for color and for gray images.

    Arguments:
        flow: its weights are copied; later changes of it are not seen.
        s: the noise level of all images.
        dtype: of the coupling networks; all else is in the flow's own.
        ops: the elementwise work, `aipo.engine.kernels.elementwise` or `aipo.engine.kernels.fused`.
        recompute: keep only each coupling's input for the way back, and run the coupling again.
    """

    def __init__(self, flow: NoiseFlow, s: float, dtype: torch.dtype, ops: ModuleType, recompute: bool = False):
        self.flow, self.s, self.dtype, self.ops, self.recompute = flow, s, dtype, ops, recompute
        # Gray images have another level, sqrt(3) s, and other features; whichever come first are made first.
        self._frozen: dict[int, FrozenLevels] = {}

    @torch.no_grad()
    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:
        channels = y.shape[1]
        if channels not in self._frozen:
            self._frozen[channels] = FrozenLevels(self, channels == 1)
        return self._frozen[channels](y)


class FrozenLevels:
    """The flow for color images, or for gray ones."""

    def __init__(self, parent: FrozenNoiseFlow, gray: bool):
        flow, dtype, ops = parent.flow, parent.dtype, parent.ops
        like = next(flow.parameters())
        s = like.new_full((1,), parent.s * (math.sqrt(COLORS) if gray else 1.0))
        embedding = flow.embedding(s, torch.full((1,), gray, device=like.device))
        self.gray = gray
        self.log_scales = [scale.log().flatten() for scale in flow.band_scales(s)]
        self.levels: list[list[FrozenCoupling]] = []
        for i, (level, scale) in enumerate(zip(flow.levels, flow.band_scales(s), strict=True)):
            self.levels.append([])
            order = torch.arange(BANDS, device=like.device)
            couplings: Any = level.couplings
            for j, coupling in enumerate(couplings):
                before = None if j else _entry(scale, "gray" if gray and i == 0 else "color" if i == 0 else "average")
                frozen = FrozenCoupling(coupling, order, embedding, before, dtype, ops, parent.recompute)
                self.levels[-1].append(frozen)
                order = coupling.order
        self.orders = [level.couplings[-1].order for level in flow.levels]  # type: ignore[union-attr,index]

    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:
        h = y.permute(0, 2, 3, 1)
        constant = -0.5 * math.log(2 * math.pi) * y[0].numel()
        if self.gray:
            constant += 0.5 * math.log(COLORS) * y[0].numel()
        sums: list[Tensor] = []
        tape: list[Back] = []
        for couplings, log_scales, order in zip(self.levels, self.log_scales, self.orders, strict=True):
            exists, spread = existence(h.shape[1], h.shape[2], self.gray, y.dtype, y.device)
            h, back = _pairs(h)
            tape.append(back)
            constant += spread
            sums.append(_counted(exists, h, log_scales).expand(len(y), 1))
            rows = None if exists is None else exists[0].permute(1, 2, 0)
            for coupling in couplings:
                h, part, back = coupling(h, rows)
                sums.append(part)
                tape.append(back)
            h, part, back = _leave(h, order)
            sums.append(part)
            tape.append(back)
        sums.append(-0.5 * h.square().sum((1, 2, 3))[:, None])
        value = torch.cat(sums, dim=1).sum(1) + constant
        g = -h
        while tape:
            g = tape.pop()(g)
        return value, g.permute(0, 3, 1, 2).contiguous()


class FrozenCoupling:
    """h -> couple(h @ matrix + shift): what is linear before a coupling, its order of channels included, is a matrix.

    Arguments:
        order: in which the channels come.
        before: what happens to the four pixels of a block before the first coupling of a level, as a function of
            images (B, C, 2, 2).
    """

    def __init__(
        self,
        coupling: Coupling,
        order: Tensor,
        embedding: Tensor,
        before: Callable[[Tensor], Tensor] | None,
        dtype: torch.dtype,
        ops: ModuleType,
        recompute: bool,
    ):
        like = next(coupling.parameters())
        if before is None:
            shift, matrix = torch.zeros(BANDS), torch.eye(BANDS)
            # Column j of what comes in is channel order[j].
            matrix = matrix[:, order.argsort().cpu()]
        else:
            # Probed in float64 with zero and with unit vectors, so that nobody need write it as a matrix.
            channels = COLORS if before is not None and before.color else 1  # type: ignore[attr-defined]
            probes = torch.cat([torch.zeros(1, 4 * channels), torch.eye(4 * channels)]).double().to(like.device)
            answers = before(probes.view(-1, channels, 2, 2)).flatten(1)
            shift, matrix = answers[0], answers[1:] - answers[0]
        self.shift = shift.to(like)[coupling.order]
        self.matrix = matrix.to(like)[:, coupling.order].contiguous()
        self.transposed = self.matrix.T.contiguous()
        self.order, self.ops, self.recompute, self.dtype = coupling.order[coupling.seen :], ops, recompute, dtype
        self.net = _freeze(coupling.net, embedding, dtype, ops)

    def __call__(self, h: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor, Back]:
        """The output, the log-determinant in partial sums, and the way back for a gradient."""
        if exists is not None:
            exists = exists[..., self.order].repeat(1, 1, 2)
        out, log_det, *saved = self._forward(h, exists)
        if self.recompute:
            return out, log_det, lambda g: self._backward(g, exists, *self._forward(h, exists)[2:])
        return out, log_det, lambda g: self._backward(g, exists, *saved)

    def _forward(self, h: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        mixed = torch.addmm(self.shift, h.flatten(0, 2), self.matrix).view(*h.shape[:3], BANDS)
        n, of_net = self.net.forward(self.ops.first_half(mixed, self.net.inputs, self.dtype))
        bias = self.net.bias
        if exists is not None:
            n = n if bias is None else (n + bias).to(n.dtype)
            n, bias = n.mul_(_padded(exists, n)), None
        out, log_det, of_coupling = self.ops.couple(mixed, n, bias, LOG_SCALE_LIMIT)
        return out, log_det, of_net, of_coupling

    def _backward(self, g: Tensor, exists: Tensor | None, of_net: list[Tensor], of_coupling: list[Tensor]) -> Tensor:
        g_n = self.ops.couple_backward(g, of_coupling, LOG_SCALE_LIMIT)
        if exists is not None:
            g_n.mul_(_padded(exists, g_n))
        self.ops.add_to_first(g, self.net.backward(g_n, of_net))
        return (g.flatten(0, 2) @ self.transposed).view(*g.shape[:3], -1)


def _padded(exists: Tensor, n: Tensor) -> Tensor:
    return F.pad(exists, (0, n.shape[-1] - exists.shape[-1])).to(n.dtype)


def _freeze(net: NoiseNet, embedding: Tensor, dtype: torch.dtype, ops: ModuleType) -> FrozenResidualNet:
    films = [(scale.flatten(), shift.flatten()) for scale, shift in net.scales_and_shifts(embedding)]
    (scale, shift), (last_scale, last_shift) = films
    # The first half of the outputs become log-scales, limit * tanh(n / limit).
    tanh = torch.ones_like(last_scale)
    tanh[: len(tanh) // 2] /= LOG_SCALE_LIMIT
    first = Convolution(net.first.weight * scale.view(-1, 1, 1, 1), shift, dtype)
    last = Convolution(net.last.weight * last_scale.view(-1, 1, 1, 1), last_shift, dtype, tanh)
    pairs: Any = net.blocks
    blocks = [(Convolution.of(one, dtype), Convolution.of(two, dtype)) for one, two in pairs]
    return FrozenResidualNet(first, blocks, last, ops)


class _entry:
    """What happens to a 2x2 block of pixels before the first coupling of a level."""

    def __init__(self, scale: Tensor, kind: str):
        self.scale, self.kind = scale.double(), kind
        self.color = kind != "gray"

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind == "gray":
            x = F.pad(math.sqrt(COLORS) * (x - CENTER), (0, 0, 0, 0, 0, COLORS - 1))
        elif self.kind == "color":
            x = opponent(x - CENTER)
        return haar(x) * self.scale


def _pairs(h: Tensor) -> tuple[Tensor, Back]:
    """(B, H, W, C) -> (B, h, w, 4C), the last row or column repeated where a side is odd; and the way back."""
    _, height, width, _ = h.shape
    if height % 2:
        h = torch.cat([h, h[:, -1:]], dim=1)
    if width % 2:
        h = torch.cat([h, h[:, :, -1:]], dim=2)

    def back(g: Tensor) -> Tensor:
        g = gather_pixels(g)
        if height % 2:
            g[:, -2] += g[:, -1]
        if width % 2:
            g[:, :, -2] += g[:, :, -1]
        return g[:, :height, :width]

    return scatter_pixels(h), back


def _leave(h: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Back]:
    """The average stays, the details leave; channels come in `order`."""
    place = order.argsort()
    details = h[..., place[COLORS:]]

    def back(g: Tensor) -> Tensor:
        return torch.cat([g, -details], dim=-1)[..., order]

    return h[..., place[:COLORS]].contiguous(), -0.5 * details.square().sum((1, 2, 3))[:, None], back


def _counted(exists: Tensor | None, h: Tensor, log_scales: Tensor) -> Tensor:
    """The log-determinant of the scaling of the bands (1, 1)."""
    if exists is None:
        return (log_scales.sum() * (h.shape[1] * h.shape[2])).view(1, 1)
    return (log_scales * exists.sum((0, 2, 3))).sum().view(1, 1)
