"""AIPO: reconstruct images from corrupted measurements with exact normalizing-flow priors."""

from aipo import flows, images, initial, metrics, operators, samples, solvers, zoo
from aipo.errors import InputError
from aipo.iterate import Result
from aipo.noise import Gaussian, Laplace, Noise
from aipo.prior import Prior
from aipo.problem import MapProblem
from aipo.solvers import Amortized, Certified, FixedLambda
from aipo.zoo import load_prior, prior_names

__version__ = "0.1.0"

__all__ = [
    "Amortized",
    "Certified",
    "FixedLambda",
    "Gaussian",
    "InputError",
    "Laplace",
    "MapProblem",
    "Noise",
    "Prior",
    "Result",
    "flows",
    "images",
    "initial",
    "load_prior",
    "metrics",
    "operators",
    "prior_names",
    "samples",
    "solvers",
    "zoo",
]
