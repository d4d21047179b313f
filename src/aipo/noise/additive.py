"""Noise that is added, with one scale: Gaussian and Laplace."""

import math
from copy import copy

import torch
from torch import Generator, Tensor

from aipo.errors import InputError
from aipo.noise.base import AdditiveNoise, Noise
from aipo.noise.entries import count_entries, positive, sum_entries

__all__ = ["Gaussian", "Laplace"]


class ScaledNoise(AdditiveNoise):
    """Noise with independent entries and one scale, shared by the batch or per image."""

    capturable = True
    _unit_variance: float

    def __init__(self, name: str, scale: float | Tensor):
        self._name = name
        self._scale = positive(name, scale)

    def _scale_for(self, e: Tensor) -> float | Tensor:
        """The scale, broadcastable to e (B, ...)."""
        if isinstance(self._scale, float):
            return self._scale
        scale = self._checked_scale(e)
        if scale.device != e.device:
            # Moved once and kept: a copy from the CPU at every evaluation would stall the GPU.
            with torch.inference_mode(False):
                self._scale = scale = scale.to(e.device)
        return scale.to(e.dtype).reshape(-1, *[1] * (e.ndim - 1))

    def _checked_scale(self, e: Tensor) -> Tensor:
        scale = torch.as_tensor(self._scale)
        if e.shape[0] != len(scale):
            raise InputError(
                f"{self._name} holds {len(scale)} values for a batch of {e.shape[0]} images; "
                "give one number, or one value per image"
            )
        return scale

    def take(self, rows: Tensor) -> Noise:
        if isinstance(self._scale, float):
            return self
        part = copy(self)
        part._scale = self._scale[rows.to(self._scale.device)]
        return part

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        raise NotImplementedError

    def variance(self, y: Tensor) -> Tensor:
        scale = self._scale_for(y)
        if isinstance(scale, float):
            return y.new_full((len(y),), self._unit_variance * scale**2)
        return self._unit_variance * scale.flatten().square()

    def draw(self, shape: torch.Size, generator: Generator | None = None) -> Tensor:
        # In float64 on the CPU, so that a seed means the same noise for every dtype and device.
        e = self._unit_draw(shape, generator)
        if isinstance(self._scale, float):
            return self._scale * e
        return self._checked_scale(e).cpu().to(e.dtype).reshape(-1, *[1] * (e.ndim - 1)) * e

    def __repr__(self) -> str:
        if isinstance(self._scale, float):
            value = f"{self._scale:g}"
        else:
            value = f"[{', '.join(f'{number:g}' for number in self._scale.tolist())}]"
        return f"{type(self).__name__}({self._name}={value})"


class Gaussian(ScaledNoise):
    """Gaussian noise, e ~ N(0, sigma^2 I).

    Arguments:
        sigma: standard deviation, > 0, on the [0,1] scale of the images; one number or a tensor (B,), one per
            image.

    Examples:
        >>> import torch
        >>> Gaussian(0.1).log_density(torch.zeros(2, 3))  # three times -log(0.1 sqrt(2 pi))
        tensor([4.1509, 4.1509])
        >>> Gaussian(torch.tensor([0.1, 0.2]))  # one for each image
        Gaussian(sigma=[0.1, 0.2])
    """

    _unit_variance = 1.0

    def __init__(self, sigma: float | Tensor):
        super().__init__("sigma", sigma)

    @property
    def sigma(self) -> float | Tensor:
        return self._scale

    def log_density(self, e: Tensor) -> Tensor:
        sigma = self._scale_for(e)
        return sum_entries(-(e / sigma).square() / 2) - count_entries(e) * (_log(sigma) + math.log(2 * math.pi) / 2)

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


class Laplace(ScaledNoise):
    """Laplace noise, p(e) = exp(-|e| / scale) / (2 scale) for each entry.

    Arguments:
        scale: > 0, on the [0,1] scale of the images (the standard deviation is sqrt(2) scale); one number or
            a tensor (B,), one per image.

    Examples:
        >>> import torch
        >>> Laplace(0.1).log_density(torch.zeros(1, 3))  # three times -log(0.2)
        tensor([4.8283])
    """

    _unit_variance = 2.0

    def __init__(self, scale: float | Tensor):
        super().__init__("scale", scale)

    @property
    def scale(self) -> float | Tensor:
        return self._scale

    def log_density(self, e: Tensor) -> Tensor:
        scale = self._scale_for(e)
        return sum_entries(-(e / scale).abs()) - count_entries(e) * (_log(scale) + math.log(2))

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        # The difference of two exponentials is Laplace; unlike the inverse CDF it can never be infinite.
        a, b = torch.empty(2, *shape, dtype=torch.float64).exponential_(generator=generator)
        return a - b


def _log(scale: float | Tensor) -> float | Tensor:
    return scale.flatten().log() if isinstance(scale, Tensor) else math.log(scale)
