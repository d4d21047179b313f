"""RealNVP: affine couplings between fixed channel permutations, with residual conditioning networks.

Reference: Dinh, Sohl-Dickstein, Bengio, "Density estimation using Real NVP", 2017, https://arxiv.org/abs/1605.08803
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.flows.base import Net
from aipo.flows.layers import ActNorm, AffineCoupling, Permute
from aipo.flows.multiscale import MultiScale, Step, ZeroConv, scale_limit

__all__ = ["RealNVP"]


class ResidualNet(Net):
    """3x3 convolution in, pre-activation residual blocks of two 3x3 convolutions, zero-initialized 3x3 out.

    SiLU rather than ReLU: the MAP loss must be smooth for gradient methods (Assumption 3.2 of the paper).
    """

    def __init__(self, inputs: int, outputs: int, hidden: int, blocks: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=1) for _ in range(2)) for _ in range(blocks)
        )
        self.last = ZeroConv(hidden, outputs)

    def compute(self, a: Tensor) -> Tensor:  # type: ignore[override]
        h = self.first(a)
        for block in self.blocks:
            first, second = block.children()
            h = h + second(F.silu(first(F.silu(h))))
        return self.last(F.silu(h))


class RealNVP(MultiScale):
    """Multi-scale RealNVP.

    Arguments:
        image_shape: (C, H, W); H and W divisible by 2^levels.
        couplings: number of affine couplings on each level.
        hidden: width of the residual networks on each level.
        blocks: residual blocks in each network.
        seed: for the permutations and the initial weights.

    Couplings come in pairs: the first after a random permutation, the second after exchanging the halves, so each
    pair changes every channel.
    """

    architecture = "realnvp"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        couplings: list[int],
        hidden: list[int],
        blocks: int = 1,
        seed: int = 0,
    ):
        generator = torch.Generator().manual_seed(seed)

        def make_step(level: int, index: int, channels: int) -> Step:
            shuffled = torch.randperm(channels, generator=generator)
            swapped = torch.arange(channels).roll(channels // 2)
            net = ResidualNet(channels // 2, channels, hidden[level], blocks)
            return Step(
                ActNorm(channels),
                Permute(swapped if index % 2 else shuffled),
                AffineCoupling(net, scale_limit(couplings[level])),
            )

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(image_shape, couplings, make_step)
        self.config = {
            "image_shape": list(image_shape),
            "couplings": list(couplings),
            "hidden": list(hidden),
            "blocks": blocks,
            "seed": seed,
        }
