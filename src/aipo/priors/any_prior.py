"""A prior of your own: `P` and `gradient` are all that it must have, the solvers need no more.

What else they ask of a prior has a default here: a start, a model of the curvature, and what tells two priors apart.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from aipo.engine.engine import Precision
from aipo.errors import InputError
from aipo.priors.surrogate import Surrogate, measure_surrogate
from aipo.transforms.spectrum import Spectrum, expand_bands, synthesize

__all__ = ["AnyPrior", "HasDensity", "Plain", "natural_images"]

# Of photographs: the power of the brightness at frequency 1, and how it falls; the share of either color; and the
# frequency below which all is flat. Measured on twenty training photographs.
POWER, FALL, COLORFUL, FLATTEST = 0.003, 2.5, 0.05, 0.01
DRAWS, PROBES = 8, 2  # for the curvature: 4 gradients of 8 images


class HasDensity(Protocol):
    """What a prior must have. An attribute `surrogate` (see `Surrogate`) is used too, where there is one."""

    def P(self, x: Tensor) -> Tensor:
        """-log p(x), but for a constant, per image: (B, C, H, W) -> (B,)."""

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of P at images x: (B, C, H, W)."""


class Plain:
    """P and its gradient, evaluated as they are."""

    uncertainty = 0.0
    capturable = False

    def __init__(self, prior: HasDensity):
        self.prior = prior

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, C, H, W) -> P (B,), its gradient (B, C, H, W)."""
        value, gradient = self.prior.P(x).detach(), self.prior.gradient(x).detach()
        if value.shape != x.shape[:1] or gradient.shape != x.shape:
            raise InputError(
                f"P and gradient of {type(self.prior).__name__} return {tuple(value.shape)} and "
                f"{tuple(gradient.shape)} for images {tuple(x.shape)}; return (B,) and the shape of the images"
            )
        return value, gradient


class AnyPrior:
    """A prior that has `P` and `gradient`, with everything else that solvers ask for.

    `MapProblem` makes it; there is no need to do so yourself.

    Arguments:
        prior: yours.
        image_shape: (C, H, W).
        weights: a tensor of the dtype and on the device of the images.

    Examples:
        >>> import aipo, torch
        >>> class Smooth:
        ...     def P(self, x):
        ...         return 50 * (x.diff(dim=-1).square().flatten(1).sum(1) + x.diff(dim=-2).square().flatten(1).sum(1))
        ...
        ...     def gradient(self, x):
        ...         return torch.func.grad(lambda x: self.P(x).sum())(x)
        >>> x = aipo.samples.load("astronaut")[None]
        >>> operator, noise = aipo.operators.Denoising((3, 64, 64)), aipo.Gaussian(0.1)
        >>> y = operator.measure(x, noise, seed=0)
        >>> path = aipo.follow_path(aipo.MapProblem(Smooth(), operator, noise, y), [0.5, 1.0])
        >>> bool(aipo.metrics.psnr(path.at(1.0).x, x) > aipo.metrics.psnr(y, x) + 3)
        True
    """

    def __init__(self, prior: HasDensity, image_shape: tuple[int, int, int], weights: Tensor):
        missing = [name for name in ("P", "gradient") if not callable(getattr(prior, name, None))]
        if missing:
            raise InputError(f"the prior {type(prior).__name__} has no {' and no '.join(missing)}; define both")
        self.prior, self.image_shape, self.weights = prior, image_shape, weights

    @property
    def name(self) -> str:
        return str(getattr(self.prior, "name", type(self.prior).__name__))

    def P(self, x: Tensor) -> Tensor:
        """P(x), per image: (B, C, H, W) -> (B,)."""
        return self.prior.P(x)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of P at images x: (B, C, H, W)."""
        return self.prior.gradient(x)

    def engine(self, precision: Precision = "exact") -> Plain:
        """What evaluates P and its gradient for the solvers."""
        return Plain(self.prior)

    @cached_property
    def surrogate(self) -> Surrogate:
        """The Gaussian that stands in for it: its own, or that of photographs, with the curvature of P."""
        own = getattr(self.prior, "surrogate", None)
        if own is not None:
            return own.to(self.weights)
        photos = natural_images(self.image_shape).to(self.weights)
        generator = torch.Generator().manual_seed(0)
        normal = torch.randn(DRAWS, *self.image_shape, generator=generator).to(self.weights)
        draws = (photos.mean + synthesize(normal / photos.marginal.values.sqrt())).clamp(0, 1)
        measured = measure_surrogate(lambda x: self.prior.gradient(x).detach(), draws, PROBES, DRAWS)
        bands = torch.tensor(measured["curvature"]).to(self.weights)
        if not (bands.isfinite() & (bands > 0)).all():
            return photos  # a gradient that does not change, or breaks: the line search finds the scale
        return Surrogate(photos.mean, photos.marginal, Spectrum(expand_bands(bands, self.image_shape)))

    def center(self) -> Tensor:
        """Mid-gray, or the mean of its surrogate: (1, C, H, W)."""
        return self.surrogate.mean[None]

    def sample(self, num: int, temperature: float = 1.0, seed: int | torch.Generator = 0) -> Tensor:
        """Only a flow can be sampled."""
        raise InputError(f"{self.name} cannot be sampled; start from `initial.gaussian`, or use a flow")

    def fingerprint(self) -> str:
        """A hash of what it answers to one picture: of its insides nothing is known."""
        ramp = torch.linspace(0, 1, self.weights.new_empty(self.image_shape).numel()).to(self.weights)
        value, gradient = Plain(self.prior)(ramp.view(1, *self.image_shape))
        content = hashlib.sha256(self.name.encode())
        for tensor in (value, gradient):
            content.update(tensor.cpu().numpy().tobytes())
        return content.hexdigest()

    def for_images(self, image_shape: tuple[int, int, int]) -> AnyPrior:
        """The same for images of this shape (C, H, W)."""
        return AnyPrior(self.prior, image_shape, self.weights)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "surrogate"}


def natural_images(image_shape: tuple[int, int, int]) -> Surrogate:
    """A Gaussian for photographs in general (C, H, W): mid-gray, with power that falls with frequency."""
    channels, height, width = image_shape
    rows = torch.arange(height, dtype=torch.float64) / height
    columns = torch.arange(width, dtype=torch.float64) / width
    power = POWER * (rows[:, None].square() + columns.square() + FLATTEST**2) ** (-FALL / 2)
    # The brightness is sqrt(3) times what all three channels share.
    shares = torch.tensor([1, COLORFUL, COLORFUL]) if channels == 3 else torch.full((channels,), 1 / 3)
    values = (1 / (shares[:, None, None] * power)).to(torch.float32)
    return Surrogate(torch.full(image_shape, 0.5), Spectrum(values), Spectrum(values))
