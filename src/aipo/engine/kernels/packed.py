"""Many parameters as one vector in a new layout: a few kernels in a step instead of a few for each parameter."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

__all__ = ["Packed", "Part"]

Part = tuple[Tensor, Tensor]  # a parameter, and its layout: for each place the number of a value, or -1 for zero


class Packed:
    """Parameters in a new layout: each value has one place, other places are zero."""

    def __init__(self, parts: list[Part], device: torch.device):
        self.params = [param for param, _ in parts]
        self.shapes = [places.shape for _, places in parts]
        offsets = torch.tensor([0, *(p.numel() for p in self.params)]).cumsum(0)
        layouts = [
            torch.where(places < 0, -1, places + start).flatten()
            for (_, places), start in zip(parts, offsets[:-1], strict=True)
        ]
        source = torch.cat(layouts)
        # A place that holds nothing reads the zero behind the last value.
        self.source = torch.where(source < 0, int(offsets[-1]), source).to(device)
        target = torch.empty(int(offsets[-1]), dtype=torch.int64)
        target[source[source >= 0]] = (source >= 0).nonzero()[:, 0]
        self.target = target.to(device)

    def __call__(self, dtype: torch.dtype) -> list[Tensor]:
        """The parameters, in order: kernels (O, h, w, I) come as (O, I, h, w), channels last."""
        flat = torch.cat([p.reshape(-1) for p in self.params])
        packed = Pack.apply(flat, self.source, self.target, dtype)
        parts = packed.split([math.prod(shape) for shape in self.shapes])
        views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return [view.permute(0, 3, 1, 2) if view.ndim == 4 else view for view in views]


class Pack(Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, source: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(target)
        return F.pad(flat.to(dtype), (0, 1))[source]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (target,) = ctx.saved_tensors
        return g[target].float() if g.dtype.itemsize < 4 else g[target], None, None, None
