"""A model of the Hessian of L, with which L-BFGS begins:

    H(lam) = W (J^T J / sigma^2 + lam S) W

S is the mean curvature of the prior (`Surrogate`), diagonal in frequency; the bracket is solved in closed form or by
conjugate gradients at almost no cost beside a gradient of the flow. W is diagonal in space. A flow bends far more
where an image is flat than where it is textured, and the steps taken so far show where: W^2 is the local ratio of the
curvature they met to that of the bracket. The whole is scaled to the curvature along the newest step.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.batch import per_image
from aipo.problem.map_problem import MapProblem
from aipo.solvers.history import TINY, HistoryState

__all__ = ["HessianModel", "solve_model"]

# "local" is all of the above, "global" has W = 1, "none" is a multiple of the identity, as in plain L-BFGS.
HessianModel = Literal["local", "global", "none"]

WINDOW = 3  # pixels over which local curvature is averaged, twice
AGING = 0.9  # weight of a step against the one after it, where local curvature is taken from


def solve_model(
    model: HessianModel, problem: MapProblem, state: HistoryState, Y: Tensor, lam: Tensor, q: Tensor
) -> Tensor:
    """The inverse of the model Hessian at x_seen and lam (B,), times q (B, n).

    Y holds the changes of the gradient at this lam along the stored steps (B, memory, n).
    """
    s, y = state.newest(state.S), state.newest(Y)
    known = (state.pairs > 0) & ((s * y).sum(1) > 0)
    if model == "none":
        scale = (s * y).sum(1) / y.square().sum(1).clamp(min=TINY)
        fallback = 0.1 / q.abs().amax(1).clamp(min=TINY)
        return torch.where(known, scale, fallback)[:, None] * q
    precision = 1 / problem.noise.variance(problem.y)
    spectrum = problem.prior.surrogate.curvature
    W = torch.ones_like(state.x[:, :1])
    if model == "local":
        W = _local_curvature(state, met=Y, modeled=state.Y_D + lam[:, None, None] * state.SS)
    # Both right-hand sides at once: the operator may have large matrices to read.
    W = W.repeat(2, 1, 1, 1)
    b = torch.cat([q, y]).view(-1, *state.x.shape[1:]) / W
    twice = (precision.repeat(2), lam.repeat(2), spectrum, state.x_seen.repeat(2, 1, 1, 1))
    inverse_q, inverse_y = (problem.operator.solve_regularized(b, *twice) / W).flatten(1).chunk(2)
    scale = torch.where(known, (s * y).sum(1) / (y * inverse_y).sum(1).clamp(min=TINY), 1)
    return scale[:, None] * inverse_q


def _local_curvature(state: HistoryState, met: Tensor, modeled: Tensor) -> Tensor:
    """W (B, 1, H, W): fourth root of the local ratio of squared gradient changes (B, memory, n), met and modeled."""
    # Recent steps count more; empty rows are zero and do not count at all.
    weight = AGING ** state.ages().to(met.dtype) / met.square().sum(2).clamp(min=TINY)

    def local(change: Tensor) -> Tensor:
        energy = (weight[..., None] * change.square()).sum(1).view_as(state.x).sum(1, keepdim=True)
        for _ in range(2):
            energy = F.avg_pool2d(F.pad(energy, [WINDOW // 2] * 4, mode="reflect"), WINDOW, 1)
        return energy

    ratio = (local(met) / local(modeled).clamp(min=TINY)).clamp(1e-4, 1e4)
    return torch.where(per_image(state.pairs > 0, ratio), ratio, 1.0) ** 0.25
