"""Classical methods without a learned prior, for reference: BM3D, total variation, biharmonic filling, sparse wavelets.

They have no lam. BM3D and the two of scikit-image are optional dependencies (the extra `classical`); the weights of the
others were chosen on validation faces, see `benchmarks/classical.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aipo.errors import InputError, how_to_install
from aipo.evaluation.chunk import Chunk
from aipo.operators import CompressedSensing
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

__all__ = ["CLASSICAL", "biharmonic", "bm3d", "sparse_wavelets", "total_variation"]

TV_WEIGHT = 0.08
WAVELET_WEIGHT = 0.16
WAVELET_LEVELS = 4
WAVELET_ITERATIONS = 200


def bm3d(chunk: Chunk) -> Tensor:
    """K. Dabov et al., "Image denoising by sparse 3-D transform-domain collaborative filtering", 2007."""
    package = _optional("bm3d", "bm3d")
    return _for_each(chunk.y, lambda y: package.bm3d_rgb(y, sigma_psd=chunk.experiment.sigma))


def total_variation(chunk: Chunk) -> Tensor:
    """A. Chambolle, "An algorithm for total variation minimization and applications", 2004."""
    restoration = _optional("skimage.restoration", "scikit-image")
    return _for_each(chunk.y, lambda y: restoration.denoise_tv_chambolle(y, TV_WEIGHT, 1e-5, 500, channel_axis=-1))


def biharmonic(chunk: Chunk) -> Tensor:
    """S. Damelin, N. Hoang, "On surface completion and image inpainting by biharmonic functions", 2018."""
    restoration = _optional("skimage.restoration", "scikit-image")
    missing = chunk.operator.mask[0].cpu().numpy() == 0  # type: ignore[attr-defined]
    return _for_each(chunk.y, lambda y: restoration.inpaint_biharmonic(y, missing, channel_axis=-1))


def sparse_wavelets(chunk: Chunk) -> Tensor:
    """argmin |A x - y|^2 / 2 + weight |W x|_1, W an orthonormal Haar transform of opponent colors, by FISTA.

    A. Beck, M. Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse problems", 2009.
    """
    operator = chunk.operator
    assert isinstance(operator, CompressedSensing)
    lipschitz = _largest_eigenvalue(operator, chunk.truth[:1])
    c = analyze_haar(operator.A_adjoint(chunk.y) * 0)
    momentum, t = c, 1.0
    for _ in range(WAVELET_ITERATIONS):
        residual = operator.A(synthesize_haar(momentum)) - chunk.y
        moved = momentum - analyze_haar(operator.A_adjoint(residual)) / lipschitz
        shrunk = moved.sign() * (moved.abs() - WAVELET_WEIGHT / lipschitz).clamp(min=0)
        # The coarsest coefficients are means, not details: they are not shrunk.
        side = c.shape[-1] >> WAVELET_LEVELS
        shrunk[..., :side, :side] = moved[..., :side, :side]
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        momentum, c, t = shrunk + (t - 1) / t_next * (shrunk - c), shrunk, t_next
    return synthesize_haar(c)


def analyze_haar(x: Tensor) -> Tensor:
    """Coefficients in the usual layout: the coarsest in the upper left corner."""
    out = opponent(x)
    for level in range(WAVELET_LEVELS):
        side = out.shape[-1] >> level
        ll, lh, hl, hh = haar(out[..., :side, :side]).chunk(4, dim=1)
        out = out.clone()
        out[..., :side, :side] = torch.cat([torch.cat([ll, lh], dim=-1), torch.cat([hl, hh], dim=-1)], dim=-2)
    return out


def synthesize_haar(c: Tensor) -> Tensor:
    out = c
    for level in reversed(range(WAVELET_LEVELS)):
        side, half = c.shape[-1] >> level, c.shape[-1] >> (level + 1)
        block = out[..., :side, :side]
        quarters = [block[..., i : i + half, j : j + half] for i in (0, half) for j in (0, half)]
        out = out.clone()
        out[..., :side, :side] = haar_inverse(torch.cat(quarters, dim=1))
    return opponent_inverse(out)


def _largest_eigenvalue(operator: CompressedSensing, like: Tensor) -> float:
    """Of A^T A, by power iteration from a constant start; 5% more, to be safe."""
    v = torch.ones_like(like)
    for _ in range(30):
        v = operator.A_adjoint(operator.A(v / v.norm()))
    return 1.05 * v.norm().item()


def _for_each(y: Tensor, restore: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """Apply a function of arrays (H, W, 3) to every image."""
    arrays = [restore(image.permute(1, 2, 0).double().cpu().numpy()) for image in y]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).to(y)


def _optional(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"this method needs the package {package}: {how_to_install('classical')}") from None


# By method, and for each by experiment.
CLASSICAL: dict[str, dict[str, Callable[[Chunk], Tensor]]] = {
    "bm3d": {"denoise": bm3d},
    "tv": {"denoise": total_variation},
    "biharmonic": {"inpaint": biharmonic},
    "wavelets": {"ncs4000": sparse_wavelets, "ncs2000": sparse_wavelets},
}
