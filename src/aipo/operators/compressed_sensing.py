"""Compressed sensing: few random linear combinations of all pixels."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.operators.base import checked_image_shape
from aipo.operators.constant import Constant
from aipo.operators.linear import LinearOperator
from aipo.operators.precision import at_least_float32
from aipo.transforms.spectrum import Spectrum, analyze

__all__ = ["CompressedSensing"]

KEPT_FACTORS = 8  # of 64 MB each at m = 4000
MANY_FACTORS = 12  # take as long as one eigendecomposition


class CompressedSensing(LinearOperator):
    """A x = matrix @ x with a dense matrix (m, n), n = C*H*W, m <= n. Measurements are (B, m).

    Arguments:
        image_shape: (C, H, W).
        m: number of measurements, for a random matrix with independent N(0, 1/m) entries.
        seed: of the random matrix.
        matrix: your own matrix (m, n) instead; its rows must be linearly independent.
    """

    capturable = True

    def __init__(
        self,
        image_shape: Sequence[int],
        m: int | None = None,
        seed: int | Generator = 0,
        *,
        matrix: Tensor | None = None,
    ):
        n = math.prod(checked_image_shape(image_shape))
        if matrix is None:
            if m is None or not 1 <= m <= n:
                raise InputError(f"m is {m}; choose from 1 to {n}, the size of an image, or give a matrix")
            matrix = torch.randn(m, n, generator=as_generator(seed)) / math.sqrt(m)
        elif m is not None:
            raise InputError(f"m is {m}, but a matrix is given too; leave one of them out")
        elif matrix.ndim != 2 or not 1 <= matrix.shape[0] <= n or matrix.shape[1] != n:
            raise InputError(
                f"matrix has shape {tuple(matrix.shape)}; images {tuple(image_shape)} need (m, {n}), m <= {n}"
            )
        super().__init__(image_shape, measurement_shape=(matrix.shape[0],))
        self._matrix = Constant(matrix)
        self._cholesky: Constant | None = None
        self._inverse: Constant | None = None
        self._known: list[_Whitened] = []
        self._flat: Spectrum | None = None

    @property
    def matrix(self) -> Tensor:
        """The matrix A, (m, n)."""
        return self._matrix.value

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        if parameters:
            return self.updated(**parameters).A(x)
        self.check_image(x)
        return x.flatten(1) @ self._matrix.like(x).T

    def A_adjoint(self, y: Tensor) -> Tensor:
        self.check_measurement(y)
        return (y @ self._matrix.like(y)).reshape(-1, *self.image_shape)

    def A_dagger(self, y: Tensor) -> Tensor:
        """A^T (A A^T)^-1 y, which is the pseudo-inverse for independent rows."""
        self.check_measurement(y)
        if self._cholesky is None:
            with torch.inference_mode(False), torch.no_grad():
                self._cholesky = Constant(_gram_cholesky(self.matrix.to(y.device)))
        exact = at_least_float32(y)
        if y.is_cuda:
            # A product with the inverse runs an order of magnitude faster there than two triangular solves.
            if self._inverse is None:
                self._inverse = Constant(torch.cholesky_inverse(self._cholesky.value))
            z = exact @ self._inverse.like(exact)
        else:
            z = torch.cholesky_solve(exact.T, self._cholesky.like(exact)).T
        return self.A_adjoint(z.to(y.dtype))

    def subset(self, kept: Tensor) -> "CompressedSensing":
        rows = self.checked_kept(kept).to(self.matrix)
        return CompressedSensing(self.image_shape, matrix=self.matrix * rows[:, None])

    @torch.no_grad()
    def prox_l2(self, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        """See `Operator`. A solve with m unknowns."""
        self.check_pair(z, y)
        if self._flat is None or self._flat.values.device != z.device or self._flat.values.dtype != z.dtype:
            self._flat = Spectrum(torch.ones(self.image_shape, dtype=z.dtype, device=z.device))
        pull = per_image(gamma, z) * self.A_adjoint(y - self.A(z))
        return z + self.solve_regularized(pull, gamma, torch.ones_like(gamma), self._flat, z)

    @torch.no_grad()
    def solve_regularized(self, b: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum, x: Tensor) -> Tensor:
        """See `Operator`. By Woodbury's identity: (precision A^T A + lam S)^-1 needs only a solve with m unknowns."""
        v = spectrum.solve(b, per_image(lam, b))
        z = self._solve_capacitance(self.A(v), precision, lam, spectrum)
        return v - spectrum.solve(self.A_adjoint(z), per_image(lam, b))

    def _solve_capacitance(self, z: Tensor, precision: Tensor, lam: Tensor, spectrum: Spectrum) -> Tensor:
        """(I / precision + G / lam)^-1 z, with G = A S^-1 A^T, for z (B, m)."""
        known = self._whitened(spectrum, z)
        if z.is_cuda or known.eigen is not None:
            return known.by_eigenvectors(z, precision, lam)
        pairs, group = torch.stack([precision, lam], dim=1).unique(dim=0, return_inverse=True)
        known.asked += len(pairs)
        if known.asked > MANY_FACTORS:
            return known.by_eigenvectors(z, precision, lam)
        solved = torch.empty_like(z)
        for i, (weight, scale) in enumerate(pairs.tolist()):
            mine = group == i
            solved[mine] = torch.cholesky_solve(z[mine].T, known.factor(weight, scale)).T
        return solved

    def _whitened(self, spectrum: Spectrum, like: Tensor) -> "_Whitened":
        """What is known for a spectrum; a prior has two, for its images and its curvature, and `prox_l2` a flat one."""
        for known in self._known:
            if known.spectrum is spectrum:
                return known
        rows = self._matrix.like(like).split(512)
        parts = [analyze(part.view(-1, *self.image_shape)) / spectrum.values.sqrt() for part in rows]
        white = torch.cat([part.flatten(1) for part in parts])
        self._known = [*self._known[-2:], _Whitened(spectrum, white @ white.T)]
        return self._known[-1]


class _Whitened:
    """G = A S^-1 A^T for one S, and what was made of it."""

    def __init__(self, spectrum: Spectrum, gram: Tensor):
        self.spectrum = spectrum
        self.gram = gram
        self.eigen: tuple[Tensor, Tensor] | None = None
        self.asked = 0  # for how many factors; some more than once
        self._factors: dict[tuple[float, float], Tensor] = {}

    def by_eigenvectors(self, z: Tensor, precision: Tensor, lam: Tensor) -> Tensor:
        """See `_solve_capacitance`. One decomposition serves every precision and lam, without a look at them."""
        if self.eigen is None:
            self.eigen = torch.linalg.eigh(self.gram)
        values, vectors = self.eigen
        return (z @ vectors / (1 / precision[:, None] + values.clamp(min=0) / lam[:, None])) @ vectors.T

    def factor(self, precision: float, lam: float) -> Tensor:
        """The Cholesky factor of I / precision + G / lam; the last few are kept."""
        key = (precision, lam)
        if key not in self._factors:
            if len(self._factors) >= KEPT_FACTORS:
                self._factors.pop(next(iter(self._factors)))
            shifted = self.gram / lam
            shifted.diagonal().add_(1 / precision)
            self._factors[key] = torch.linalg.cholesky(shifted)
        return self._factors[key]


def _gram_cholesky(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of A A^T, in float64.

    A A^T squares the condition number of A. In float64 that costs no digit that a float32 image could show,
    and at m = 4000, n = 12288 it takes seconds, once. Slices of A avoid a float64 copy of it all.
    """
    m = len(matrix)
    gram = torch.zeros(m, m, dtype=torch.float64, device=matrix.device)
    for columns in matrix.split(2048, dim=1):
        columns = columns.double()
        gram.addmm_(columns, columns.T)
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal()
    if failed or pivots.min() < 1e-6 * pivots.max():
        raise InputError(f"the {m} rows of matrix are linearly dependent; remove those that repeat the others")
    return factor
