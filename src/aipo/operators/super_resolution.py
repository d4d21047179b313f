"""Super-resolution: a coarser image is observed."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aipo.errors import InputError
from aipo.operators.base import checked_image_shape
from aipo.operators.linear import LinearOperator

__all__ = ["SuperResolution"]


class SuperResolution(LinearOperator):
    """A x = means of factor x factor pixels (average pooling). Measurements are (B, C, H/factor, W/factor).

    Arguments:
        image_shape: (C, H, W).
        factor: must divide H and W.

    Examples:
        >>> import torch
        >>> half = SuperResolution((1, 2, 4), factor=2)
        >>> half.A(torch.tensor([[[[0.0, 1.0, 0.2, 0.2], [1.0, 0.0, 0.4, 0.4]]]]))
        tensor([[[[0.5000, 0.3000]]]])
    """

    capturable = True

    def __init__(self, image_shape: Sequence[int], factor: int):
        channels, height, width = checked_image_shape(image_shape)
        if factor < 1 or height % factor or width % factor:
            raise InputError(f"factor is {factor}; choose a divisor of the image's height {height} and width {width}")
        super().__init__(image_shape, measurement_shape=(channels, height // factor, width // factor))
        self.factor, self.tight = factor, 1 / factor**2

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return x.unflatten(-1, (-1, self.factor)).unflatten(-3, (-1, self.factor)).mean((-3, -1))

    def A_adjoint(self, y: Tensor) -> Tensor:
        return self.A_dagger(y) / self.factor**2

    def A_dagger(self, y: Tensor) -> Tensor:
        """Each measurement copied to its pixels: A^+ = factor^2 A^T, because A A^T = I / factor^2."""
        self.check_measurement(y)
        return y.repeat_interleave(self.factor, -1).repeat_interleave(self.factor, -2)

    def detail(self) -> str:
        return f"factor={self.factor}"
