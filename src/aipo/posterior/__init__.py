"""How sure a restoration is: samples of all images that a measurement may come from, their mean and spread."""

from aipo.posterior.posterior import Posterior
from aipo.posterior.sample import sample_posterior

__all__ = ["Posterior", "sample_posterior"]
