"""Solving with a data term plus a regularizer that is diagonal in frequency, for any operator."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from aipo.batch import per_image, recording
from aipo.transforms.conjugate_gradient import conjugate_gradient
from aipo.transforms.spectrum import Spectrum, analyze, synthesize

__all__ = ["solve_by_conjugate_gradients"]

# A preconditioner needs two digits; a mask gets there in 10 to 30 iterations.
TOLERANCE = 1e-3
MAX_ITERATIONS = 60
RECORDED_ITERATIONS = 24  # in a CUDA graph, which cannot stop early


def solve_by_conjugate_gradients(
    normal: Callable[[Tensor], Tensor], b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum
) -> Tensor:
    """Solve (precision * N + lam * S) v = b, N = `normal` being positive semi-definite, S the spectrum."""
    precision, lam = per_image(precision, b), per_image(lam, b)
    # Preconditioned as if N were a multiple of the identity, with the same mean eigenvalue (Hutchinson's estimate).
    signs = _signs(b.shape[1:], b.dtype, b.device)
    mean = (signs * normal(signs.expand_as(b))).flatten(1).mean(1).clamp(min=0)
    regularizer = lam * spectrum.values
    diagonal = regularizer + precision * per_image(mean, b)
    # In frequency both the regularizer and the preconditioner are mere products.
    solution = conjugate_gradient(
        lambda c: precision * analyze(normal(synthesize(c))) + regularizer * c,
        analyze(b),
        RECORDED_ITERATIONS if recording(b) else MAX_ITERATIONS,
        TOLERANCE,
        lambda r: r / diagonal,
    )
    return synthesize(solution)


@lru_cache(maxsize=8)
def _signs(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Always the same random signs."""
    with torch.inference_mode(False):
        signs = torch.randint(2, shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        return signs.to(device, dtype)
