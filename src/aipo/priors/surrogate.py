"""A Gaussian that stands in for a prior: where no image is known yet, and where the prior's Hessian would be needed.

It has two precisions, because a flow is no Gaussian. `marginal` is that of the images themselves: it says what a
typical image looks like, and gives the solvers their start. `curvature` is the mean Hessian of P: it says how P bends
around an image, and preconditions the solvers. The second is much larger at low frequencies, where a pixel is pinned by
its neighbors while the brightness of all of them together is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.errors import InputError
from aipo.transforms.spectrum import Spectrum, analyze, expand_bands, radial_bands, synthesize

__all__ = ["Surrogate", "measure_surrogate"]

THUMBNAIL = 16
STEP = 2e-3  # of the finite differences, on the [0, 1] scale: well above rounding, well below an image's structure


@dataclass(frozen=True)
class Surrogate:
    """Mean image (C, H, W), and both precisions."""

    mean: Tensor
    marginal: Spectrum
    curvature: Spectrum

    def to(self, like: Tensor) -> Surrogate:
        """In the dtype and on the device of a tensor."""
        marginal, curvature = (Spectrum(s.values.to(like)) for s in (self.marginal, self.curvature))
        return Surrogate(self.mean.to(like), marginal, curvature)

    def noisier(self, variance: float) -> Surrogate:
        """The Gaussian of the same images with more white noise, of that variance."""
        marginal, curvature = (Spectrum(1 / (1 / p.values + variance)) for p in (self.marginal, self.curvature))
        return Surrogate(self.mean, marginal, curvature)

    def gray(self) -> Surrogate:
        """That of gray images: the brightness is sqrt(3) times their values, and the colors do not exist."""
        marginal, curvature = (Spectrum(3 * p.values[:1]) for p in (self.marginal, self.curvature))
        return Surrogate(self.mean.mean(0, keepdim=True), marginal, curvature)

    @classmethod
    def from_card(cls, entry: dict[str, Any], image_shape: tuple[int, int, int]) -> Surrogate:
        """Rebuild it from what `measure_surrogate` wrote."""
        try:
            thumbnail, marginal, curvature = (torch.tensor(entry[k]) for k in ("mean", "marginal", "curvature"))
            mean = F.interpolate(thumbnail[None], image_shape[1:], mode="bicubic", align_corners=False)[0]
            spectra = [Spectrum(expand_bands(bands, image_shape)) for bands in (marginal, curvature)]
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise InputError(f"the prior's card has a surrogate that cannot be used ({error})") from None
        if mean.shape != image_shape or any(s.values.shape != image_shape for s in spectra):
            raise InputError(f"the prior's card has a surrogate of another shape than its images, {image_shape}")
        if not mean.isfinite().all() or not all((s.values.isfinite() & (s.values > 0)).all() for s in spectra):
            raise InputError("the prior's card has a surrogate whose precisions are not all positive and finite")
        return cls(mean, *spectra)


def measure_surrogate(
    gradient: Callable[[Tensor], Tensor], images: Tensor, probes: int = 8, around: int = 32, seed: int = 0
) -> dict[str, Any]:
    """Measure a surrogate from images (N, C, H, W) in [0, 1], as a card keeps it: lists of numbers.

    Arguments:
        gradient: of P at a batch of images.
        probes: random directions in which the curvature is measured, for each of the first `around` images.
    """
    mean = images.mean(0)
    variance = analyze(images - mean).square().mean(0)
    thumbnail = F.adaptive_avg_pool2d(mean[None], min(THUMBNAIL, *images.shape[2:]))[0]
    generator = torch.Generator().manual_seed(seed)
    x = images[:around]
    diagonal = torch.zeros_like(mean)
    for _ in range(probes):
        # Hutchinson: for random signs v, v * (H v) has the diagonal of H as its mean.
        signs = torch.randint(2, x.shape, generator=generator).to(x) * 2 - 1
        step = STEP * synthesize(signs)
        product = analyze(gradient(x + step) - gradient(x - step)) / (2 * STEP)
        diagonal += (signs * product).mean(0) / probes
    # Averaged over a band, the noise of the probes is small; what is still negative would make no Gaussian.
    curvature = radial_bands(diagonal)
    curvature = curvature.clamp(min=1e-3 * curvature.abs().amax().item())
    return {
        "mean": _rounded(thumbnail),
        "marginal": _rounded(1 / radial_bands(variance).clamp(min=1e-8)),
        "curvature": _rounded(curvature),
    }


def _rounded(values: Tensor) -> list[Any]:
    def digits(v: Any) -> Any:
        return [digits(u) for u in v] if isinstance(v, list) else float(f"{v:.4g}")

    return digits(values.tolist())
