"""AIPO: reconstruct images from corrupted measurements with exact normalizing-flow priors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aipo import flows, images, initial, metrics, operators, samples, solvers, zoo
    from aipo.choose import Choice, choose_lambda
    from aipo.errors import InputError
    from aipo.iterate import Result
    from aipo.noise import Gaussian, Laplace, Noise
    from aipo.path import Path
    from aipo.prior import Prior
    from aipo.problem import MapProblem
    from aipo.sigma import estimate_sigma
    from aipo.solvers import Amortized, Certified, FixedLambda, FollowPath, follow_path
    from aipo.zoo import load_prior, prior_names

__version__ = "0.1.0"

__all__ = [
    "Amortized",
    "Certified",
    "Choice",
    "FixedLambda",
    "FollowPath",
    "Gaussian",
    "InputError",
    "Laplace",
    "MapProblem",
    "Noise",
    "Path",
    "Prior",
    "Result",
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
    "samples",
    "solvers",
    "zoo",
]

# Names are looked up where they are defined, on first use: `aipo --help` need not wait for torch.
_HOME = {
    "Choice": "choose",
    "choose_lambda": "choose",
    "InputError": "errors",
    "Result": "iterate",
    "Gaussian": "noise",
    "Laplace": "noise",
    "Noise": "noise",
    "estimate_sigma": "sigma",
    "Path": "path",
    "Prior": "prior",
    "MapProblem": "problem",
    "Amortized": "solvers",
    "Certified": "solvers",
    "FixedLambda": "solvers",
    "FollowPath": "solvers",
    "follow_path": "solvers",
    "load_prior": "zoo",
    "prior_names": "zoo",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'aipo' has no attribute {name!r}")
    if name in _HOME:
        return getattr(import_module(f"aipo.{_HOME[name]}"), name)
    return import_module(f"aipo.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
