"""The MAP problem L = D + lam * P, and how large the residual of a good restoration is."""

from aipo.problem.map_problem import MapProblem

__all__ = ["MapProblem"]
