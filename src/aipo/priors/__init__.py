"""What a prior promises, and the priors there are: flows with a card, embedded ones in `zoo`."""

from aipo.priors.any_prior import AnyPrior
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.priors.noise_prior import LevelPrior, NoisePrior
from aipo.priors.prior import Prior
from aipo.priors.zoo import load_prior, prior_names

__all__ = [
    "AnyPrior",
    "LevelPrior",
    "NoisePrior",
    "Prior",
    "load_prior",
    "load_prior_files",
    "prior_names",
    "save_prior_files",
]
