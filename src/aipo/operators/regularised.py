"""Solving with a data term plus a regulariser that is diagonal in frequency, for any operator."""

from collections.abc import Callable

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.operators.conjugate_gradient import conjugate_gradient
from aipo.spectrum import Spectrum

__all__ = ["solve_by_conjugate_gradients"]

# A preconditioner needs two digits; a mask gets there in 10 to 30 iterations.
TOLERANCE = 1e-3
MAX_ITERATIONS = 60


def solve_by_conjugate_gradients(
    normal: Callable[[Tensor], Tensor], b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum
) -> Tensor:
    """Solve (precision * N + lam * S) v = b, N = `normal` being positive semi-definite, S the spectrum."""
    precision, lam = per_image(precision, b), per_image(lam, b)
    # Preconditioned as if N were a multiple of the identity, with the same mean eigenvalue (Hutchinson's estimate).
    signs = torch.randint(2, b.shape[1:], generator=torch.Generator().manual_seed(0)).to(b) * 2 - 1
    mean = (signs * normal(signs.expand_as(b))).flatten(1).mean(1).clamp(min=0)
    shift = precision * per_image(mean, b)
    return conjugate_gradient(
        lambda v: precision * normal(v) + lam * spectrum.apply(v),
        b,
        MAX_ITERATIONS,
        TOLERANCE,
        lambda r: spectrum.solve(r, lam, shift),
    )
