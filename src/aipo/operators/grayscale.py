"""Colorization: only a weighted sum of the channels is observed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.operators.base import checked_image_shape
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator

__all__ = ["Grayscale"]


class Grayscale(LinearOperator):
    """A x = sum over channels of w_c x_c. Measurements are (B, 1, H, W).

    Arguments:
        image_shape: (C, H, W).
        weights: w, one per channel; by default the luma of ITU-R BT.601 for RGB.
    """

    capturable = True

    def __init__(self, image_shape: Sequence[int], weights: Sequence[float] = (0.299, 0.587, 0.114)):
        channels, height, width = checked_image_shape(image_shape)
        super().__init__(image_shape, measurement_shape=(1, height, width))
        w = torch.tensor(tuple(weights), dtype=torch.float64)
        if len(w) != channels or not w.isfinite().all() or not w.any():
            raise InputError(
                f"weights are {tuple(weights)}; give {channels} finite values, one per channel, not all zero"
            )
        self.weights = tuple(weights)
        self.tight = w.square().sum().item()
        self._w = Constant(w[:, None, None])
        self._w_dagger = Constant(w[:, None, None] / w.square().sum())

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return (self._w.like(x) * x).sum(1, keepdim=True)

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._w.like(y) * y

    def A_dagger(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._w_dagger.like(y) * y

    def detail(self) -> str:
        return f"weights={self.weights}"
