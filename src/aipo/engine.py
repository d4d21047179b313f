"""The hot path: value and gradient of D + lam * P for a batch of images. Every solver calls this and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Evaluation", "evaluate", "hessian_vector"]

Term = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Both terms of the loss at x, and their gradients, per image.

    The terms are kept apart because the loss is linear in lam: one evaluation serves every lam at the same x.
    """

    D: Tensor
    P: Tensor
    grad_D: Tensor
    grad_P: Tensor

    def loss(self, lam: Tensor) -> Tensor:
        """L = D + lam * P (B,), for lam (B,)."""
        return self.D + lam * self.P

    def gradient(self, lam: Tensor) -> Tensor:
        """Gradient of L in x (B, C, H, W), for lam (B,)."""
        return self.grad_D + lam.view(-1, 1, 1, 1) * self.grad_P

    @property
    def finite(self) -> Tensor:
        """Which images (B,) have finite values and gradients."""
        # A sum is finite only if every entry is (or opposite infinities meet, which gives NaN).
        total = self.D + self.P + (self.grad_D + self.grad_P).flatten(1).sum(1)
        return total.isfinite()


def evaluate(D: Term, P: Term, x: Tensor) -> Evaluation:
    """One gradient evaluation: D and P map images (B, C, H, W) to (B,); images are independent of each other."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        d, p = D(x), P(x)
        (grad_d,) = torch.autograd.grad(d.sum(), x)
        (grad_p,) = torch.autograd.grad(p.sum(), x)
    return Evaluation(d.detach(), p.detach(), grad_d, grad_p)


def hessian_vector(loss: Term, x: Tensor, v: Tensor) -> Tensor:
    """Hessian of a per-image loss at x times v, both (B, C, H, W), by differentiating the gradient once more."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad((gradient * v).sum(), x)
    return product
