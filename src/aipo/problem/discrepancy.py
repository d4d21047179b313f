"""How large the residual of a good restoration is, before any is made.

The truth has chi^2 = |y - f(x)|^2 / (m sigma^2) = 1 on average. A restoration always fits some of the noise, with as
many degrees of freedom, df, as the prior leaves to the measurements. For a Gaussian prior and its best restoration df
has a closed form, and chi^2 is 1 - df / m on average, with

    df = trace of  J (J^T J / sigma^2 + S)^-1 J^T / sigma^2,

S being the precision of images (`Surrogate.marginal`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.noise import Noise
from aipo.operators import Operator
from aipo.priors.surrogate import Surrogate

__all__ = ["FLOW_FACTOR", "expected_chi2"]

PROBES = 4
# A MAP restoration with a flow fits somewhat more than the mean of a Gaussian would. Chosen on validation faces
# (docs/method.md); 1 would be the closed form itself.
FLOW_FACTOR = 1.2


@torch.no_grad()
def expected_chi2(surrogate: Surrogate, operator: Operator, noise: Noise, y: Tensor) -> Tensor:
    """chi^2 of the best restoration of measurements y (B, ...), as the surrogate expects it, for each image (B,)."""
    mean = surrogate.mean.expand(len(y), -1, -1, -1)
    precision = 1 / noise.variance(y)
    ones = torch.ones_like(precision)
    generator = torch.Generator().manual_seed(0)
    share = torch.zeros_like(precision)
    for _ in range(PROBES):
        # Hutchinson: random signs b give the trace as the mean of b^T K b. All images share them.
        signs = torch.randint(2, y.shape[1:], generator=generator).to(y) * 2 - 1
        b = operator.restrict(signs.expand_as(y))
        back = operator.adjoint_at(mean, b)
        v = operator.solve_regularized(back, precision, ones, surrogate.marginal, mean)
        share += precision * (back * v).flatten(1).sum(1) / b.flatten(1).square().sum(1) / PROBES
    return (1 - FLOW_FACTOR * share).clamp(0.05, 1.0)
