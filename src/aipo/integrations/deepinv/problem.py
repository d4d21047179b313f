"""Measurements and a physics as a `MapProblem`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aipo.integrations.deepinv.noise import noise_of
from aipo.integrations.deepinv.physics import NonlinearPhysics, OperatorPhysics
from aipo.noise import Gaussian, Noise
from aipo.operators import Operator, from_physics
from aipo.operators.from_physics import pack
from aipo.problem import MapProblem

__all__ = ["one_by_one", "operator_of", "problem_of"]


def problem_of(
    y: Any,
    physics: Any,
    prior: Any,
    noise: Noise | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> MapProblem:
    """What deepinv writes as (y, physics), with a prior.

    Arguments:
        y: measurements of the physics, a tensor or a list of them.
        prior: anything that `MapProblem` takes.
        noise: by default that of the physics.
        image_shape: (C, H, W), where the physics does not say it.
    """
    packed = pack(y)
    operator = operator_of(physics, y, image_shape)
    return MapProblem(prior, operator, noise or _noise(physics, y, len(packed)), packed)


def _noise(physics: Any, y: Any, batch: int) -> Noise:
    noise = noise_of(physics.noise_model, batch)
    if isinstance(y, Tensor) and y.is_complex() and isinstance(noise, Gaussian):
        return Gaussian(noise.sigma / math.sqrt(2))  # deepinv's is that of both parts together
    return noise


def operator_of(physics: Any, y: Any, image_shape: tuple[int, int, int] | None = None) -> Operator:
    """The operator of a physics; of a linear one the shape of the images is that of its adjoint."""
    if isinstance(physics, OperatorPhysics | NonlinearPhysics):
        return physics.operator
    if image_shape is None and callable(getattr(physics, "A_adjoint", None)):
        back = physics.A_adjoint(y)
        image_shape = tuple(back.shape[1:])
        if image_shape[0] == 2 and any(kind.__name__ == "MRIMixin" for kind in type(physics).__mro__):
            image_shape = (1, *image_shape[1:])  # real images
    return from_physics(physics, image_shape)


@torch.no_grad()
def one_by_one(y: Any, physics: Any) -> Iterator[tuple[Any, Any]]:
    """(y, physics) of one image after the other, if the physics holds masks or filters of its own for each; else once.

    So come measurements of a deepinv dataset whose physics has a generator.
    """
    if not isinstance(y, Tensor) or len(y) == 1 or isinstance(physics, OperatorPhysics | NonlinearPhysics):
        yield y, physics
        return
    back = physics.A_adjoint(y) if callable(getattr(physics, "A_adjoint", None)) else y
    if len(pack(physics.A(back[:1]))) == 1:
        yield y, physics
        return
    for i in range(len(y)):
        part = physics.clone()
        for module in part.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.ndim and len(buffer) == len(y):
                    setattr(module, name, buffer[i : i + 1].clone())
        yield y[i : i + 1], part
