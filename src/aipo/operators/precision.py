"""Half precision, where a routine lacks it."""

import torch
from torch import Tensor

__all__ = ["at_least_float32"]


def at_least_float32(x: Tensor) -> Tensor:
    """x, converted to float32 if it has less: FFTs and Cholesky solves do not exist in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
