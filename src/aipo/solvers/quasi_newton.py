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
    """The inverse Hessian times q (B, n), beginning with `initial`, which applies a first guess of it.

    Each loop of the L-BFGS recursion is forward substitution with the triangle of the products s_i y_j: two small
    triangular solves take the place of a long chain of scalar products and updates.
    """
    memory = S.shape[1]
    order = _ages(S, pairs).argsort(dim=1)
    rows = torch.arange(len(q), device=q.device)[:, None]
    products = (S @ Y.mT)[rows[..., None], order[:, :, None], order[:, None, :]]
    lengths = (S.square().sum(2).sqrt() * Y.square().sum(2).sqrt())[rows, order]
    # A pair may have lost its positive curvature, if Y was re-weighted: it is left out then.
    stored = torch.arange(memory, device=S.device) < pairs[:, None].clamp(max=memory)
    usable = stored & (products.diagonal(dim1=1, dim2=2) > 1e-10 * lengths)
    # Newest first: s_i q = sum over newer j of (s_i y_j) alpha_j, plus (s_i y_i) alpha_i.
    both = usable[:, :, None] & usable[:, None, :]
    lower = torch.where(both, products, 0).tril() + torch.diag_embed((~usable).to(q.dtype))

    def along(history: Tensor, v: Tensor) -> Tensor:
        """Products of the usable rows with v, newest first (B, memory, 1)."""
        return torch.where(usable, (history @ v[..., None])[..., 0][rows, order], 0)[..., None]

    def combine(history: Tensor, coefficients: Tensor) -> Tensor:
        """The sum of the rows with coefficients, newest first (B, memory, 1)."""
        by_row = torch.zeros_like(coefficients[..., 0]).scatter(1, order, coefficients[..., 0])
        return (by_row[:, None] @ history)[:, 0]

    alpha = torch.linalg.solve_triangular(lower, along(S, q), upper=False)
    r = initial(q - combine(Y, alpha))
    # Oldest first: (s_i y_i) c_i = (s_i y_i) alpha_i - y_i r - sum over older j of (y_i s_j) c_j.
    right = lower.diagonal(dim1=1, dim2=2)[..., None] * alpha - along(Y, r)
    c = torch.linalg.solve_triangular(lower.mT, right, upper=True)
    return r + combine(S, c)


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
