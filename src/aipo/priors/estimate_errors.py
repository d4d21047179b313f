"""How far the least-squares estimate of a noise prior is from the truth: at each noise level, color and frequency.

For an image x and y = x + s n the estimate x_hat is the mean of all images that y may come from. The mean of
(x - x_hat)^2 over many images is therefore their mean variance: it says how much is still open when y is known. Like
everything about natural images that is averaged, it is nearly diagonal in the basis of `transforms.spectrum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.transforms.spectrum import NUM_BANDS, Spectrum, analyze, expand_bands, radial_bands

__all__ = ["EstimateErrors", "measure_errors"]

LEVELS = 8
COLORS = 3


@dataclass(frozen=True)
class EstimateErrors:
    """Variances of the error: (L, 3, bands) at noise levels (L,), rising."""

    levels: Tensor
    variances: Tensor

    @classmethod
    def from_card(cls, entry: dict[str, Any]) -> EstimateErrors:
        """Rebuild it from what `measure_errors` wrote."""
        try:
            levels, variances = (torch.tensor(entry[key], dtype=torch.float64) for key in ("levels", "variances"))
            fits = levels.ndim == 1 and variances.shape == (len(levels), COLORS, NUM_BANDS)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"the prior's card has errors of the estimate that cannot be used ({error})") from None
        positive = all((v.isfinite() & (v > 0)).all() for v in (levels, variances))
        if not fits or not positive or len(levels) < 2 or not (levels.diff() > 0).all():
            raise InputError("the prior's card has errors of the estimate that cannot be used (sizes or values)")
        return cls(levels, variances)

    def precision(self, s: float, image_shape: tuple[int, int, int]) -> Spectrum:
        """1 / variance at a level, for images of a shape; between two levels it follows a power of s."""
        gray = image_shape[0] == 1
        # The brightness of a gray image is sqrt(3) times its values, noise included.
        level = min(max(s * (math.sqrt(COLORS) if gray else 1), self.levels[0].item()), self.levels[-1].item())
        logs = self.levels.log()
        upper = int(torch.searchsorted(logs, math.log(level)).clamp(1, len(logs) - 1))
        share = (math.log(level) - logs[upper - 1]) / (logs[upper] - logs[upper - 1])
        variances = torch.lerp(self.variances[upper - 1].log(), self.variances[upper].log(), share).exp()
        values = expand_bands(variances, (COLORS, *image_shape[1:]))
        return Spectrum(COLORS / values[:1] if gray else 1 / values)


@torch.no_grad()
def measure_errors(
    denoise: Callable[[Tensor, float], Tensor], images: Tensor, levels: tuple[float, float], seed: int = 0
) -> dict[str, Any]:
    """Measure it on noiseless images (N, 3, H, W), as a card keeps it: lists of numbers."""
    low, high = (math.log(v) for v in levels)
    generator = torch.Generator().manual_seed(seed)
    chosen = [math.exp(low + (high - low) * i / (LEVELS - 1)) for i in range(LEVELS)]
    variances = []
    for s in chosen:
        y = images + s * torch.randn(images.shape, generator=generator).to(images)
        error = analyze(denoise(y, s) - images).square().mean(0)
        variances.append(radial_bands(error.double().cpu()).clamp(1e-4 * s**2, s**2))
    return {
        "levels": [float(f"{s:.6g}") for s in chosen],
        "variances": [[[float(f"{v:.4g}") for v in color] for color in bands.tolist()] for bands in variances],
    }
