"""Fourier subsampling: some spatial frequencies are observed, as in single-coil MRI."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.operators.base import checked_image_shape, without_leading_ones
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator
from aipo.operators.precision import at_least_float32

__all__ = ["FourierSubsampling"]


class FourierSubsampling(LinearOperator):
    """A x = mask * F x, F the orthonormal 2-D Fourier transform of each channel.

    Measurements are real, (B, C, 2, H, W): real and imaginary parts, zeros where a frequency is not sampled.

    Arguments:
        image_shape: (C, H, W).
        mask: (H, W), 1 or True = sampled, 0 or False = not, in the order of `torch.fft.fft2`: the mean is
            at [0, 0]. Leading dimensions of 1 do not matter.
    """

    capturable = True

    def __init__(self, image_shape: Sequence[int], mask: Tensor):
        channels, height, width = checked_image_shape(image_shape)
        super().__init__(image_shape, measurement_shape=(channels, 2, height, width))
        mask = without_leading_ones(mask, 2)
        if mask.shape != (height, width):
            raise InputError(f"mask has shape {tuple(mask.shape)}; images {self.image_shape} need {(height, width)}")
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError("mask has values other than 0 and 1; use 1 for sampled frequencies and 0 for the others")
        if not mask.any():
            raise InputError("mask is 0 everywhere; mark at least one sampled frequency with 1")
        M = mask.to(torch.float32)
        self.num_measurements = 2 * channels * int(M.sum())
        # x is real, so k and -k carry the same information: A^T A multiplies both by (M(k) + M(-k)) / 2.
        M_symmetric = (M + M.flip(0, 1).roll((1, 1), (0, 1))) / 2
        self._mask = Constant(M)
        self._symmetric = Constant(M_symmetric)
        self._inverse = Constant(M / M_symmetric.clamp(min=0.5))

    @classmethod
    def random(
        cls,
        image_shape: Sequence[int],
        fraction: float = 0.25,
        center: float = 0.08,
        seed: int | Generator = 0,
        pattern: Literal["lines", "points"] = "lines",
    ) -> "FourierSubsampling":
        """Sample all of the low frequencies and a random part of the others.

        Arguments:
            fraction: share of the frequencies that is sampled, in (0,1].
            center: share of the frequencies, the lowest, that is always sampled, in [0, fraction].
            pattern: "lines" samples whole columns, as scanners do; "points" single frequencies.
        """
        if not 0 < fraction <= 1:
            raise InputError(f"fraction is {fraction}; the sampled share of the frequencies must be in (0, 1]")
        if not 0 <= center <= fraction:
            raise InputError(f"center is {center}; it must be between 0 and fraction, {fraction}")
        _, height, width = checked_image_shape(image_shape)
        if pattern == "lines":
            radius = torch.fft.fftfreq(width).abs().expand(1, width)
        elif pattern == "points":
            radius = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width))
        else:
            raise InputError(f'pattern is {pattern!r}; choose "lines" or "points"')
        total = radius.numel()
        low, high = radius.flatten().argsort(stable=True).tensor_split([round(center * total)])
        high = high[torch.randperm(len(high), generator=as_generator(seed))]
        sampled = torch.cat([low, high])[: max(1, round(fraction * total))]
        mask = torch.zeros(total).index_fill_(0, sampled, 1).reshape(radius.shape)
        return cls(image_shape, mask.expand(height, width))

    @property
    def mask(self) -> Tensor:
        """1 = sampled, 0 = not, (H, W)."""
        return self._mask.value

    def updated(self, **parameters: Any) -> "FourierSubsampling":
        mask = parameters.get("mask")
        return self if mask is None else FourierSubsampling(self.image_shape, mask)

    def restrict(self, y: Tensor) -> Tensor:
        # Not a product: what was not measured may well be marked with NaN.
        return torch.where(self._mask.like(y) > 0, y, 0)

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        spectrum = torch.fft.fft2(at_least_float32(x), norm="ortho")
        return self.restrict(torch.stack([spectrum.real, spectrum.imag], dim=2).to(x.dtype))

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._real_image(self.restrict(y))

    def A_dagger(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._real_image(self._inverse.like(y) * y)

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. In closed form, frequency by frequency: A^T A is a product with `M_symmetric`."""
        self.check_pair(z, y)
        exact, factor = at_least_float32(z), per_image(gamma, z)
        spectrum = torch.fft.fft2(exact + factor * at_least_float32(self.A_adjoint(y)), norm="ortho")
        spectrum = spectrum / (1 + factor * self._symmetric.like(exact))
        return torch.fft.ifft2(spectrum, norm="ortho").real.to(z.dtype)

    def _real_image(self, y: Tensor) -> Tensor:
        """Re F^H y: the adjoint of x -> (Re F x, Im F x)."""
        real, imaginary = at_least_float32(y).unbind(2)
        return torch.fft.ifft2(torch.complex(real, imaginary), norm="ortho").real.to(y.dtype)

    def detail(self) -> str:
        return f"{self.mask.mean():.1%} sampled"
