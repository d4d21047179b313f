"""Linear forward operators, f(x) = A x."""

from collections.abc import Callable

import torch
from torch import Tensor

from aipo.batch import CHECK_EVERY, max_change, none_left, per_image
from aipo.operators.base import Operator
from aipo.operators.regularized import solve_by_conjugate_gradients
from aipo.operators.subset import Subset
from aipo.transforms.conjugate_gradient import conjugate_gradient
from aipo.transforms.spectrum import Spectrum

__all__ = ["LinearOperator"]

PROX_DIGITS = 1e-4  # relative error of `prox_l2` by conjugate gradients


class LinearOperator(Operator):
    """f(x) = A x, with its adjoint, its pseudo-inverse and the projections built on them.

    Your own operator only needs `A`; the other methods then cost more than closed forms would.

    Examples:
        >>> import torch
        >>> class Flip(LinearOperator):
        ...     def __init__(self, image_shape):
        ...         super().__init__(image_shape, measurement_shape=image_shape)
        ...
        ...     def A(self, x):
        ...         return x.flip(-1)
        >>> x = torch.rand(1, 3, 8, 8)
        >>> flip = Flip((3, 8, 8))
        >>> torch.allclose(flip.A_dagger(flip.A(x)), x, atol=1e-5)
        True
    """

    linear = True
    tight: float | None = None  # a, if A A^T = a I on all that is observed

    def A_adjoint(self, y: Tensor) -> Tensor:
        """A^T y, with <A x, y> = <x, A^T y>, of y (B, *measurement_shape): (B, C, H, W)."""
        self.check_measurement(y)
        zeros = y.new_zeros(len(y), *self.image_shape)
        return torch.func.vjp(self.A, zeros)[1](y)[0]

    def A_dagger(self, y: Tensor) -> Tensor:
        """A^+ y, the Moore-Penrose pseudo-inverse: the minimizer of |A x - y| that has the least norm."""
        # On the normal equations rather than A A^T z = y: y need not lie in the range of A.
        return conjugate_gradient(lambda x: self.A_adjoint(self.A(x)), self.A_adjoint(y))

    def jacobian_at(self, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """A and its adjoint, wherever x is."""
        return self.A, self.A_adjoint

    def adjoint_at(self, x: Tensor, u: Tensor) -> Tensor:
        return self.A_adjoint(u)

    def subset(self, kept: Tensor) -> "LinearOperator":
        """See `Operator`. An operator that knows one of its own with closed forms overrides this."""
        return LinearSubset(self, kept)

    def project_affine(self, x: Tensor, y: Tensor) -> Tensor:
        """The point of {A x = y} nearest to x; if there is none, of the least-squares solutions."""
        self.check_pair(x, y)
        return x - self.A_dagger(self.A(x) - y)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v (B, C, H, W) in the null space of A, v - A^+ A v; the same at every x."""
        return v - self.A_dagger(self.A(v))

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. In closed form where A A^T is a multiple of the identity, else by conjugate gradients."""
        self.check_pair(z, y)
        factor = per_image(gamma, z)
        pull = self.A_adjoint(y - self.A(z))
        if self.tight is not None:
            return z + factor / (1 + factor * self.tight) * pull
        return z + conjugate_gradient(lambda v: v + factor * self.A_adjoint(self.A(v)), factor * pull, 100, PROX_DIGITS)

    def solve_regularized(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """See `Operator`. By conjugate gradients; an operator that knows a closed form overrides this."""
        return solve_by_conjugate_gradients(lambda v: self.A_adjoint(self.A(v)), b, precision, lam, spectrum)

    @torch.no_grad()
    def project(self, x: Tensor, y: Tensor, max_iter: int = 500, tol: float = 1e-6) -> Tensor:
        """A point near x in {A x = y} and [0,1]^n, by alternating projections (appendix A of the paper).

        The result always lies in [0,1]^n. If no image there has A x = y, none is nearer to {A x = y}.

        Arguments:
            x: images (B, C, H, W).
            y: measurements (B, *measurement_shape).
            tol: an image is done, and stays as it is, once no pixel moves by more than this.
        """
        self.check_pair(x, y)
        active = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for i in range(max_iter):
            x_next = self.project_affine(x, y).clamp(0, 1)
            still = active & (max_change(x, x_next) > tol)
            x, active = torch.where(per_image(active, x), x_next, x), still
            if i % CHECK_EVERY == 1 and none_left(active):
                break
        return x


class LinearSubset(Subset, LinearOperator):
    """Some measurements of a linear operator."""
