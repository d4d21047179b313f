"""Denoising: the image itself is observed."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aipo.batch import per_image
from aipo.operators.inpainting import Inpainting
from aipo.operators.linear import LinearOperator
from aipo.transforms.spectrum import Spectrum

__all__ = ["Denoising"]


class Denoising(LinearOperator):
    """A x = x."""

    capturable = True
    tight = 1.0

    def __init__(self, image_shape: Sequence[int]):
        super().__init__(image_shape, measurement_shape=image_shape)

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return x

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return y

    def A_dagger(self, y: Tensor) -> Tensor:
        return self.A_adjoint(y)

    def subset(self, kept: Tensor) -> Inpainting:
        return Inpainting(self.checked_kept(kept), self.image_shape)

    def solve_regularized(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """See `Operator`. In closed form, frequency by frequency."""
        return spectrum.solve(b, per_image(lam, b), per_image(precision, b))
