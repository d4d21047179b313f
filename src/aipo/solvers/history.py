"""The last steps of every image, and the L-BFGS recursion, which makes an inverse Hessian of them.

Because L is linear in lam, a step is stored with the changes of both gradients: at a new lam the stored steps are
re-weighted exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from aipo.solvers.base import State

__all__ = ["TINY", "HistoryState", "two_loop"]

TINY = 1e-30


@dataclass(frozen=True)
class HistoryState(State):
    """A state with the last steps of the iterate. Rows that are still empty are zero.

    Attributes:
        S, Y_D, Y_P: steps and the changes of both gradients along them, (B, memory, n).
        SS: the prior's mean curvature times those steps, likewise.
        pairs: how many steps an image has stored so far (B,); the newest is at (pairs - 1) % memory.
    """

    S: Tensor
    SS: Tensor
    Y_D: Tensor
    Y_P: Tensor
    pairs: Tensor

    def changes(self, lam: Tensor) -> Tensor:
        """Changes of the gradient of L(.; lam) along the stored steps (B, memory, n)."""
        return self.Y_D + lam[:, None, None] * self.Y_P

    def ages(self) -> Tensor:
        """How many steps ago each row was stored (B, memory)."""
        memory = self.S.shape[1]
        return (self.pairs[:, None] - 1 - torch.arange(memory, device=self.S.device)) % memory

    def newest(self, history: Tensor) -> Tensor:
        """The row of a history that was stored last (B, n)."""
        rows = torch.arange(len(history), device=history.device)
        return history[rows, (self.pairs - 1) % history.shape[1]]

    def remember(self, which: Tensor, s: Tensor, curved_s: Tensor, y_D: Tensor, y_P: Tensor) -> Self:
        """Store a step of some images, all (B, n), in place of their oldest."""
        rows = torch.arange(self.S.shape[1], device=self.S.device)
        here = which[:, None] & (rows == (self.pairs % self.S.shape[1])[:, None])

        def stored(history: Tensor, new: Tensor) -> Tensor:
            return torch.where(here[:, :, None], new[:, None], history)

        return replace(
            self,
            S=stored(self.S, s),
            SS=stored(self.SS, curved_s),
            Y_D=stored(self.Y_D, y_D),
            Y_P=stored(self.Y_P, y_P),
            pairs=self.pairs + which,
        )

    def forget(self, which: Tensor) -> Self:
        """Drop all steps of some images."""
        rows = which[:, None, None]
        return replace(
            self,
            S=self.S.masked_fill(rows, 0),
            SS=self.SS.masked_fill(rows, 0),
            Y_D=self.Y_D.masked_fill(rows, 0),
            Y_P=self.Y_P.masked_fill(rows, 0),
            pairs=self.pairs.masked_fill(which, 0),
        )


def two_loop(state: HistoryState, Y: Tensor, q: Tensor, initial: Callable[[Tensor], Tensor]) -> Tensor:
    """The inverse Hessian times q (B, n), beginning with `initial`, which applies a first guess of it.

    Y holds the changes of the gradient along the stored steps (B, memory, n). Each loop of the
    L-BFGS recursion is forward substitution with the triangle of the products s_i y_j: two small triangular solves take
    the place of a long chain of scalar products and updates.
    """
    S, memory = state.S, state.S.shape[1]
    order = state.ages().argsort(dim=1)
    rows = torch.arange(len(q), device=q.device)[:, None]
    products = (S @ Y.mT)[rows[..., None], order[:, :, None], order[:, None, :]]
    lengths = (S.square().sum(2).sqrt() * Y.square().sum(2).sqrt())[rows, order]
    # A pair may have lost its positive curvature, if Y was re-weighted: it is left out then.
    stored = torch.arange(memory, device=S.device) < state.pairs[:, None].clamp(max=memory)
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
