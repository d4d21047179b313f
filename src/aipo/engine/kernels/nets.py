"""The conditioning networks with a hand-written reverse pass: `forward` returns what `backward` will need."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from aipo.engine.kernels import elementwise
from aipo.engine.kernels.convolution import Convolution
from aipo.flows.base import Net
from aipo.flows.glow import ConvNet
from aipo.flows.multiscale import SplitNet
from aipo.flows.realnvp import ResidualNet

__all__ = ["FrozenNet", "FrozenResidualNet", "freeze_net"]


class FrozenNet(Protocol):
    """a (B, H, W, inputs) -> (n, saved), with n (B, H, W, outputs) still to be added `bias`; and the way back."""

    inputs: int
    bias: Tensor | None

    def forward(self, a: Tensor) -> tuple[Tensor, list[Tensor]]: ...

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor: ...


def freeze_net(net: Net, dtype: torch.dtype, row_scale: Tensor, ops: ModuleType) -> FrozenNet:
    """row_scale is folded into the last layer; ops does the elementwise work."""
    if isinstance(net, ResidualNet):
        return FrozenResidualNet.of(net, dtype, row_scale, ops)
    if isinstance(net, ConvNet):
        if dtype == torch.float16 and ops is not elementwise:
            from aipo.engine.kernels.fused import RowsConvNet

            return RowsConvNet(net, dtype, row_scale)
        return FrozenConvNet(net, dtype, row_scale, ops)
    if isinstance(net, SplitNet):
        return FrozenSplitNet(net, dtype, row_scale)
    raise TypeError(f"no reverse pass is written for {type(net).__name__}")


class FrozenSplitNet:
    """One convolution."""

    def __init__(self, net: SplitNet, dtype: torch.dtype, row_scale: Tensor):
        self.conv = Convolution.of(net.conv, dtype, row_scale)
        self.inputs, self.bias = self.conv.inputs, self.conv.bias

    def forward(self, a: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.conv(a), []

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor:
        return self.conv.transpose(g)


class FrozenConvNet:
    """Glow's: three convolutions with SiLU between them."""

    def __init__(self, net: ConvNet, dtype: torch.dtype, row_scale: Tensor, ops: ModuleType):
        self.first, self.middle = Convolution.of(net.first, dtype), Convolution.of(net.middle, dtype)
        self.last = Convolution.of(net.last, dtype, row_scale)
        self.ops = ops
        self.inputs, self.bias = self.first.inputs, self.last.bias

    def forward(self, a: Tensor) -> tuple[Tensor, list[Tensor]]:
        u = self.first(a)
        v = self.middle(self.ops.silu(u, self.first.bias))
        return self.last(self.ops.silu(v, self.middle.bias)), [u, v]

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor:
        u, v = saved
        g = self.ops.silu_backward(self.last.transpose(g), v, self.middle.bias)
        g = self.ops.silu_backward(self.middle.transpose(g), u, self.first.bias)
        return self.first.transpose(g)


class FrozenResidualNet:
    """RealNVP's and the noise flow's: convolution, blocks u + second(silu(first(silu(u)))), SiLU, convolution."""

    def __init__(
        self, first: Convolution, blocks: Sequence[tuple[Convolution, Convolution]], last: Convolution, ops: ModuleType
    ):
        self.first, self.blocks, self.last, self.ops = first, blocks, last, ops
        self.inputs, self.bias = first.inputs, last.bias

    @classmethod
    def of(cls, net: ResidualNet, dtype: torch.dtype, row_scale: Tensor, ops: ModuleType) -> FrozenResidualNet:
        pairs: Any = net.blocks
        blocks = [(Convolution.of(one, dtype), Convolution.of(two, dtype)) for one, two in pairs]
        return cls(Convolution.of(net.first, dtype), blocks, Convolution.of(net.last, dtype, row_scale), ops)

    def forward(self, a: Tensor) -> tuple[Tensor, list[Tensor]]:
        u, bias = self.first(a), self.first.bias
        active = self.ops.silu(u, bias)
        saved = [u]
        for first, second in self.blocks:
            v = first(active)
            w = second(self.ops.silu(v, first.bias))
            u, active = self.ops.residual(u, bias, w, second.bias)
            bias = None
            saved += [v, u]
        return self.last(active), saved

    def backward(self, g: Tensor, saved: list[Tensor]) -> Tensor:
        # The first u still lacks its bias; the sums after each block have all of theirs.
        biases = [self.first.bias] + [None] * len(self.blocks)
        g = self.ops.silu_backward(self.last.transpose(g), saved[-1], biases[-1])
        for i in reversed(range(len(self.blocks))):
            first, second = self.blocks[i]
            u, v = saved[2 * i], saved[2 * i + 1]
            g_v = self.ops.silu_backward(second.transpose(g), v, first.bias)
            g = self.ops.silu_backward(first.transpose(g_v), u, biases[i], plus=g)
        return self.first.transpose(g)
