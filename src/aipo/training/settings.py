"""How to train, checked before anything is read; and how far a run has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from aipo.errors import InputError

__all__ = ["Progress", "Settings"]


@dataclass(frozen=True)
class Settings:
    """How to train. Exactly one of `steps` and `minutes` ends the run; the schedule always finishes.

    With `minutes`, progress through the learning-rate schedule is the share of the time spent, so the last step is
    taken at the lowest rate whatever the speed of the machine.
    """

    bits: int = 5
    batch: int = 256
    steps: int | None = None
    minutes: float | None = None
    optimizer: Literal["adam", "muon"] = "adam"
    lr: float = 1e-3
    final_lr: float = 0.01
    warmup: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    noise: float = 0.0
    score_weight: float = 1.0
    seed: int = 0
    half: bool = True
    compile: bool = True

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise InputError("give either steps or minutes")
        if not 1 <= self.bits <= 8:
            raise InputError(f"bits is {self.bits}; it must be 1 to 8")
        for name in ("batch", "steps", "minutes", "lr", "clip", "warmup"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # which NaN is not either
                raise InputError(f"{name} is {value}; it must be positive and finite")
        for name in ("final_lr", "weight_decay", "noise", "score_weight"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"{name} is {value}; it must be finite and at least 0")
        if not 0 <= self.ema <= 1:
            raise InputError(f"ema is {self.ema}; it must be from 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must be at least 0 and less than 2^63")
        if self.optimizer not in get_args(Literal["adam", "muon"]):
            raise InputError(f"optimizer must be adam or muon, got {self.optimizer}")


@dataclass
class Progress:
    """Where a run is: enough to continue it, and what a person wants to see."""

    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
