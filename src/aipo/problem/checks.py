"""Whether an operator, a noise and measurements can belong together, asked once, before anything is solved.

Three images of the operator's own size are measured: white, random, and both added. They show whether `A` returns what
`measurement_shape` promises, whether an operator that calls itself linear is, and how large measurements of an image in
[0, 1] are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.noise import Noise
from aipo.operators import Operator

__all__ = ["check_belonging", "check_inference"]

LINEAR = 1e-2  # relative error that rounding never makes, not even in half precision
LARGER = 50  # times what an image can give; 8-bit levels, which go up to 255, are larger than that


@torch.no_grad()
def check_belonging(operator: Operator, noise: Noise, y: Tensor) -> None:
    """Raise `InputError` if measurements y (B, ...) cannot be those of images in [0, 1], or the operator lies."""
    white = torch.ones(1, *operator.image_shape, dtype=y.dtype, device=y.device)
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(white.shape, generator=generator, dtype=torch.float64).to(y)
    of_white, of_random = _measured(operator, white), _measured(operator, random)
    if operator.linear:
        both = _measured(operator, white + random)
        error, size = (both - of_white - of_random).abs().amax(), both.abs().amax()
        if not error <= LINEAR * size:
            raise InputError(
                f"{operator!r} calls itself linear, but A(u + v) is not A(u) + A(v); make it a NonlinearOperator"
            )
    spread = noise.variance(y).sqrt()
    limits = LARGER * (torch.maximum(_typical(of_white), _typical(of_random)) + spread)
    sizes = _typical(y)
    if (sizes > limits).any():
        i = int((sizes / limits).argmax())
        raise InputError(
            f"the measurements of image {i} are about {sizes[i].item():.3g}, far more than images in [0, 1] give; "
            "divide 8-bit values by 255"
        )


def check_inference() -> None:
    """Raise `InputError` inside torch.inference_mode(), which forbids the gradients that solvers need."""
    if torch.is_inference_mode_enabled():
        raise InputError("solving needs gradients, which torch.inference_mode() forbids; use torch.no_grad() instead")


def _measured(operator: Operator, x: Tensor) -> Tensor:
    y = operator.A(x)
    if not isinstance(y, Tensor) or y.shape != (1, *operator.measurement_shape):
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"A of {operator!r} returns {found}; measurement_shape promises {operator.measurement_shape}")
    return operator.restrict(y)


def _typical(y: Tensor) -> Tensor:
    """The median size of what is not zero, for each measurement of y (B, ...): (B,)."""
    sizes = y.abs().flatten(1)
    return torch.where(sizes > 0, sizes, torch.nan).nanmedian(dim=1).values.nan_to_num()
