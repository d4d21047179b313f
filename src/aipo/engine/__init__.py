"""The hot path: value and gradient of the prior, with hand-written reverse passes in `kernels`."""

from aipo.engine.engine import Engine, Evaluation, Precision, evaluate, exact_float32, hessian_vector

__all__ = ["Engine", "Evaluation", "Precision", "evaluate", "exact_float32", "hessian_vector"]
