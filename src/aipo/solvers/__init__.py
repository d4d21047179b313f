"""Solvers of the MAP problem, one file each."""

from aipo.solvers.amortized import Amortized
from aipo.solvers.certified import Certified
from aipo.solvers.constants import Constants, estimate_constants
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.path import FollowPath, follow_path

__all__ = ["Amortized", "Certified", "Constants", "FixedLambda", "FollowPath", "estimate_constants", "follow_path"]
