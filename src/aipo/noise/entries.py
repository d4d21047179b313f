"""Small sums over the entries of a measurement, and the check of a scale."""

import math

from torch import Tensor

from aipo.errors import InputError

__all__ = ["count_entries", "mean_of_seen", "positive", "sum_entries"]

SMALLEST, LARGEST = 1e-9, 1e9  # a scale whose square float32 can still hold, with room for sums


def positive(name: str, value: float | Tensor) -> float | Tensor:
    if isinstance(value, Tensor) and value.ndim > 0:
        if value.ndim > 1:
            raise InputError(f"{name} has shape {tuple(value.shape)}; give one number, or a tensor (B,)")
        if not ((value >= SMALLEST) & (value <= LARGEST)).all():
            raise InputError(f"{name} is {value.tolist()}; every value must be from {SMALLEST:g} to {LARGEST:g}")
        return value.detach().clone()
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give one number, or a tensor (B,)") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} is {number}; it must be finite and greater than 0")
    if not SMALLEST <= number <= LARGEST:
        raise InputError(f"{name} is {number:g}; it must be from {SMALLEST:g} to {LARGEST:g}")
    return number


def mean_of_seen(y: Tensor) -> Tensor:
    """The mean of each measurement (B,), zeros left out: pixels that were not observed have them."""
    return y.flatten(1).sum(1) / (y != 0).flatten(1).sum(1).clamp(min=1)


def sum_entries(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(1)


def count_entries(e: Tensor) -> int:
    return math.prod(e.shape[1:])
