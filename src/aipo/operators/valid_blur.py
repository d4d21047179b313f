"""Deblurring of a photograph: what lies just beyond its border was blurred into it, and is not seen."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.operators.base import checked_image_shape
from aipo.operators.blur import Blur
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator
from aipo.transforms.conjugate_gradient import conjugate_gradient

__all__ = ["ValidBlur"]

ITERATIONS, DIGITS = 100, 1e-4  # of `prox_l2`


class ValidBlur(LinearOperator):
    """A x = kernel * x where the whole kernel lies in the image; a measurement is smaller than the image.

    Arguments:
        measurement_shape: (C, h, w); images are (C, h + kh - 1, w + kw - 1).
        kernel: (kh, kw), centered on its entry (kh // 2, kw // 2).

    Examples:
        >>> import torch
        >>> blur = ValidBlur((1, 4, 4), torch.ones(3, 3) / 9)
        >>> blur.image_shape, blur.A(torch.ones(1, 1, 6, 6)).unique().numel()
        ((1, 6, 6), 1)
    """

    def __init__(self, measurement_shape: Sequence[int], kernel: Tensor):
        channels, height, width = checked_image_shape(measurement_shape)
        if kernel.ndim != 2:
            raise InputError(f"kernel has shape {tuple(kernel.shape)}; give (kh, kw)")
        kh, kw = kernel.shape
        super().__init__((channels, height + kh - 1, width + kw - 1), (channels, height, width))
        self.kernel = kernel.detach()
        # Around the border it is another blur, so the two differ in few of their measurements.
        self._circular = Blur(self.image_shape, self.kernel)
        self._gain = Constant(self._circular.gain)
        top, left = kh - 1 - kh // 2, kw - 1 - kw // 2
        self.seen = (slice(top, top + height), slice(left, left + width))

    def inside(self, x: Tensor) -> Tensor:
        """The part of images (B, C, H, W) that a measurement shows: (B, C, h, w)."""
        return x[..., self.seen[0], self.seen[1]]

    def extended(self, y: Tensor) -> Tensor:
        """A measurement (B, C, h, w) with its edge repeated, of the size of an image."""
        return self._padded(y, "replicate")

    def A(self, x: Tensor) -> Tensor:
        self.check_image(x)
        return self.inside(self._circular.A(x))

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self._circular.A_adjoint(self._padded(y, "constant"))

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. By conjugate gradients, preconditioned by the circular blur's closed form."""
        self.check_pair(z, y)
        factor = per_image(gamma, z)
        scale = 1 / (1 + factor * self._gain.like(z))

        def near_inverse(r: Tensor) -> Tensor:
            return torch.fft.irfft2(torch.fft.rfft2(r) * scale, s=r.shape[-2:])

        pull = factor * self.A_adjoint(y - self.A(z))
        return z + conjugate_gradient(
            lambda v: v + factor * self.A_adjoint(self.A(v)), pull, ITERATIONS, DIGITS, near_inverse
        )

    def _padded(self, y: Tensor, mode: str) -> Tensor:
        _, height, width = self.image_shape
        top, left = self.seen[0].start, self.seen[1].start
        return F.pad(y, (left, width - y.shape[-1] - left, top, height - y.shape[-2] - top), mode=mode)

    def detail(self) -> str:
        return f"kernel {tuple(self.kernel.shape)}"
