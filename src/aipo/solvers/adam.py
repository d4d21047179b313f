"""Adam with one step size and one step count per image, so that images in a batch need not be in step.

Reference: Kingma, Ba, "Adam: a method for stochastic optimization", 2015, https://arxiv.org/abs/1412.6980
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.solvers.base import State

__all__ = ["Adam", "AdamState"]


@dataclass(frozen=True)
class AdamState(State):
    """A state with Adam's moments m, v (B, C, H, W) and step counts t (B,)."""

    m: Tensor
    v: Tensor
    t: Tensor

    @classmethod
    def fresh(cls, x: Tensor, **extra: Tensor) -> Self:
        """All images running at x, no step taken yet."""
        zero, count = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls.start(x, 0, m=zero, v=zero, t=count, **extra)


S = TypeVar("S", bound=AdamState)


@dataclass(frozen=True)
class Adam:
    """Options of Adam; the moments live in the solver's state."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def descend(self, state: S, gradient: Tensor, alpha: Tensor) -> S:
        """Move the running images of a state down their gradient (B, C, H, W), with step sizes alpha (B,)."""
        t = state.t + 1
        m = torch.lerp(gradient, state.m, self.beta1)
        v = torch.lerp(gradient.square(), state.v, self.beta2)
        # The bias corrections of both moments, folded into the step size and epsilon.
        correction1 = 1 - self.beta1 ** t.to(m.dtype)
        correction2 = (1 - self.beta2 ** t.to(m.dtype)).sqrt()
        step = per_image(alpha * correction2 / correction1, m) * m
        step = step / (v.sqrt() + self.epsilon * per_image(correction2, v))
        running = per_image(state.running, step)
        return replace(
            state,
            x=torch.where(running, state.x - step, state.x),
            m=torch.where(running, m, state.m),
            v=torch.where(running, v, state.v),
            t=torch.where(state.running, t, state.t),
        )
