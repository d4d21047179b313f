"""Denoising: the image itself is observed."""

from collections.abc import Sequence

from torch import Tensor

from aipo.batch import per_image
from aipo.operators.linear import LinearOperator
from aipo.spectrum import Spectrum

__all__ = ["Denoising"]


class Denoising(LinearOperator):
    """A x = x."""

    capturable = True

    def __init__(self, image_shape: Sequence[int]):
        super().__init__(image_shape, measurement_shape=image_shape)

    def A(self, x: Tensor) -> Tensor:
        self.check_image(x)
        return x

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return y

    def A_dagger(self, y: Tensor) -> Tensor:
        return self.A_adjoint(y)

    def solve_regularised(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """See `Operator`. In closed form, frequency by frequency."""
        return spectrum.solve(b, per_image(lam, b), per_image(precision, b))
