"""AIPO: reconstruct images from corrupted measurements with exact normalizing-flow priors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aipo import flows, images, operators, solvers
    from aipo.choose import Choice, choose_lambda, estimate_sigma
    from aipo.errors import InputError
    from aipo.images import metrics, samples
    from aipo.noise import AdditiveNoise, Gamma, Gaussian, Laplace, Noise, Poisson, PoissonGaussian, Rician
    from aipo.posterior import Posterior, sample_posterior
    from aipo.priors import NoisePrior, Prior, load_prior, prior_names, zoo
    from aipo.problem import MapProblem
    from aipo.solvers import (
        LBFGS,
        Amortized,
        Anneal,
        Certified,
        FixedLambda,
        FollowPath,
        Result,
        SolutionPath,
        anneal,
        follow_path,
        initial,
    )

__version__ = "0.2.0"

__all__ = [
    "LBFGS",
    "AdditiveNoise",
    "Amortized",
    "Anneal",
    "Certified",
    "Choice",
    "FixedLambda",
    "FollowPath",
    "Gamma",
    "Gaussian",
    "InputError",
    "Laplace",
    "MapProblem",
    "Noise",
    "NoisePrior",
    "Poisson",
    "PoissonGaussian",
    "Posterior",
    "Prior",
    "Result",
    "Rician",
    "SolutionPath",
    "anneal",
    "choose_lambda",
    "estimate_sigma",
    "flows",
    "follow_path",
    "images",
    "initial",
    "load_prior",
    "metrics",
    "operators",
    "prior_names",
    "sample_posterior",
    "samples",
    "solvers",
    "zoo",
]

# Names are looked up where they are defined, on first use: `aipo --help` need not wait for torch.
_HOME = {
    "Choice": "choose",
    "choose_lambda": "choose",
    "estimate_sigma": "choose",
    "InputError": "errors",
    "metrics": "images",
    "samples": "images",
    "Gamma": "noise",
    "Gaussian": "noise",
    "Laplace": "noise",
    "AdditiveNoise": "noise",
    "Noise": "noise",
    "Poisson": "noise",
    "PoissonGaussian": "noise",
    "Rician": "noise",
    "NoisePrior": "priors",
    "Prior": "priors",
    "load_prior": "priors",
    "prior_names": "priors",
    "zoo": "priors",
    "Posterior": "posterior",
    "sample_posterior": "posterior",
    "MapProblem": "problem",
    "Amortized": "solvers",
    "Anneal": "solvers",
    "anneal": "solvers",
    "Certified": "solvers",
    "FixedLambda": "solvers",
    "FollowPath": "solvers",
    "LBFGS": "solvers",
    "Result": "solvers",
    "SolutionPath": "solvers",
    "follow_path": "solvers",
    "initial": "solvers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'aipo' has no attribute {name!r}")
    if name not in _HOME:
        return import_module(f"aipo.{name}")
    room = import_module(f"aipo.{_HOME[name]}")
    return getattr(room, name) if hasattr(room, name) else import_module(f"{room.__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
