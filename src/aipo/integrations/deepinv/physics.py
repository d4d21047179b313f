"""Our operators as physics of deepinv, with their adjoints, pseudo-inverses and closed forms."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.physics import LinearPhysics, NoiseModel, Physics
from torch import Tensor

from aipo.integrations.deepinv.noise import as_noise_model
from aipo.noise import Noise
from aipo.operators import LinearOperator, NonlinearOperator, Operator

__all__ = ["NonlinearPhysics", "OperatorPhysics", "as_physics"]


def as_physics(operator: Operator, noise: Noise | NoiseModel | None = None) -> OperatorPhysics | NonlinearPhysics:
    """An operator as a physics: `deepinv.physics.LinearPhysics` if it is linear.

    Arguments:
        noise: of ours or of theirs; none by default.

    Examples:
        >>> import aipo
        >>> physics = as_physics(aipo.operators.Inpainting.bayer((3, 64, 64)), aipo.Gaussian(0.05))
        >>> x = aipo.samples.load("astronaut")[None]
        >>> y = physics(x)
        >>> physics.prox_l2(x, y, gamma=1.0).shape
        torch.Size([1, 3, 64, 64])
    """
    model = as_noise_model(noise) if isinstance(noise, Noise) else noise
    if isinstance(operator, LinearOperator):
        return OperatorPhysics(operator, model)
    assert isinstance(operator, NonlinearOperator)
    return NonlinearPhysics(operator, model)


class OperatorPhysics(LinearPhysics):
    """A linear operator. It follows the dtype and device of its input, so it need not be moved.

    Keyword arguments such as `mask` change the operator from then on, as in deepinv.
    """

    def __init__(self, operator: LinearOperator, noise_model: NoiseModel | None = None):
        super().__init__(noise_model=noise_model, img_size=operator.image_shape)
        self.operator = operator

    def update_parameters(self, **kwargs: Any) -> None:
        updated = self.operator.updated(**kwargs)
        assert isinstance(updated, LinearOperator)
        self.operator = updated

    def A(self, x: Tensor, **kwargs: Any) -> Tensor:
        self.update_parameters(**kwargs)
        return self.operator.A(x)

    def A_adjoint(self, y: Tensor, **kwargs: Any) -> Tensor:
        self.update_parameters(**kwargs)
        return self.operator.A_adjoint(y)

    def A_dagger(self, y: Tensor, **kwargs: Any) -> Tensor:
        self.update_parameters(**kwargs)
        return self.operator.A_dagger(y)

    def noise(self, x: Tensor, **kwargs: Any) -> Tensor:
        """With noise where something is observed."""
        return self.operator.restrict(super().noise(x, **kwargs))

    def prox_l2(self, z: Tensor | float | None, y: Tensor, gamma: float | Tensor, **kwargs: Any) -> Tensor:
        """The minimizer over x of gamma |A x - y|^2 / 2 + |x - z|^2 / 2."""
        if not isinstance(z, Tensor):
            z = y.new_full((len(y), *self.operator.image_shape), 0.0 if z is None else float(z))
        weights = torch.as_tensor(gamma, dtype=z.dtype, device=z.device).flatten().expand(len(z))
        return self.operator.prox_l2(z, y, weights)


class NonlinearPhysics(Physics):
    """A nonlinear operator."""

    def __init__(self, operator: NonlinearOperator, noise_model: NoiseModel | None = None):
        super().__init__(noise_model=noise_model)
        self.operator, self.img_size = operator, operator.image_shape

    def A(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.operator(x, **kwargs)

    def A_dagger(self, y: Tensor, x_init: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The image in [0, 1] that fits best."""
        return self.operator.least_squares(y, x_init)
