"""Inpainting: some pixels are missing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.operators.base import checked_image_shape, without_leading_ones
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator

__all__ = ["Inpainting"]


class Inpainting(LinearOperator):
    """A x = mask * x. Measurements have the image's shape, with zeros where a pixel is missing.

    Arguments:
        mask: (1, H, W) or (C, H, W), 1 or True = observed, 0 or False = missing; one more leading 1 does not matter.
        image_shape: (C, H, W); the mask's own shape by default. A mask of one channel serves all of them.
    """

    capturable = True
    tight = 1.0

    def __init__(self, mask: Tensor, image_shape: Sequence[int] | None = None):
        mask = without_leading_ones(mask, 3)
        shape = checked_image_shape(tuple(mask.shape) if image_shape is None else image_shape)
        super().__init__(shape, measurement_shape=shape)
        if tuple(mask.shape) not in (shape, (1, *shape[1:])):
            raise InputError(f"mask has shape {tuple(mask.shape)}; images {shape} need {(1, *shape[1:])} or {shape}")
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError("mask has values other than 0 and 1; use 1 for observed pixels and 0 for missing ones")
        if not mask.any():
            raise InputError("mask is 0 everywhere; mark at least one observed pixel with 1")
        observed = mask.bool().expand(self.image_shape)
        self.num_measurements = int(observed.sum())
        self._mask = Constant(observed.to(torch.float32))

    @classmethod
    def random_blocks(
        cls, image_shape: Sequence[int], fraction: float = 0.25, block: int = 4, seed: int | Generator = 0
    ) -> "Inpainting":
        """Hide randomly chosen blocks of a grid, the same in all channels.

        Arguments:
            fraction: share of the image that is missing, in [0,1), rounded to whole blocks.
            block: side of a block in pixels; must divide H and W.

        Examples:
            >>> Inpainting.random_blocks((3, 64, 64), fraction=0.25, block=4, seed=0)
            Inpainting((3, 64, 64) -> (3, 64, 64), 75.0% observed)
        """
        _, height, width = checked_image_shape(image_shape)
        if block < 1 or height % block or width % block:
            raise InputError(f"block is {block}; choose a divisor of the image's height {height} and width {width}")
        if not 0 <= fraction < 1:
            raise InputError(f"fraction is {fraction}; the missing share of the image must be in [0, 1)")
        rows, columns = height // block, width // block
        blocks = torch.randperm(rows * columns, generator=as_generator(seed))
        missing = blocks[: round(fraction * len(blocks))]
        grid = torch.ones(len(blocks)).index_fill_(0, missing, 0).reshape(rows, columns)
        mask = grid.repeat_interleave(block, 0).repeat_interleave(block, 1)
        return cls(mask[None], image_shape)

    @classmethod
    def bayer(cls, image_shape: Sequence[int], pattern: str = "RGGB") -> "Inpainting":
        """A color camera's sensor: every pixel sees one color.

        Arguments:
            image_shape: (3, H, W).
            pattern: the colors of the first 2x2 pixels, row by row, such as RGGB, BGGR, GRBG or GBRG.

        Examples:
            >>> Inpainting.bayer((3, 4, 4)).mask[:, :2, :2].int().tolist()
            [[[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]]]
        """
        channels, height, width = checked_image_shape(image_shape)
        colors = ["RGB".find(letter) for letter in pattern.upper()]
        if len(colors) != 4 or -1 in colors or channels != 3:
            raise InputError(f"pattern is {pattern!r} for images {tuple(image_shape)}; give RGGB or so, and 3 channels")
        mask = torch.zeros(3, height, width)
        for i, color in enumerate(colors):
            mask[color, i // 2 :: 2, i % 2 :: 2] = 1
        return cls(mask, image_shape)

    @property
    def mask(self) -> Tensor:
        """1 = observed, 0 = missing, (C, H, W)."""
        return self._mask.value

    def updated(self, **parameters: Any) -> "Inpainting":
        mask = parameters.get("mask")
        return self if mask is None else Inpainting(mask, self.image_shape)

    def restrict(self, y: Tensor) -> Tensor:
        # Not a product: what was not measured may well be marked with NaN.
        return torch.where(self._mask.like(y) > 0, y, 0)

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return self.restrict(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return self.restrict(y)

    def A_dagger(self, y: Tensor) -> Tensor:
        return self.A_adjoint(y)

    def subset(self, kept: Tensor) -> "Inpainting":
        return Inpainting(self.checked_kept(kept) * self.mask.cpu(), self.image_shape)

    def detail(self) -> str:
        return f"{self.mask.mean():.1%} observed"
