"""The inverse Hessian of L-BFGS: the last steps of every image, and the model of the Hessian with which it begins.

Because L is linear in lam, a step is stored with the changes of both gradients: at a new lam the stored steps are
re-weighted exactly. The recursion begins with the model

    H(lam) = W (J^T J / sigma^2 + lam S) W

S is the mean curvature of the prior (`Surrogate`), diagonal in frequency; the bracket is solved in closed form or by
conjugate gradients at almost no cost beside a gradient of the flow. W is diagonal in space. A flow bends far more
where an image is flat than where it is textured, and the steps taken so far show where: W^2 is the local ratio of the
curvature they met to that of the bracket. The whole is scaled to the curvature along the newest step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.batch import per_image
from aipo.problem.map_problem import MapProblem
from aipo.solvers.base import State

__all__ = ["TINY", "HessianModel", "HistoryState", "solve_model", "two_loop"]

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
