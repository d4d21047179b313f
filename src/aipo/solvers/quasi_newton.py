"""What a history of steps tells about a Hessian: the L-BFGS recursion, and where in an image it bends how much.

A history holds the last `memory` steps of each image as S (B, memory, n) and the changes of the gradient along them as
Y, likewise; pairs (B,) counts what was ever stored, and the newest is at (pairs - 1) % memory. Empty rows are zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.batch import per_image

__all__ = ["TINY", "local_curvature", "newest", "put", "two_loop"]

TINY = 1e-30
WINDOW = 3  # pixels over which local curvature is averaged, twice
AGEING = 0.9  # of the steps from which it is taken


def _ages(S: Tensor, pairs: Tensor) -> Tensor:
    """How many steps ago each row was stored (B, memory)."""
    memory = S.shape[1]
    return (pairs[:, None] - 1 - torch.arange(memory, device=S.device)) % memory


def newest(history: Tensor, pairs: Tensor) -> Tensor:
    """The row stored last (B, n)."""
    return history[torch.arange(len(history), device=history.device), (pairs - 1) % history.shape[1]]


def put(history: Tensor, pairs: Tensor, new: Tensor, which: Tensor) -> Tensor:
    """The history with `new` (B, n) in place of the oldest row, for some images."""
    rows = torch.arange(history.shape[1], device=history.device)
    here = which[:, None] & (rows == (pairs % history.shape[1])[:, None])
    return torch.where(here[:, :, None], new[:, None], history)


def two_loop(S: Tensor, Y: Tensor, pairs: Tensor, q: Tensor, initial: Callable[[Tensor], Tensor]) -> Tensor:
    """The inverse Hessian times q (B, n), beginning with `initial`, which applies a first guess of it."""
    memory = S.shape[1]
    sy = (S * Y).sum(2)
    # A pair may have lost its positive curvature, if Y was re-weighted: it is left out then.
    stored = torch.arange(memory, device=S.device) < pairs[:, None]
    usable = stored & (sy > 1e-10 * S.norm(dim=2) * Y.norm(dim=2))
    rho = torch.where(usable, 1 / torch.where(usable, sy, 1), 0)
    order = _ages(S, pairs).argsort(dim=1).unbind(1)
    rows = torch.arange(len(q), device=q.device)
    alphas = []
    for i in order:
        alpha = rho[rows, i] * (S[rows, i] * q).sum(1)
        q = q - alpha[:, None] * Y[rows, i]
        alphas.append(alpha)
    r = initial(q)
    for i, alpha in zip(reversed(order), reversed(alphas), strict=True):
        beta = rho[rows, i] * (Y[rows, i] * r).sum(1)
        r = r + (alpha - beta)[:, None] * S[rows, i]
    return r


def local_curvature(met: Tensor, modelled: Tensor, pairs: Tensor, shape: torch.Size) -> Tensor:
    """W (B, 1, H, W): fourth root of the local ratio of squared gradient changes (B, memory, n), met and modelled."""
    # Recent steps count more; empty rows are zero and do not count at all.
    weight = AGEING ** _ages(met, pairs).to(met.dtype) / met.square().sum(2).clamp(min=TINY)

    def local(change: Tensor) -> Tensor:
        energy = (weight[..., None] * change.square()).sum(1).view(-1, *shape).sum(1, keepdim=True)
        for _ in range(2):
            energy = F.avg_pool2d(F.pad(energy, [WINDOW // 2] * 4, mode="reflect"), WINDOW, 1)
        return energy

    ratio = (local(met) / local(modelled).clamp(min=TINY)).clamp(1e-4, 1e4)
    return torch.where(per_image(pairs > 0, ratio), ratio, 1.0) ** 0.25
