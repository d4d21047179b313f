"""Adam with one step size and one step count per image, so that images in a batch need not be in step.

Reference: Kingma, Ba, "Adam: a method for stochastic optimization", 2015, https://arxiv.org/abs/1412.6980
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aipo.batch import per_image

__all__ = ["Adam"]


@dataclass(frozen=True)
class Adam:
    """Options of Adam; the moments live in the solver's state."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def update(
        self, gradient: Tensor, m: Tensor, v: Tensor, t: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The step to subtract from x, and the new moments and step counts.

        Arguments:
            gradient, m, v: (B, C, H, W), the gradient and the moments so far.
            t: steps taken so far (B,).
            alpha: step size of each image (B,).
        """
        t = t + 1
        m = torch.lerp(gradient, m, self.beta1)
        v = torch.lerp(gradient.square(), v, self.beta2)
        # The bias corrections of both moments, folded into the step size and epsilon.
        correction1 = 1 - self.beta1 ** t.to(m.dtype)
        correction2 = (1 - self.beta2 ** t.to(m.dtype)).sqrt()
        step = per_image(alpha * correction2 / correction1, m) * m
        return step / (v.sqrt() + self.epsilon * per_image(correction2, v)), m, v, t
