"""Log-density and gradient of a RealNVP or Glow, without autograd.

Everything linear between two coupling networks is folded into one matrix per step: the centering, the opponent colors
and the Haar transform at the entry of a level, ActNorm, and the permutation or 1x1 convolution. Pixels are rows and
channels are columns, so that matrix is one GEMM, and the networks see channels-last images.

The reverse pass is written by hand. It needs no graph, forgets each step's activations as soon as they are used, and
with `recompute` never keeps them at all: then only the input of each step is kept, and the step runs again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from aipo.engine.kernels.nets import freeze_net
from aipo.flows.layers import AffineCoupling, GaussianSplit
from aipo.flows.multiscale import CENTER, SCALE, MultiScale, Step, chain
from aipo.transforms.color import opponent
from aipo.transforms.haar import haar

__all__ = ["FrozenMultiScale"]


class FrozenMultiScale:
    """x (B, C, H, W) -> log p(x) (B,) and its gradient (B, C, H, W).

    Arguments:
        flow: its weights are copied; later changes of it are not seen.
        dtype: of the coupling networks; all else is in the flow's own.
        ops: the elementwise work, `aipo.kernels.elementwise` or `aipo.kernels.fused`.
        recompute: keep only each step's input for the way back, and run the step again.
    """

    def __init__(self, flow: MultiScale, dtype: torch.dtype, ops: ModuleType, recompute: bool = False):
        channels, height, width = flow.image_shape
        self.steps: list[list[FrozenStep]] = []
        self.splits = [FrozenSplit(split, dtype, ops) for split in flow.splits]  # type: ignore[arg-type]
        # The standard normal's constant, and all log-determinants that do not depend on the image.
        self.constant = flow.num_dims * (math.log(SCALE) - 0.5 * math.log(2 * math.pi))
        entry: Callable[[Tensor], Tensor]
        for i, level in enumerate(flow.levels):
            if i == 0:
                entry = lambda x: haar(opponent((x - CENTER) * SCALE))  # noqa: E731
            else:
                channels //= 2
                entry = haar
            self.steps.append([])
            channels, height, width = 4 * channels, height // 2, width // 2
            steps: Any = level
            for j, step in enumerate(steps):
                before = entry if j == 0 else None
                frozen = FrozenStep(step, channels, dtype, ops, recompute, before)
                self.constant += frozen.log_det * height * width
                self.steps[-1].append(frozen)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.permute(0, 2, 3, 1)
        sums: list[Tensor] = []
        tape: list[Callable[[Tensor], Tensor]] = []
        for i, steps in enumerate(self.steps):
            tape.append(gather_pixels)
            h = scatter_pixels(h)
            for step in steps:
                h, part, back = step(h)
                sums.append(part)
                tape.append(back)
            if i < len(self.splits):
                h, part, back = self.splits[i](h)
                sums.append(part)
                tape.append(back)
        sums.append(-0.5 * h.square().sum((1, 2, 3))[:, None])
        value = torch.cat(sums, dim=1).sum(1) + self.constant
        g = -h
        while tape:
            g = tape.pop()(g)
        return value, g.permute(0, 3, 1, 2).contiguous()


def scatter_pixels(h: Tensor) -> Tensor:
    """(B, H, W, C) -> (B, H/2, W/2, 4C): the four pixels of each block beside each other, as (C, 2, 2)."""
    batch, height, width, channels = h.shape
    blocks = h.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return blocks.permute(0, 1, 3, 5, 2, 4).reshape(batch, height // 2, width // 2, 4 * channels)


def gather_pixels(g: Tensor) -> Tensor:
    """The inverse of `scatter_pixels`, which is its transpose."""
    batch, height, width, channels = g.shape
    blocks = g.reshape(batch, height, width, channels // 4, 2, 2)
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(batch, 2 * height, 2 * width, channels // 4)


class FrozenStep:
    """h -> couple(h @ matrix + shift): a flow step whose layers before the coupling are folded into one matrix."""

    def __init__(
        self,
        step: Step,
        channels: int,
        dtype: torch.dtype,
        ops: ModuleType,
        recompute: bool,
        before: Callable[[Tensor], Tensor] | None,
    ):
        *linear, coupling = step.children()
        assert isinstance(coupling, AffineCoupling)
        like = next(step.parameters())
        # Probed in float64 with zero and with unit vectors: no layer need know how to write itself as a matrix.
        layers = nn.Sequential(*copy.deepcopy(linear)).double()
        side = 1 if before is None else 2
        probes = torch.cat([torch.zeros(1, channels), torch.eye(channels)]).to(like.device, torch.float64)
        probes = probes.view(channels + 1, -1, side, side)
        with torch.no_grad():
            answers, log_det = chain(layers, probes if before is None else before(probes))
        answers = answers.flatten(1)
        self.shift = answers[0].to(like.dtype)
        self.matrix = (answers[1:] - answers[0]).to(like.dtype)
        self.transposed = self.matrix.T.contiguous()
        self.log_det = log_det[0].item()
        self.limit = coupling.limit
        self.ops = ops
        self.recompute = recompute
        self.dtype = dtype
        self.net = freeze_net(coupling.net, dtype, _scale_rows(channels, self.limit).to(like), ops)

    def __call__(self, h: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """The output, the log-determinant but for `log_det` in partial sums, and the way back for a gradient."""
        out, log_det, *saved = self._forward(h)
        if self.recompute:
            return out, log_det, lambda g: self._backward(g, *self._forward(h)[2:])
        return out, log_det, lambda g: self._backward(g, *saved)

    def _forward(self, h: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        mixed = torch.addmm(self.shift, h.flatten(0, 2), self.matrix).view_as(h)
        n, of_net = self.net.forward(self.ops.first_half(mixed, self.net.inputs, self.dtype))
        out, log_det, of_coupling = self.ops.couple(mixed, n, self.net.bias, self.limit)
        return out, log_det, of_net, of_coupling

    def _backward(self, g: Tensor, of_net: list[Tensor], of_coupling: list[Tensor]) -> Tensor:
        g_n = self.ops.couple_backward(g, of_coupling, self.limit)
        self.ops.add_to_first(g, self.net.backward(g_n, of_net))
        return (g.flatten(0, 2) @ self.transposed).view_as(g)


class FrozenSplit:
    """Half of the channels leave; all that is needed for the way back is known at once."""

    def __init__(self, split: GaussianSplit, dtype: torch.dtype, ops: ModuleType):
        self.limit = split.limit
        self.ops = ops
        self.dtype = dtype
        weight: Any = split.net.conv.weight  # type: ignore[union-attr]
        self.net = freeze_net(split.net, dtype, _scale_rows(len(weight), self.limit).to(weight), ops)

    def __call__(self, h: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """What stays, the log-density of what leaves in partial sums, and the way back for a gradient in what stays."""
        n, saved = self.net.forward(self.ops.first_half(h, self.net.inputs, self.dtype))
        stays, value, g_h, g_n = self.ops.split(h, n, self.net.bias, self.limit)

        def back(g: Tensor) -> Tensor:
            self.ops.add_to_first(g_h, self.net.backward(g_n, saved))
            g_h[..., : g.shape[-1]] += g
            return g_h

        return stays, value, back


def _scale_rows(channels: int, limit: float) -> Tensor:
    """1 / limit for the outputs that become log-scales, so that only a tanh is left to do."""
    return torch.tensor([1 / limit] * (channels // 2) + [1.0] * (channels // 2), dtype=torch.float64)
