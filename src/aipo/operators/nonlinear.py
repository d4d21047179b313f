"""Nonlinear forward operators."""

from collections.abc import Callable

import torch
from torch import Tensor

from aipo.batch import max_change, per_image
from aipo.operators.base import Operator
from aipo.operators.regularized import solve_by_conjugate_gradients
from aipo.operators.subset import Subset
from aipo.transforms.conjugate_gradient import conjugate_gradient
from aipo.transforms.spectrum import Spectrum

__all__ = ["NonlinearOperator"]

# Of `prox_l2`: Gauss-Newton steps, how often one is halved, and the relative error of each.
PROX_STEPS, PROX_HALVINGS, PROX_DIGITS = 5, 6, 1e-3


class NonlinearOperator(Operator):
    """A differentiable f, given by `A`. Jacobian products come from automatic differentiation."""

    linear = False

    @torch.no_grad()
    def least_squares(self, y: Tensor, x0: Tensor | None = None, max_iter: int = 500, tol: float = 1e-6) -> Tensor:
        """A minimizer of |f(x) - y|^2 over [0,1]^n: f(x) = y if y can be reached, a best fit otherwise.

        Levenberg-Marquardt with bounds: with r = f(x) - y and its Jacobian J in the pixels free to move,

            x <- clip(x - d, 0, 1),    (J^T J + mu I) d = J^T r.

        A step that lowers |r| is kept and divides mu by 10; any other is dropped and multiplies mu by 10.

        Arguments:
            y: measurements (B, *measurement_shape).
            x0: where to start, images (B, C, H, W); mid-gray by default.
            tol: an image is done, and stays as it is, once a step would move no pixel by more than this.
        """
        x = y.new_full((len(y), *self.image_shape), 0.5) if x0 is None else x0
        self.check_pair(x, y)
        x = x.clamp(0, 1)
        r = self.A(x) - y
        mu = y.new_full((len(y),), 1e-3)
        active = torch.ones_like(mu, dtype=torch.bool)
        for _ in range(max_iter):
            x_next = (x - self._step(x, r, per_image(mu, x))).clamp(0, 1)
            r_next = self.A(x_next) - y
            still = active & (max_change(x, x_next) > tol)
            keep = active & (_decrease(r, r_next) > 0)
            x, r = torch.where(per_image(keep, x), x_next, x), torch.where(per_image(keep, r), r_next, r)
            mu, active = torch.where(keep, mu / 10, mu * 10), still
            if not active.any():
                break
        return x

    def project(self, x: Tensor, y: Tensor, max_iter: int = 500, tol: float = 1e-6) -> Tensor:
        """A point near x with f(x) = y and all pixels in [0,1], by `least_squares` from x.

        As mu falls, each step goes to the nearest point where the linearised f equals y: the counterpart of
        the alternating projections of a linear operator.
        """
        self.check_pair(x, y)
        return self.least_squares(y, x, max_iter, tol)

    def subset(self, kept: Tensor) -> "NonlinearOperator":
        """See `Operator`."""
        return NonlinearSubset(self, kept)

    @torch.no_grad()
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v (B, C, H, W) that leaves f unchanged at x to first order, v - J^+ J v."""
        self.check_image(x)
        self.check_image(v)
        J, Jt = self.jacobian_at(x)
        return v - conjugate_gradient(lambda u: Jt(J(u)), Jt(J(v)))

    @torch.no_grad()
    def solve_regularized(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """See `Operator`. By conjugate gradients with the Jacobian at x (Gauss-Newton)."""
        J, Jt = self.jacobian_at(x)
        return solve_by_conjugate_gradients(lambda v: Jt(J(v)), b, precision, lam, spectrum)

    @torch.no_grad()
    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. By Gauss-Newton steps from z, each halved until it lowers the objective."""
        self.check_pair(z, y)
        factor = per_image(gamma, z)

        def objective(x: Tensor) -> Tensor:
            misfit, distance = ((v).flatten(1).square().sum(1) for v in (self.A(x) - y, x - z))
            return gamma * misfit + distance

        x, value = z, objective(z)
        for _ in range(PROX_STEPS):
            J, Jt = self.jacobian_at(x)
            pull = factor * Jt(y - self.A(x)) + z - x
            step = conjugate_gradient(lambda v, J=J, Jt=Jt: v + factor * Jt(J(v)), pull, 100, PROX_DIGITS)  # type: ignore[misc]
            for _ in range(PROX_HALVINGS):
                lower = objective(x + step) <= value
                step = torch.where(per_image(lower, step), step, step / 2)
            moved = objective(x + step)
            x = torch.where(per_image(moved <= value, x), x + step, x)
            value = torch.minimum(moved, value)
        return x

    def jacobian_at(self, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        x = x.contiguous()  # forward differentiation cannot take one image that is expanded to a batch
        vjp = torch.func.vjp(self.A, x)[1]
        return lambda v: torch.func.jvp(self.A, (x,), (v,))[1], lambda u: vjp(u)[0]

    def _step(self, x: Tensor, r: Tensor, mu: Tensor) -> Tensor:
        """The Levenberg-Marquardt step d at x."""
        J, Jt = self.jacobian_at(x)
        gradient = Jt(r)
        # A pixel that sits on a bound and would cross it must not take part: clipping could turn descent into
        # ascent.
        free = ~((x <= 0) & (gradient > 0) | (x >= 1) & (gradient < 0))

        def JtJ_plus_mu(v: Tensor) -> Tensor:
            return free * Jt(J(free * v)) + mu * v

        # Three digits are enough: the next step starts from the true residual again.
        return conjugate_gradient(JtJ_plus_mu, free * gradient, max_iter=100, tol=1e-3)


class NonlinearSubset(Subset, NonlinearOperator):
    """Some measurements of a nonlinear operator."""


def _decrease(r: Tensor, r_next: Tensor) -> Tensor:
    """|r|^2 - |r_next|^2 of each image. Pixels that stay contribute exactly 0, however badly y fits there."""
    return ((r - r_next) * (r + r_next)).flatten(1).sum(1)
