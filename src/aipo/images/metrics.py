"""How close a reconstruction is to the truth: PSNR and SSIM, one number per image.

Both take the values as they are. If an image may leave [0,1], the caller must clamp it for the number to describe
what would be shown or saved.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from aipo.errors import InputError

__all__ = ["psnr", "ssim"]


def psnr(x: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio `-10 log10(mean squared error)` in dB, for a data range of 1.

    Args:
        x: Images (B, C, H, W); not clamped.
        reference: The true images, same shape, in [0,1].

    Returns:
        (B,) float64; infinite where the two images are identical.

    Examples:
        >>> import torch
        >>> black, gray = torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 0.1)
        >>> psnr(gray, black)
        tensor([20.0000], dtype=torch.float64)
    """
    _check_shapes(x, reference)
    squared_error = (x.double() - reference.double()).square()
    return -10 * torch.log10(squared_error.mean(dim=(1, 2, 3)))


def ssim(x: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity with the 11x11 Gaussian window (sigma 1.5) of the original paper.

    Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural
    similarity", 2004: K1 = 0.01, K2 = 0.03, data range 1. The mean is taken over the channels and over
    the windows that lie wholly inside the image, as scikit-image does.

    Args:
        x: Images (B, C, H, W) with H, W >= 11; not clamped.
        reference: The true images, same shape, in [0,1].

    Returns:
        (B,) float64, at most 1.
    """
    _check_shapes(x, reference)
    if min(x.shape[2:]) < 11:
        raise InputError(f"SSIM needs images of at least 11x11 pixels, got {x.shape[2]}x{x.shape[3]}")
    # float64, because a variance computed as E[x^2] - E[x]^2 cancels where the image is flat.
    x, reference = x.double(), reference.double()
    C1, C2 = 0.01**2, 0.03**2

    mu_x, mu_r = _window_mean(x), _window_mean(reference)
    var_x = _window_mean(x * x) - mu_x**2
    var_r = _window_mean(reference * reference) - mu_r**2
    cov = _window_mean(x * reference) - mu_x * mu_r

    similarity = (2 * mu_x * mu_r + C1) * (2 * cov + C2)
    similarity = similarity / ((mu_x**2 + mu_r**2 + C1) * (var_x + var_r + C2))
    return similarity.mean(dim=(1, 2, 3))


def _window_mean(x: Tensor) -> Tensor:
    offsets = torch.arange(-5, 6, dtype=x.dtype, device=x.device)
    weights = torch.exp(-0.5 * (offsets / 1.5) ** 2)
    weights = weights / weights.sum()
    b, c, h, w = x.shape
    planes = conv2d(x.reshape(b * c, 1, h, w), weights.view(1, 1, 11, 1))
    planes = conv2d(planes, weights.view(1, 1, 1, 11))
    return planes.view(b, c, h - 10, w - 10)


def _check_shapes(x: Tensor, reference: Tensor) -> None:
    if not (isinstance(x, Tensor) and isinstance(reference, Tensor)):
        raise InputError(f"images must be torch tensors, got {type(x).__name__} and {type(reference).__name__}")
    # Broadcasting would quietly compare every image with one reference, or channels with a gray image.
    if x.ndim != 4 or x.shape != reference.shape:
        raise InputError(
            f"expected two batches (B, C, H, W) of one shape, got {tuple(x.shape)} and {tuple(reference.shape)}"
        )
