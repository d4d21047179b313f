"""The noise of a measurement: the density p(y | f(x)) with all constants, and drawing from it."""

from aipo.noise.additive import Gaussian, Laplace
from aipo.noise.base import AdditiveNoise, Noise, as_generator
from aipo.noise.gamma import Gamma
from aipo.noise.photons import Poisson, PoissonGaussian
from aipo.noise.rician import Rician

__all__ = [
    "AdditiveNoise",
    "Gamma",
    "Gaussian",
    "Laplace",
    "Noise",
    "Poisson",
    "PoissonGaussian",
    "Rician",
    "as_generator",
]
