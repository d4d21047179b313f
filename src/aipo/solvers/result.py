"""What a solve at one lam gives: the reconstruction of every image with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from aipo.solvers.base import State

__all__ = ["Result", "make_result"]


@dataclass(frozen=True)
class Result:
    """What a solve returns, one entry per image.

    Attributes:
        x: reconstructions (B, C, H, W); not clipped to [0, 1].
        lam: the weight solved for (B,).
        loss, D, P: L = D + lam * P and its terms at x (B,), in nats.
        evals: gradient evaluations spent (B,).
        status: one reason per image: "done", "non finite", "max evaluations", "assumption violated".
        trajectory: solver-specific history, by name; empty where a solver keeps none.
        info: solver-specific facts, such as the constants of `Certified`.
    """

    x: Tensor
    lam: Tensor
    loss: Tensor
    D: Tensor
    P: Tensor
    evals: Tensor
    status: list[str]
    trajectory: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


def make_result(state: State, lam: Tensor, **extra: Any) -> Result:
    """The result at the last finite points of a state."""
    return Result(state.x_seen, lam, state.D + lam * state.P, state.D, state.P, state.evals, state.reasons, **extra)
