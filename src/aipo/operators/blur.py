"""Deblurring: a convolution of the image is observed."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.operators.base import checked_image_shape, without_leading_ones
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator
from aipo.operators.precision import at_least_float32

__all__ = ["Blur", "motion_kernel"]

STEPS = 1000  # into which a line is cut


class Blur(LinearOperator):
    """A x = kernel * x, a circular convolution of each channel, computed by FFT.

    Arguments:
        image_shape: (C, H, W).
        kernel: (kh, kw) with kh <= H and kw <= W, centered on its entry (kh // 2, kw // 2); leading dimensions of 1 do
            not matter.
        rcond: frequencies that the kernel passes with less than rcond times its largest gain count as lost:
            `A_dagger` leaves them at zero. Smaller values invert more of the blur and amplify the noise by up
            to 1 / rcond.
    """

    capturable = True

    def __init__(self, image_shape: Sequence[int], kernel: Tensor, rcond: float = 1e-3):
        super().__init__(image_shape, measurement_shape=image_shape)
        _, height, width = self.image_shape
        kernel = without_leading_ones(kernel, 2)
        if kernel.ndim != 2 or kernel.shape[0] > height or kernel.shape[1] > width:
            raise InputError(f"kernel has shape {tuple(kernel.shape)}; give (kh, kw), at most {(height, width)}")
        if not kernel.isfinite().all() or not kernel.any():
            raise InputError("kernel is zero everywhere or not finite; give finite values, not all zero")
        if not 0 < rcond < 1:
            raise InputError(f"rcond is {rcond}; choose a value in (0, 1)")
        self.kernel = kernel.detach()
        self.rcond = rcond
        kh, kw = kernel.shape
        padded = torch.zeros(height, width, dtype=torch.float64)
        padded[:kh, :kw] = self.kernel
        transfer = torch.fft.rfft2(padded.roll((-(kh // 2), -(kw // 2)), (0, 1)))
        gain = transfer.abs()
        passed = gain > rcond * gain.max()
        self._transfer = Constant(transfer)
        self._inverse = Constant(torch.where(passed, 1 / torch.where(passed, transfer, 1), 0))

    @classmethod
    def gaussian(cls, image_shape: Sequence[int], width: float, rcond: float = 1e-3) -> "Blur":
        """A Gaussian kernel of sum 1; `width` is its standard deviation in pixels. It is cut at 4 widths."""
        if not (math.isfinite(width) and width > 0):
            raise InputError(f"width is {width}; the kernel's standard deviation must be finite and greater than 0")
        radius = min(math.ceil(4 * width), (min(checked_image_shape(image_shape)[1:]) - 1) // 2)
        profile = torch.exp(-(torch.arange(-radius, radius + 1, dtype=torch.float64) / width).square() / 2)
        kernel = profile[:, None] * profile
        return cls(image_shape, kernel / kernel.sum(), rcond)

    @classmethod
    def motion(cls, image_shape: Sequence[int], length: float, angle: float = 0.0, rcond: float = 1e-3) -> "Blur":
        """The trace of a camera that moves straight: `length` in pixels, `angle` in degrees, counterclockwise."""
        if not (math.isfinite(length) and length >= 1 and math.isfinite(angle)):
            raise InputError(f"length is {length} and angle {angle}; the length must be at least 1, the angle finite")
        return cls(image_shape, motion_kernel(length, angle), rcond)

    @property
    def gain(self) -> Tensor:
        """By how much A^T A multiplies each frequency, in the layout of `torch.fft.rfft2`: (H, W // 2 + 1)."""
        return self._transfer.value.abs().square()

    def updated(self, **parameters: Any) -> "Blur":
        """The same with another kernel, which deepinv calls `filter`."""
        kernel = parameters.get("kernel", parameters.get("filter"))
        return self if kernel is None else Blur(self.image_shape, kernel, self.rcond)

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return self._filter(x, self._transfer)

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._filter(y, self._transfer, conjugate=True)

    def A_dagger(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._filter(y, self._inverse)

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. In closed form, frequency by frequency."""
        self.check_pair(z, y)
        exact, factor = at_least_float32(z), per_image(gamma, z)
        transfer = self._transfer.like(exact)
        spectrum = torch.fft.rfft2(exact) + factor * transfer.conj() * torch.fft.rfft2(at_least_float32(y))
        return torch.fft.irfft2(spectrum / (1 + factor * transfer.abs().square()), s=z.shape[-2:]).to(z.dtype)

    def _filter(self, x: Tensor, response: Constant, conjugate: bool = False) -> Tensor:
        exact = at_least_float32(x)
        factor = response.like(exact)
        spectrum = torch.fft.rfft2(exact) * (factor.conj() if conjugate else factor)
        return torch.fft.irfft2(spectrum, s=x.shape[-2:]).to(x.dtype)

    def detail(self) -> str:
        return f"kernel {tuple(self.kernel.shape)}, rcond={self.rcond:g}"


def motion_kernel(length: float, angle: float) -> Tensor:
    """A line through the middle, of sum 1: (k, k), k odd. A pixel gets as much as of the line lies in it."""
    radius = math.ceil(length / 2)
    along = (torch.arange(STEPS, dtype=torch.float64) + 0.5) / STEPS - 0.5
    columns = along * length * math.cos(math.radians(angle)) + radius
    rows = -along * length * math.sin(math.radians(angle)) + radius
    kernel = torch.zeros(2 * radius + 1, 2 * radius + 1, dtype=torch.float64)
    kernel.index_put_((rows.round().long(), columns.round().long()), torch.tensor(1 / STEPS).double(), accumulate=True)
    return kernel
