"""Conjugate gradients for a batch of linear systems."""

from collections.abc import Callable

import torch
from torch import Tensor

from aipo.batch import CHECK_EVERY, none_left

__all__ = ["conjugate_gradient"]


def conjugate_gradient(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    max_iter: int = 500,
    tol: float | None = None,
    precondition: Callable[[Tensor], Tensor] = lambda r: r,
) -> Tensor:
    """Solve H v = b for each image, from v = 0.

    H must be symmetric and positive semi-definite. If it is singular and b lies in its range, v is the
    solution of least norm, because no iterate ever leaves the range.

    Arguments:
        apply: v (B, ...) -> H v, image by image.
        b: right-hand sides (B, ...).
        tol: an image is done, and stays as it is, once its residual is below tol * |b|; by default 2e-12 in
            float64, 6e-6 in float32: well above rounding, which a singular H would blow up into huge steps.
        precondition: r (B, ...) -> M r, with M symmetric, positive definite and near the inverse of H. Residuals
            are then measured by r^T M r.
    """
    tol = torch.finfo(b.dtype).eps ** 0.75 if tol is None else tol
    v, r = torch.zeros_like(b), b
    z = precondition(r)
    p, rr = z, _dot(r, z)
    enough = tol**2 * rr
    for i in range(max_iter):
        active = rr > enough
        if i % CHECK_EVERY == 0 and none_left(active):
            break
        Hp = apply(p)
        pHp = _dot(p, Hp)
        # pHp vanishes only for p = 0 or by rounding: no step can then improve the solution.
        moving = active & (pHp > 0)
        alpha = torch.where(moving, rr / torch.where(moving, pHp, 1), 0)
        v, r = v + alpha * p, r - alpha * Hp
        z = precondition(r)
        rr, rr_before = _dot(r, z), rr
        p = torch.where(moving, z + rr / torch.where(moving, rr_before, 1) * p, p)
    return v


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(tuple(range(1, a.ndim)), keepdim=True)
