"""The rotation from RGB to opponent colors."""

import torch
from torch import Tensor

__all__ = ["opponent", "opponent_inverse"]


def opponent(x: Tensor) -> Tensor:
    """RGB -> brightness, red-blue, green-magenta: an orthonormal turn that takes most of the correlation away.

    Images of other than three channels pass unchanged.
    """
    if x.shape[1] != 3:
        return x
    r, g, b = x.unbind(1)
    return torch.stack([(r + g + b) / 3**0.5, (r - b) / 2**0.5, (r - 2 * g + b) / 6**0.5], dim=1)


def opponent_inverse(y: Tensor) -> Tensor:
    """The inverse of `opponent`, which is its transpose."""
    if y.shape[1] != 3:
        return y
    brightness, red_blue, green = y[:, 0] / 3**0.5, y[:, 1] / 2**0.5, y[:, 2] / 6**0.5
    return torch.stack([brightness + red_blue + green, brightness - 2 * green, brightness - red_blue + green], dim=1)
