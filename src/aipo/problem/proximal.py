"""What the measurements say about an image that is roughly known: the minimizer of D(x) + weight |x - z|^2 / 2."""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.engine.engine import differentiate
from aipo.noise import Gaussian
from aipo.problem.map_problem import MapProblem
from aipo.transforms.conjugate_gradient import conjugate_gradient

__all__ = ["proximal"]

# For noise that is not Gaussian: steps, how often one is halved, and the relative error of its direction.
STEPS, HALVINGS, DIGITS = 4, 8, 1e-3


@torch.no_grad()
def proximal(problem: MapProblem, z: Tensor, weight: Tensor) -> Tensor:
    """The minimizer over x of D(x) + weight |x - z|^2 / 2, for images z (B, C, H, W) and weights (B,) > 0.

    For Gaussian noise it is the operator's `prox_l2`. For other noise each step replaces -log p(y | f(x)) by a parabola
    (`Noise.weights`), and is halved until it goes down.
    """
    if isinstance(problem.noise, Gaussian):
        return problem.operator.prox_l2(z, problem.y, 1 / (weight * problem.noise.variance(problem.y)))
    factor = per_image(weight, z)

    def objective(x: Tensor) -> Tensor:
        return problem.D(x) + weight * (x - z).flatten(1).square().sum(1) / 2

    x, value = z, objective(z)
    for _ in range(STEPS):
        J, Jt = problem.operator.jacobian_at(x)
        fx = problem.operator.A(x)
        curvature = problem.operator.restrict(problem.noise.weights(problem.y, fx))
        slope = differentiate(problem.D, x)[1] + factor * (x - z)

        def hessian(v: Tensor, J=J, Jt=Jt, curvature=curvature) -> Tensor:  # type: ignore[no-untyped-def]
            return factor * v + Jt(curvature * J(v))

        step = conjugate_gradient(hessian, -slope, 100, DIGITS)
        for _ in range(HALVINGS):
            lower = objective(x + step) <= value
            step = torch.where(per_image(lower, step), step, step / 2)
        moved = objective(x + step)
        down = moved <= value
        x, value = torch.where(per_image(down, x), x + step, x), torch.where(down, moved, value)
    return x
