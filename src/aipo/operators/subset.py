"""An operator with some of its measurements left out, for judging a restoration by what it has not seen."""

from typing import Any

import torch
from torch import Tensor

from aipo.operators.base import Operator
from aipo.operators.constant import Constant

__all__ = ["Subset"]


class Subset(Operator):
    """An operator whose measurements are 0 where kept, of the shape of one measurement, is 0.

    What it needs beside `A` comes from `LinearOperator` or `NonlinearOperator`, with which it is combined there.
    """

    def __init__(self, operator: Operator, kept: Tensor):
        super().__init__(operator.image_shape, operator.measurement_shape)
        self._operator, self._kept = operator, Constant(operator.checked_kept(kept))
        self.num_measurements = int(self.restrict(torch.ones(1, *self.measurement_shape)).count_nonzero())

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        y = self._operator(x, **parameters)
        return y * self._kept.like(y)

    def restrict(self, y: Tensor) -> Tensor:
        return self._operator.restrict(y) * self._kept.like(y)

    def detail(self) -> str:
        return f"{self.num_measurements} measurements of {self._operator!r}"
