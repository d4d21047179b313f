"""Our RealNVP and Glow, with the same weights, assembled from the layers of normflows: a baseline and an oracle.

Each layer is used in whichever of its two directions computes our map, so nothing is done twice. normflows has no Haar
transform and no predicted scales for the channels that leave; those are ours, run eagerly.
"""

from __future__ import annotations

import copy
import math

import normflows as nf
import torch
from torch import Tensor, nn

from aipo.flows.layers import ActNorm, AffineCoupling, Invertible1x1, Permute, soft_clamp
from aipo.flows.multiscale import CENTER, SCALE, MultiScale, Step
from aipo.transforms.color import opponent
from aipo.transforms.haar import haar

__all__ = ["NormflowsTwin"]


class ParameterMap(nn.Module):
    """Our network, with shift and log-scale in normflows' interleaved order."""

    def __init__(self, coupling: AffineCoupling):
        super().__init__()
        self.net, self.limit = copy.deepcopy(coupling.net), coupling.limit

    def forward(self, a: Tensor) -> Tensor:
        s, t = self.net(a).chunk(2, dim=1)
        return torch.stack([t, soft_clamp(s, self.limit)], dim=2).flatten(1, 2)


def their_layer(layer: nn.Module) -> tuple[nn.Module, bool]:
    """The same map as a normflows layer, and whether in its inverse direction."""
    if isinstance(layer, ActNorm):
        theirs = nf.flows.ActNorm(tuple(layer.shift.shape))
        theirs.s.data, theirs.t.data = layer.log_scale[None].detach(), (layer.shift * layer.log_scale.exp())[None]
        theirs.data_dep_init_done = torch.tensor(1.0)
        return theirs, False
    if isinstance(layer, Permute):
        theirs = nf.flows.Permute(len(layer.order))
        theirs.perm = layer.order
        return theirs, False
    if isinstance(layer, Invertible1x1):
        theirs = nf.flows.Invertible1x1Conv(len(layer.log_s), use_lu=True)
        theirs.P = torch.eye(len(layer.log_s))[layer.order]
        theirs.sign_S = layer.sign
        theirs.L.data, theirs.U.data, theirs.log_S.data = layer.lower, layer.upper, layer.log_s
        return theirs, True
    assert isinstance(layer, AffineCoupling)
    return nf.flows.AffineCouplingBlock(ParameterMap(layer), scale=True, scale_map="exp"), False


class NormflowsTwin(nn.Module):
    def __init__(self, flow: MultiScale):
        super().__init__()
        self.num_dims = flow.num_dims
        self.levels = nn.ModuleList()
        self.inverted: list[list[bool]] = []
        for level in flow.levels:
            pairs = [their_layer(layer) for step in level if isinstance(step, Step) for layer in step.children()]
            self.levels.append(nn.ModuleList(layer for layer, _ in pairs))
            self.inverted.append([inverted for _, inverted in pairs])
        self.splits = copy.deepcopy(flow.splits)

    def log_prob(self, x: Tensor) -> Tensor:
        h = opponent((x - CENTER) * SCALE)
        value = x.new_full((len(x),), self.num_dims * (math.log(SCALE) - 0.5 * math.log(2 * math.pi)))
        for i, (level, inverted) in enumerate(zip(self.levels, self.inverted, strict=True)):
            h = haar(h)
            for layer, backwards in zip(level, inverted, strict=True):
                h, change = layer.inverse(h) if backwards else layer(h)
                value = value + change
            if i < len(self.splits):
                h, z, change = self.splits[i](h)
                value = value + change - 0.5 * z.square().sum((1, 2, 3))
        return value - 0.5 * h.square().sum((1, 2, 3))
