"""Per-image bookkeeping for iterations over a batch: what one image does never depends on the others."""

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["CHECK_EVERY", "constant", "max_change", "none_left", "per_image", "recording", "some"]

CHECK_EVERY = 10  # iterations between looks at whether all images are done: each look makes a GPU wait


@lru_cache(maxsize=16)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of numbers, copied to its device only once: a recorded graph cannot copy from the host."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def max_change(x: Tensor, x_next: Tensor) -> Tensor:
    """The largest change of a pixel in each image of x (B, C, H, W): (B,)."""
    return (x_next - x).abs().flatten(1).amax(1)


def per_image(values: Tensor, x: Tensor) -> Tensor:
    """values (B,), reshaped so that they broadcast over x (B, ...)."""
    return values.reshape(-1, *[1] * (x.ndim - 1))


def recording(x: Tensor) -> bool:
    """Whether a CUDA graph is being recorded, which cannot branch on values."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def some(which: Tensor) -> bool:
    """Whether there may be any (B,): a GPU is not asked, there looking costs more than doing it for nobody."""
    return which.is_cuda or bool(which.any())


def none_left(active: Tensor) -> bool:
    """Whether no image (B,) is active any more; never while a graph is recorded."""
    return not recording(active) and not active.any()
