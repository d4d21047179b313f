"""The forward operator f of y = f(x) + e."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aipo.errors import InputError
from aipo.noise import Noise, as_generator
from aipo.transforms.spectrum import Spectrum

__all__ = ["Operator", "checked_image_shape", "without_leading_ones"]


class Operator:
    """A forward operator f from images (B, C, H, W) to measurements (B, *measurement_shape).

    Subclass `LinearOperator` or `NonlinearOperator` and define `A`; everything else has a default. Operators
    need not be moved: they work in the dtype and on the device of their input.

    Arguments:
        image_shape: (C, H, W).
        measurement_shape: shape of one measurement.

    Attributes:
        num_measurements: how many numbers of a measurement are truly observed, hence carry noise. An operator
            that leaves some out sets it and overrides `restrict`.
        capturable: whether its methods never look at values on the host, so that a GPU can record them
            (`aipo.engine.kernels.graphs`). Set it for your own operator if that is so; it only makes solvers faster.
    """

    linear: bool
    capturable = False

    def __init__(self, image_shape: Sequence[int], measurement_shape: Sequence[int]):
        self.image_shape = checked_image_shape(image_shape)
        self.measurement_shape = tuple(measurement_shape)
        self.num_measurements = math.prod(self.measurement_shape)

    def A(self, x: Tensor) -> Tensor:
        """The noiseless measurement f(x) of images x (B, C, H, W): (B, *measurement_shape)."""
        raise NotImplementedError

    def __call__(self, x: Tensor, **parameters: Any) -> Tensor:
        return self.updated(**parameters).A(x)

    def updated(self, **parameters: Any) -> "Operator":
        """The operator with other values of its parameters, by name. As in deepinv, names that it has not are ignored.

        The operators here take them in `A` as well: `operator.A(x, mask=other)`.
        """
        return self

    def restrict(self, y: Tensor) -> Tensor:
        """y with zeros where nothing is observed. Residuals are then exactly 0 there, whatever the image."""
        return y

    def measure(self, x: Tensor, noise: Noise, seed: int | Generator) -> Tensor:
        """A measurement y of f(x), drawn from the noise where something is observed.

        Arguments:
            x: images (B, C, H, W) in [0,1].
            seed: an integer, or a generator on the CPU, which advances.
        """
        self.check_image(x)
        return self.restrict(noise.sample(self.A(x), as_generator(seed)))

    def subset(self, kept: Tensor) -> "Operator":
        """This operator with zeros for the measurements that are not kept.

        Arguments:
            kept: of the shape of one measurement, 1 or True where it is kept.
        """
        raise NotImplementedError

    def checked_kept(self, kept: Tensor) -> Tensor:
        """kept as numbers on the CPU; `InputError` unless it has the shape of one measurement."""
        if tuple(kept.shape) != self.measurement_shape:
            raise InputError(f"kept has shape {tuple(kept.shape)}; {self!r} needs {self.measurement_shape}")
        return kept.to(torch.float32).cpu()

    def project(self, x: Tensor, y: Tensor, max_iter: int = 500, tol: float = 1e-6) -> Tensor:
        """A point near x with f(x) = y and all pixels in [0,1], for each image of the batch on its own."""
        raise NotImplementedError

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v (B, C, H, W) that leaves f unchanged at x to first order."""
        raise NotImplementedError

    def jacobian_at(self, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The products v -> J v and u -> J^T u with the Jacobian J of f at x."""
        raise NotImplementedError

    def adjoint_at(self, x: Tensor, u: Tensor) -> Tensor:
        """J^T u (B, C, H, W) for u (B, *measurement_shape), J being the Jacobian of f at x."""
        return torch.func.vjp(self.A, x)[1](u)[0]

    def solve_regularized(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """Solve (precision * J^T J + lam * S) v = b for each image, J being the Jacobian of f at x.

        This is Newton's step for a Gaussian prior; solvers use it as a preconditioner, so a few digits suffice.

        Arguments:
            b: right-hand sides (B, C, H, W).
            precision: 1 / variance of the noise (B,).
            lam: weight of the regularizer (B,), > 0.
            spectrum: S.
            x: where J is taken (B, C, H, W); no matter for a linear operator.
        """
        raise NotImplementedError

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """The minimizer over x of gamma |f(x) - y|^2 / 2 + |x - z|^2 / 2, for each image on its own.

        Arguments:
            z: images (B, C, H, W).
            y: measurements (B, *measurement_shape).
            gamma: how much the measurements count (B,), > 0.
        """
        raise NotImplementedError

    def check_image(self, x: Tensor) -> None:
        """Raise `InputError` unless x is a batch of images for this operator."""
        self._check("image", x, self.image_shape)

    def check_measurement(self, y: Tensor) -> None:
        """Raise `InputError` unless y is a batch of measurements of this operator."""
        self._check("measurement", y, self.measurement_shape)

    def check_pair(self, x: Tensor, y: Tensor) -> None:
        """Raise `InputError` unless x and y are a batch of images and as many measurements."""
        self.check_image(x)
        self.check_measurement(y)
        if len(x) != len(y):
            raise InputError(
                f"there are {len(x)} images {tuple(x.shape)} for {len(y)} measurements {tuple(y.shape)}; "
                "give one measurement per image"
            )
        if x.dtype != y.dtype:
            raise InputError(f"images are {x.dtype} and measurements {y.dtype}; convert one to the other's dtype")

    def _check(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if not isinstance(tensor, Tensor):
            raise InputError(f"{what} is of type {type(tensor).__name__}; give a torch tensor (torch.from_numpy)")
        if tensor.shape[1:] != shape or tensor.ndim != 1 + len(shape):
            expected = f"({', '.join(['B', *map(str, shape)])})"
            raise InputError(f"{what} has shape {tuple(tensor.shape)}; {self!r} needs {expected}")
        if not len(tensor):
            raise InputError(f"{what} has shape {tuple(tensor.shape)}: the batch is empty; give at least one")
        if not tensor.is_floating_point():
            raise InputError(f"{what} has dtype {tensor.dtype}; convert it to floating point, images to [0,1]")

    def detail(self) -> str:
        """What `repr` shows besides the shapes."""
        return ""

    def __repr__(self) -> str:
        shapes = f"{self.image_shape} -> {self.measurement_shape}"
        return f"{type(self).__name__}({', '.join(filter(None, [shapes, self.detail()]))})"


def checked_image_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """image_shape as a tuple (C, H, W); `InputError` if it is none."""
    shape = tuple(image_shape) if isinstance(image_shape, Sequence) else ()
    if len(shape) != 3 or not all(isinstance(size, int) and size > 0 for size in shape):
        raise InputError(f"image_shape is {image_shape!r}; give (channels, height, width)")
    return shape


def without_leading_ones(tensor: Tensor, ndim: int) -> Tensor:
    """A mask or kernel of so many dimensions, from one that has leading dimensions of 1 as a batch has."""
    while tensor.ndim > ndim and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
