"""lam and sigma without the ground truth."""

from aipo.choose.lam import EVALS, RULES, Choice, Rule, SigmaWarning, choose_lambda
from aipo.choose.sigma import estimate_sigma

__all__ = ["EVALS", "RULES", "Choice", "Rule", "SigmaWarning", "choose_lambda", "estimate_sigma"]
