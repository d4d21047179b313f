"""The MAP objective: L(x; lam) = D(x) + lam * P(x), for a batch of images, each with its own lam."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from aipo.engine import Evaluation, Precision, evaluate, exact_float32, hessian_vector
from aipo.errors import InputError
from aipo.flows import Flow
from aipo.noise import Gaussian, Noise
from aipo.operators import Operator
from aipo.prior import Prior

__all__ = ["MapProblem"]


class MapProblem:
    """Measurements y = f(x) + e of a batch of images, with a flow prior (Eq. 3 of the paper).

    D(x) = -log p_e(y - f(x)) and P(x) = -log p_G(x) + offset, both in nats, summed over dimensions, with all constants.

    Arguments:
        prior: a `Prior`, or a bare `Flow` (then the offset is that of 5-bit data).
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
        self, prior: Prior | Flow, operator: Operator, noise: Noise, y: Tensor, precision: Precision = "exact"
    ):
        self.prior = prior if isinstance(prior, Prior) else Prior(prior)
        self.operator = operator
        self.noise = noise
        operator.check_measurement(y)
        if operator.image_shape != self.prior.image_shape:
            raise InputError(
                f"the operator works on images {operator.image_shape}, the prior on {self.prior.image_shape}"
            )
        # What is not observed must not count: the residual there is 0 for every image.
        y = operator.restrict(y)
        if not y.isfinite().all():
            raise InputError("the measurements contain NaN or infinity; remove them or mask them")
        weights = next(self.prior.flow.parameters())
        if (weights.dtype, weights.device) != (y.dtype, y.device):
            raise InputError(f"the prior is {weights.dtype} on {weights.device}, y is {y.dtype} on {y.device}")
        self.y = y
        self.precision = precision
        self.engine = self.prior.engine(precision)
        self.expected_chi2: Tensor | None = None  # kept by `discrepancy.expected_chi2`

    @property
    def uncertainty(self) -> float:
        """By how many nats P may be off, beyond rounding, in this precision."""
        return self.engine.uncertainty

    @property
    def batch(self) -> int:
        return len(self.y)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.prior.image_shape

    def D(self, x: Tensor) -> Tensor:
        """The reconstruction error -log p_e(y - f(x)): (B, C, H, W) -> (B,)."""
        with exact_float32(x):
            return -self.noise.log_prob(self.y - self.operator.A(x))

    def P(self, x: Tensor) -> Tensor:
        """The regulariser -log p_G(x) + offset: (B, C, H, W) -> (B,)."""
        return self.prior.P(x)

    def loss(self, x: Tensor, lam: Tensor | float) -> Tensor:
        """L = D + lam * P: (B, C, H, W) -> (B,)."""
        return self.D(x) + lam * self.P(x)

    def evaluate(self, x: Tensor) -> Evaluation:
        """Both terms and their gradients at x: one gradient evaluation per image."""
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

    def take(self, rows: Tensor) -> MapProblem:
        """The problem of some images alone, rows being their numbers."""
        return MapProblem(self.prior, self.operator, self.noise.take(rows), self.y[rows], self.precision)

    def exactly(self) -> MapProblem:
        """The same problem in exact precision."""
        return MapProblem(self.prior, self.operator, self.noise, self.y)

    def lam_tensor(self, lam: float | Tensor) -> Tensor:
        """lam as one value per image (B,), checked."""
        lam = torch.as_tensor(lam, dtype=self.y.dtype, device=self.y.device).expand(self.batch).clone()
        if not (lam.isfinite() & (lam >= 0)).all():
            raise InputError(f"lam must be finite and >= 0, got {lam.tolist()}")
        return lam

    def fingerprint(self) -> str:
        """A short hash of everything that defines the problem, so that a checkpoint cannot meet another problem.

        The precision, which defines only how it is solved, is left out.
        """
        # Operator and noise speak for themselves through their answers to one picture: masks, kernels, matrices and
        # scales all show in them, which text would round or leave out.
        ramp = torch.linspace(0, 1, self.prior.flow.num_dims).to(self.y).view(1, *self.image_shape)
        measured, flow = self.operator.A(ramp), self.prior.flow
        answers = (measured, self.noise.log_prob(self.y - measured))
        content = hashlib.sha256()
        for tensor in (self.y, *answers, *flow.parameters(), *flow.buffers()):
            content.update(tensor.detach().cpu().numpy().tobytes())
        for part in (type(flow).__name__, flow.config, self.prior.bits, self.operator, self.noise):
            content.update(repr(part).encode())
        return content.hexdigest()[:16]
