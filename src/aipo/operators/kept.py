"""An operator with some of its measurements left out, for judging a restoration by what it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.operators.base import Operator
from aipo.operators.compressed_sensing import CompressedSensing
from aipo.operators.constant import Constant
from aipo.operators.denoising import Denoising
from aipo.operators.inpainting import Inpainting
from aipo.operators.linear import LinearOperator
from aipo.operators.nonlinear import NonlinearOperator

__all__ = ["keep"]


def keep(operator: Operator, kept: Tensor) -> Operator:
    """The operator with zeros for the measurements that are not kept; kept has the shape of one measurement."""
    kept = kept.to(torch.float32).cpu()
    # Where an operator of ours does the same, its closed forms are worth having.
    if isinstance(operator, Denoising):
        return Inpainting(kept, operator.image_shape)
    if isinstance(operator, Inpainting):
        return Inpainting(kept * operator.mask.cpu(), operator.image_shape)
    if isinstance(operator, CompressedSensing):
        matrix = operator.matrix
        return CompressedSensing(operator.image_shape, matrix=matrix * kept.to(matrix)[:, None])
    return KeptLinear(operator, kept) if operator.linear else KeptNonlinear(operator, kept)


class _Kept(Operator):
    def __init__(self, operator: Operator, kept: Tensor):
        super().__init__(operator.image_shape, operator.measurement_shape)
        self._operator, self._kept = operator, Constant(kept)
        self.num_measurements = int(self.restrict(torch.ones(1, *self.measurement_shape)).count_nonzero())

    def A(self, x: Tensor) -> Tensor:
        y = self._operator.A(x)
        return y * self._kept.like(y)

    def restrict(self, y: Tensor) -> Tensor:
        return self._operator.restrict(y) * self._kept.like(y)

    def detail(self) -> str:
        return f"{self.num_measurements} measurements of {self._operator!r}"


class KeptLinear(_Kept, LinearOperator):
    pass


class KeptNonlinear(_Kept, NonlinearOperator):
    pass
