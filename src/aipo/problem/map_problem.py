"""The MAP objective: L(x; lam) = D(x) + lam * P(x), for a batch of images, each with its own lam."""

from __future__ import annotations

import hashlib
import math
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from aipo.engine.engine import Evaluation, Precision, evaluate, exact_float32, hessian_vector
from aipo.errors import InputError
from aipo.flows import Flow
from aipo.noise import Gaussian, Noise
from aipo.operators import Operator
from aipo.priors.any_prior import AnyPrior, HasDensity
from aipo.priors.noise_prior import LevelPrior, NoisePrior
from aipo.priors.prior import Prior
from aipo.problem.checks import check_belonging, check_inference
from aipo.problem.discrepancy import expected_chi2

__all__ = ["MapProblem"]

MAX_LAM = 1e6  # far beyond the weight at which a measurement still counts


class MapProblem:
    """Measurements y = f(x) + e of a batch of images, with a prior (Eq. 3 of the paper).

    D(x) = -log p_e(y - f(x)) and P(x) = -log p_G(x) + offset, both in nats, summed over dimensions, with all constants.

    Arguments:
        prior: a `Prior`, a prior at one noise level (`prior.at(0.02)`), a `NoisePrior` (which is taken at its smallest
            level), a bare `Flow` (then the offset is that of 5-bit data), or anything that has `P` and `gradient`
            (`aipo.priors.any_prior`).
        operator: f.
        noise: p_e.
        y: measurements (B, *operator.measurement_shape); the prior must be on their device and in their dtype.
        precision: of the gradients that solvers see, "exact" or "fast", see `aipo.engine`. What they report at the
            end is always exact.

    Examples:
        Prior and noise of the same width: between the measurement 1 and the prior's mean 0.5 lies the solution, 0.75.

        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> halfway = torch.full((1, 3, 8, 8), 0.75)
        >>> bool(problem.loss(halfway, lam=1.0) < problem.loss(halfway + 0.01, lam=1.0))
        True
        >>> problem.chi2(halfway)
        tensor([1.])
    """

    def __init__(
        self,
        prior: Prior | NoisePrior | LevelPrior | Flow | HasDensity,
        operator: Operator,
        noise: Noise,
        y: Tensor,
        precision: Precision = "exact",
    ):
        self.prior: Prior | LevelPrior | AnyPrior = _complete(prior, operator, y)
        self.operator = operator
        self.noise = noise
        operator.check_measurement(y)
        # What is not observed must not count: the residual there is 0 for every image.
        y = operator.restrict(y)
        if not y.isfinite().all():
            raise InputError("the measurements contain NaN or infinity; remove them or mask them")
        weights = self.prior.weights
        if (weights.dtype, weights.device) != (y.dtype, y.device):
            raise InputError(f"the prior is {weights.dtype} on {weights.device}, y is {y.dtype} on {y.device}")
        check_inference()
        check_belonging(operator, noise, y)
        self.y = y
        self.precision = precision
        self.engine = self.prior.engine(precision)

    @property
    def uncertainty(self) -> float:
        """By how many nats P may be off, beyond rounding, in this precision."""
        return self.engine.uncertainty

    @property
    def batch(self) -> int:
        return len(self.y)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.operator.image_shape

    def D(self, x: Tensor) -> Tensor:
        """The reconstruction error -log p_e(y - f(x)): (B, C, H, W) -> (B,)."""
        with exact_float32(x):
            return -self.noise.log_prob(self.y, self.operator.A(x))

    def P(self, x: Tensor) -> Tensor:
        """The regularizer -log p_G(x) + offset: (B, C, H, W) -> (B,)."""
        return self.prior.P(x)

    def loss(self, x: Tensor, lam: Tensor | float) -> Tensor:
        """L = D + lam * P: (B, C, H, W) -> (B,)."""
        return self.D(x) + lam * self.P(x)

    def evaluate(self, x: Tensor) -> Evaluation:
        """Both terms and their gradients at x: one gradient evaluation per image."""
        check_inference()
        return evaluate(self.D, self.engine, x)

    def hessian_vector(self, x: Tensor, lam: Tensor, v: Tensor) -> Tensor:
        """Hessian of L(.; lam) at x, times v: (B, C, H, W)."""
        return hessian_vector(lambda u: self.loss(u, lam), x, v)

    def chi2(self, x: Tensor) -> Tensor:
        """||y - f(x)||^2 / (m sigma^2) per image (B,): about 1 for the true image. Gaussian noise only."""
        if not isinstance(self.noise, Gaussian):
            raise InputError(f"chi^2 is defined for Gaussian noise, not for {self.noise!r}")
        residual = (self.y - self.operator.A(x)).flatten(1)
        sigma = torch.as_tensor(self.noise.sigma, dtype=x.dtype, device=x.device)
        return residual.square().sum(1) / (self.operator.num_measurements * sigma.square())

    @cached_property
    def expected_chi2(self) -> Tensor:
        """chi^2 that a good restoration of each image should have (B,), see `discrepancy`."""
        # Computed once: with a dense matrix it takes a second, and a grid of lam and a rule to choose lam both ask.
        return expected_chi2(self.prior.surrogate, self.operator, self.noise, self.y)

    def take(self, rows: Tensor) -> MapProblem:
        """The problem of some images alone, rows being their numbers."""
        return self._copy(self.noise.take(rows), self.y[rows], self.precision)

    def with_noise(self, noise: Noise) -> MapProblem:
        """The same measurements, with another noise."""
        return self._copy(noise, self.y, self.precision)

    def exactly(self) -> MapProblem:
        """The same problem in exact precision; itself if it is exact already."""
        if self.precision == "exact":
            return self
        return self._copy(self.noise, self.y, "exact")

    def _copy(self, noise: Noise, y: Tensor, precision: Precision) -> MapProblem:
        """One that need not be checked again; what was computed for this one is left out."""
        other = copy(self)
        other.__dict__.pop("expected_chi2", None)
        other.noise, other.y, other.precision = noise, y, precision
        other.engine = self.prior.engine(precision)
        return other

    def check_start(self, x0: Tensor) -> None:
        """Raise `InputError` unless x0 is one image for each measurement."""
        self.operator.check_pair(x0, self.y)

    def lam_tensor(self, lam: float | Tensor) -> Tensor:
        """lam as one value per image (B,), checked."""
        weights = torch.as_tensor(lam, dtype=self.y.dtype, device=self.y.device)
        if weights.ndim > 1 or (weights.ndim == 1 and len(weights) != self.batch):
            raise InputError(f"lam has shape {tuple(weights.shape)}; give one number, or one for each of {self.batch}")
        if not ((weights >= 0) & (weights <= MAX_LAM)).all():
            raise InputError(f"lam must be from 0 to {MAX_LAM:g}, got {weights.tolist()}")
        return weights.expand(self.batch).clone()

    def fingerprint(self) -> str:
        """A short hash of everything that defines the problem, so that a checkpoint cannot meet another problem.

        The precision, which defines only how it is solved, is left out.
        """
        # Operator and noise speak for themselves through their answers to one picture: masks, kernels, matrices and
        # scales all show in them, which text would round or leave out.
        ramp = torch.linspace(0, 1, math.prod(self.image_shape)).to(self.y).view(1, *self.image_shape)
        measured = self.operator.A(ramp)
        answers = (measured, self.noise.log_prob(self.y, measured.expand_as(self.y)))
        content = hashlib.sha256(repr((self.prior.fingerprint(), self.operator, self.noise)).encode())
        for tensor in (self.y, *answers):
            content.update(tensor.detach().cpu().numpy().tobytes())
        return content.hexdigest()[:16]


def _complete(
    prior: Prior | NoisePrior | LevelPrior | Flow | HasDensity, operator: Operator, y: Tensor
) -> Prior | LevelPrior | AnyPrior:
    """The prior for the operator's images, with all that solvers ask of one."""
    whole: Any = Prior(prior) if isinstance(prior, Flow) else prior
    complete = getattr(whole, "for_images", None)
    return complete(operator.image_shape) if complete else AnyPrior(whole, operator.image_shape, y)
