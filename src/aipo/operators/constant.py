"""Fixed tensors of an operator (masks, matrices, filters) that follow the images."""

import torch
from torch import Tensor

__all__ = ["Constant"]


class Constant:
    """A fixed tensor, handed out in the dtype and on the device of the image at hand.

    Each conversion is made once and kept, so operators need no `.to(...)` and no copies in the hot path.
    """

    def __init__(self, value: Tensor):
        self.value = value.detach()
        self._converted: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, x: Tensor) -> Tensor:
        """The constant on x's device, in x's dtype (or, if it is complex, of that precision)."""
        dtype = x.dtype.to_complex() if self.value.is_complex() else x.dtype
        key = (x.device, dtype)
        if key not in self._converted:
            # A tensor born in inference mode could never be used in a gradient later.
            with torch.inference_mode(False):
                self._converted[key] = self.value.to(x.device, dtype)
        return self._converted[key]
