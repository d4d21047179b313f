"""Noise models, both ways."""

from __future__ import annotations

import math

import torch
from deepinv.physics import noise as theirs
from torch import Generator, Tensor

from aipo.errors import InputError
from aipo.noise import AdditiveNoise, Gamma, Gaussian, Laplace, Noise, Poisson, PoissonGaussian, Rician

__all__ = ["FisherTippett", "LogPoisson", "PhotonCounts", "as_noise_model", "noise_of"]


def noise_of(model: object, batch: int = 1) -> Noise:
    """The noise that a `deepinv.physics.NoiseModel` draws, with its density.

    Arguments:
        model: of a physics; its levels are read now, not when they change.
        batch: how many images, should the levels be one per image.
    """
    match model:
        case NoiseOfOurs():
            return model.noise
        case theirs.GaussianNoise():
            return Gaussian(_levels("sigma", model.sigma, batch))
        case theirs.LaplaceNoise():
            return Laplace(_levels("b", model.b, batch))
        case theirs.PoissonNoise():
            return (Poisson if bool(model.normalize) else PhotonCounts)(_level("gain", model.gain))
        case theirs.PoissonGaussianNoise():
            return PoissonGaussian(_level("gain", model.gain), _level("sigma", model.sigma))
        case theirs.RicianNoise():
            return Rician(_level("sigma", model.sigma))
        case theirs.GammaNoise():
            return Gamma(_level("l", model.l))
        case theirs.LogPoissonNoise():
            return LogPoisson(_level("N0", model.N0), _level("mu", model.mu))
        case theirs.FisherTippettNoise():
            return FisherTippett(_level("l", model.l))
        case theirs.ZeroNoise():
            raise InputError(
                "the physics has no noise; say how much there is at least, such as noise=aipo.Gaussian(0.01)"
            )
    raise InputError(
        f"{type(model).__name__} has no density that can be differentiated; give a noise that is like it, "
        "such as noise=aipo.Laplace(0.05)"
    )


def as_noise_model(noise: Noise) -> NoiseOfOurs:
    """A noise as `deepinv.physics.NoiseModel`."""
    return NoiseOfOurs(noise)


class NoiseOfOurs(theirs.NoiseModel):
    """Draws from a noise; with a generator of its own, else from torch's global one."""

    def __init__(self, noise: Noise, rng: Generator | None = None):
        super().__init__(rng=rng)
        self.noise = noise
        sigma = getattr(noise, "sigma", None)
        if sigma is not None:  # where deepinv's solvers look for it
            self.register_buffer("sigma", torch.as_tensor(sigma, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor, seed: int | None = None, **kwargs: object) -> Tensor:
        self.rng_manual_seed(seed)
        draw = int(torch.randint(2**62, (), generator=self.rng))
        return self.noise.sample(x, Generator().manual_seed(draw))


class PhotonCounts(Poisson):
    """Photon noise that was not scaled back: y is the number itself, of mean f(x) / gain."""

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        return super().log_prob(self.gain * y, fx)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        return super().sample(fx, generator) / self.gain


class LogPoisson(Noise):
    """Counted X-rays in tomography: y = -log(k / N0) / mu, k a Poisson number of mean N0 exp(-mu f(x)).

    Arguments:
        N0: photons that go in, > 0.
        mu: how much one unit of f(x) absorbs, > 0.
    """

    capturable = True

    def __init__(self, N0: float, mu: float):
        self.N0, self.mu = N0, mu

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        count = self.N0 * (-self.mu * y).exp()  # none where y is infinite
        terms = count * (math.log(self.N0) - self.mu * fx) - self.N0 * (-self.mu * fx).exp() - torch.lgamma(count + 1)
        return terms.flatten(1).sum(1)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        k = torch.poisson(self.N0 * (-self.mu * fx.detach().cpu().double()).exp(), generator)
        # Where no photon came through, half of one keeps y finite.
        return (-(k.clamp(min=0.5) / self.N0).log() / self.mu).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        # The number k is known to sqrt(k), and the logarithm divides by k.
        return (self.mu * y).exp().flatten(1).mean(1) / (self.N0 * self.mu**2)

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The Fisher information of the mean."""
        return self.mu**2 * self.N0 * (-self.mu * fx).exp()

    def __repr__(self) -> str:
        return f"LogPoisson(N0={self.N0:g}, mu={self.mu:g})"


class FisherTippett(AdditiveNoise):
    """The logarithm of speckle: e = log g, g a Gamma number of mean 1 and variance 1 / looks."""

    capturable = True

    def __init__(self, looks: float):
        self.looks = looks
        self._speckle = Gamma(looks)

    def log_density(self, e: Tensor) -> Tensor:
        constant = self.looks * math.log(self.looks) - math.lgamma(self.looks)
        return (constant + self.looks * (e - e.exp())).flatten(1).sum(1)

    def draw(self, shape: torch.Size, generator: Generator | None = None) -> Tensor:
        return self._speckle.sample(torch.ones(shape, dtype=torch.float64), generator).log()

    def variance(self, y: Tensor) -> Tensor:
        return y.new_full((len(y),), float(torch.special.polygamma(1, torch.tensor(self.looks))))

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The Fisher information of the mean."""
        return torch.full_like(fx, self.looks)

    def __repr__(self) -> str:
        return f"FisherTippett(looks={self.looks:g})"


def _levels(name: str, value: Tensor | float, batch: int) -> float | Tensor:
    """One number, or one per image."""
    values = torch.as_tensor(value).detach().flatten()
    if len(values) == 1:
        return float(values)
    if len(values) != batch:
        raise InputError(f"{name} of the noise model has {len(values)} values for {batch} images; give one for each")
    return values


def _level(name: str, value: Tensor | float) -> float:
    values = torch.as_tensor(value).detach().flatten()
    if not bool((values == values[0]).all()):
        raise InputError(f"{name} of the noise model differs between images ({values.tolist()}); solve them one by one")
    return float(values[0])
