"""The physics of deepinv as operators: theirs in ours. deepinv itself is not needed here, its objects speak for it.

Measurements of ours are real tensors (B, ...). Complex ones become two reals in a last dimension, and the lists of
stacked physics one long row; `pack` and `unpack` go there and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.operators.base import Operator, checked_image_shape
from aipo.operators.compressed_sensing import CompressedSensing
from aipo.operators.constant import Constant
from aipo.operators.denoising import Denoising
from aipo.operators.inpainting import Inpainting
from aipo.operators.linear import LinearOperator
from aipo.operators.nonlinear import NonlinearOperator

__all__ = ["LinearFromPhysics", "NonlinearFromPhysics", "from_physics", "pack"]

EXACT = 1e-3  # relative error of an adjoint in float32 that is one


def from_physics(physics: Any, image_shape: Sequence[int] | None = None) -> Operator:
    """An operator from a `deepinv.physics.Physics`: linear if it is a `LinearPhysics`.

    Arguments:
        physics: with parameters (masks, filters) for one image, shared by the batch. Its noise is no part of the
            operator, see `aipo.integrations.deepinv.noise_of`.
        image_shape: (C, H, W), where the physics does not say it. With one channel an MRI physics, which takes real and
            imaginary part as two, measures real images.

    Denoising, inpainting and compressed sensing become the operators of that name. Others keep their own `A` and
    `A_adjoint`, and their closed forms where they have a singular value decomposition. What deepinv solves by
    iterations is solved anew.
    """
    if not callable(getattr(physics, "A", None)):
        raise InputError(f"{type(physics).__name__} has no A; give a deepinv.physics.Physics")
    shape = checked_image_shape(_image_shape(physics) if image_shape is None else tuple(image_shape))
    kinds = {kind.__name__ for kind in type(physics).__mro__}
    mask = getattr(physics, "mask", None)
    if "Denoising" in kinds:
        return Denoising(shape)
    if "Inpainting" in kinds and isinstance(mask, Tensor) and _is_mask(mask):
        return Inpainting(mask.detach().expand(1, *shape), shape)
    matrix = getattr(physics, "_A", None)
    if "CompressedSensing" in kinds and isinstance(matrix, Tensor) and _is_sensing(matrix, shape):
        return CompressedSensing(shape, matrix=matrix.detach())
    real = "MRIMixin" in kinds and shape[0] == 1
    if "LinearPhysics" in kinds:
        return LinearFromPhysics(physics, shape, real)
    return NonlinearFromPhysics(physics, shape, real)


class _FromPhysics(Operator):
    """What both kinds share: the shapes, and measurements as real tensors."""

    def __init__(self, physics: Any, image_shape: tuple[int, int, int], real: bool):
        self.physics, self._real = physics, real
        self._complex: torch.dtype | None = None
        generator = torch.Generator().manual_seed(0)
        probe = torch.rand(1, *image_shape, generator=generator).to(_place(physics))
        try:
            raw = self._first_answer(probe)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{type(physics).__name__} does not take images {image_shape}: {reason}") from None
        self._like = raw
        y = pack(raw)
        if len(y) != 1:
            raise InputError(
                f"{type(physics).__name__} holds parameters for {len(y)} images; give one for each image of its own"
            )
        super().__init__(image_shape, y.shape[1:])

    @torch.no_grad()
    def _first_answer(self, probe: Tensor) -> Any:
        """What it measures of a real image; of a complex one if it takes no other."""
        try:
            return self.physics.A(self._given(probe))
        except RuntimeError as error:
            self._complex = next((t.dtype for t in self.physics.buffers() if t.is_complex()), None)
            if self._complex is None:
                raise
            try:
                return self.physics.A(self._given(probe))
            except (RuntimeError, TypeError):
                raise error from None

    def _given(self, x: Tensor) -> Tensor:
        """Images as the physics wants them."""
        if self._complex is not None:
            return x.to(self._complex)
        return torch.cat([x, torch.zeros_like(x)], dim=1) if self._real else x

    def _taken(self, x: Tensor) -> Tensor:
        """Images as we want them: real ones, which may come as complex numbers."""
        x = x.real if x.is_complex() else x
        return x[:, :1] if self._real else x

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        self.check_image(x)
        return pack(self.physics.A(self._given(x), **parameters)).to(x.dtype)

    def unpack(self, y: Tensor) -> Any:
        """Measurements y (B, *measurement_shape) as the physics has them."""
        return _unpack(y, self._like)

    def detail(self) -> str:
        return type(self.physics).__name__


class LinearFromPhysics(_FromPhysics, LinearOperator):
    """A linear physics."""

    def __init__(self, physics: Any, image_shape: tuple[int, int, int], real: bool = False):
        super().__init__(physics, image_shape, real)
        place = _place(physics)
        generator = torch.Generator().manual_seed(1)
        x, y = (
            torch.randn(1, *shape, generator=generator).to(place) for shape in (image_shape, self.measurement_shape)
        )
        with torch.no_grad():
            measured = self.A(x)
            # What is zero for a random image is a row of zeros: a missing pixel, or a frequency that was not sampled.
            seen = (measured != 0)[0].cpu()
            self.num_measurements = int(seen.sum())
            self._seen = None if bool(seen.all()) else Constant(seen.to(torch.float32))
            back = self._theirs(self.restrict(y))
            error = ((measured * self.restrict(y)).sum() - (x * back).sum()).abs()
        self._adjoint_holds = bool(error <= EXACT * measured.norm() * y.norm())
        self._prox_holds = self._adjoint_holds and not real and _decomposable(physics) and self._check_prox(x, y)

    def restrict(self, y: Tensor) -> Tensor:
        return y if self._seen is None else torch.where(self._seen.like(y) > 0, y, 0)

    def _theirs(self, y: Tensor) -> Tensor:
        return self._taken(self.physics.A_adjoint(self.unpack(y))).to(y.dtype)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Theirs, or automatic differentiation of A where theirs is only about the adjoint."""
        self.check_measurement(y)
        y = self.restrict(y)
        return self._theirs(y) if self._adjoint_holds else super().A_adjoint(y)

    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. Theirs where it is a closed form that works for every image's own gamma."""
        if not self._prox_holds:
            return super().prox_l2(z, y, gamma)
        self.check_pair(z, y)
        return self._their_prox(z, y, gamma)

    def _their_prox(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        given = self.unpack(self.restrict(y))
        return self._taken(self.physics.prox_l2(z, given, per_image(gamma, z))).to(z.dtype)

    @torch.no_grad()
    def _check_prox(self, x: Tensor, y: Tensor) -> bool:
        """Whether their closed form has no slope where it ends, for two images with two gammas."""
        z, y = torch.cat([x, x.flip(-1)]), torch.cat([y, y.flip(-1)])
        gamma = torch.tensor([0.5, 4.0]).to(x)
        try:
            v = self._their_prox(z, y, gamma)
        except (RuntimeError, ValueError, IndexError):
            return False
        if v.shape != z.shape:
            return False
        pull = per_image(gamma, z) * self.A_adjoint(self.restrict(y) - self.A(v))
        return bool((pull + z - v).norm() <= EXACT * (pull.norm() + z.norm()))


class NonlinearFromPhysics(_FromPhysics, NonlinearOperator):
    """A nonlinear physics; Jacobian products come from automatic differentiation."""


def pack(y: Any) -> Tensor:
    """Measurements of deepinv as one real tensor (B, ...)."""
    if isinstance(y, Tensor):
        return torch.view_as_real(y) if y.is_complex() else y
    return torch.cat([pack(part).flatten(1) for part in y], dim=1)


def _unpack(y: Tensor, like: Any) -> Any:
    if isinstance(like, Tensor):
        if not like.is_complex():
            return y
        return torch.view_as_complex(y.reshape(len(y), *like.shape[1:], 2).contiguous())
    parts, start = [], 0
    for part in like:
        shape = pack(part).shape[1:]
        size = math.prod(shape)
        parts.append(_unpack(y[:, start : start + size].reshape(len(y), *shape), part))
        start += size
    return type(like)(parts)


def _image_shape(physics: Any) -> Sequence[int]:
    """The shape of its images, where it says it."""
    said = getattr(physics, "img_size", None) or getattr(physics, "imsize", None)
    if said is not None and len(tuple(said)) == 3:
        return tuple(int(size) for size in said)
    width = getattr(physics, "img_width", None)
    if width is not None:
        return 1, int(width), int(width)
    raise InputError(
        f"{type(physics).__name__} does not say its image size; give image_shape=(channels, height, width)"
    )


def _is_mask(mask: Tensor) -> bool:
    """Whether it is one mask, of zeros and ones."""
    return (mask.ndim < 4 or len(mask) == 1) and bool(((mask == 0) | (mask == 1)).all())


def _is_sensing(matrix: Tensor, shape: tuple[int, int, int]) -> bool:
    """Whether it is a real matrix for whole images, with no more rows than pixels."""
    return not matrix.is_complex() and len(matrix) <= math.prod(shape) == matrix.shape[1]


def _decomposable(physics: Any) -> bool:
    """Whether it has a singular value decomposition, hence closed forms."""
    return any(kind.__name__ == "DecomposablePhysics" for kind in type(physics).__mro__)


def _place(physics: Any) -> torch.device:
    """Where its tensors are."""
    tensors = [*physics.parameters(), *physics.buffers()] if hasattr(physics, "buffers") else []
    return tensors[0].device if tensors else torch.device("cpu")
