"""Solvers of the MAP problem, one file each."""

from aipo.solvers.amortized import Amortized
from aipo.solvers.anneal import Anneal, anneal
from aipo.solvers.certified import Certified, Constants, estimate_constants
from aipo.solvers.fixed import FixedLambda
from aipo.solvers.follow_path import FollowPath, follow_path
from aipo.solvers.lbfgs import LBFGS
from aipo.solvers.result import Result
from aipo.solvers.solution_path import SolutionPath

__all__ = [
    "LBFGS",
    "Amortized",
    "Anneal",
    "Certified",
    "Constants",
    "FixedLambda",
    "FollowPath",
    "Result",
    "SolutionPath",
    "anneal",
    "estimate_constants",
    "follow_path",
]
