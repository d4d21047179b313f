"""Saturation: a sensor that compresses dark and bright intensities."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aipo.errors import InputError
from aipo.operators.nonlinear import NonlinearOperator

__all__ = ["Saturation"]


class Saturation(NonlinearOperator):
    """Soft clipping of each intensity, f(x) = 1 / (1 + exp(-4 gain (x - 1/2))).

    f is smooth and increasing, maps all real numbers into (0,1), and has f(1/2) = 1/2 with slope `gain`: at
    gain 1 it is close to x in the middle; larger gains saturate harder.
    """

    def __init__(self, image_shape: Sequence[int], gain: float = 1.0):
        super().__init__(image_shape, measurement_shape=image_shape)
        if not (math.isfinite(gain) and gain > 0):
            raise InputError(f"gain is {gain}; it must be finite and greater than 0")
        self.gain = gain

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return (4 * self.gain * (x - 0.5)).sigmoid()

    def detail(self) -> str:
        return f"gain={self.gain:g}"
