"""One chunk of images with one prior and one task: the measurements, and what several methods share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from aipo import initial
from aipo.bench.protocol import Task
from aipo.engine import Precision
from aipo.iterate import Result, State
from aipo.operators import Operator
from aipo.prior import Prior
from aipo.problem import MapProblem

__all__ = ["Work"]


@dataclass(eq=False)
class Work:
    """Measurements and random starts belong to an image, by its number: they do not depend on how chunks are cut.

    Attributes:
        truth: images (B, C, H, W) on the device.
        numbers: of the images in their split.
        lambdas: the weights at which every image is to be solved.
        evals: what the methods that ran before have spent, by name: (L, B).
        trace: if not None, mean losses along the way: [evaluations, loss at each lam], for solves of `repeated`.
        progress: hears which share of a solve is done.
    """

    prior: Prior
    task: Task
    operator: Operator
    truth: Tensor
    numbers: tuple[int, ...]
    lambdas: tuple[float, ...]
    seed: int
    precision: Precision
    evals: dict[str, Tensor]
    trace: list[list[float]] | None = None
    progress: Callable[[float], None] = lambda share: None

    @cached_property
    def y(self) -> Tensor:
        pairs = zip(self.truth.split(1), self.numbers, strict=True)
        return torch.cat([self.operator.measure(x, self.task.noise, self._seed(i)) for x, i in pairs])

    @cached_property
    def problem(self) -> MapProblem:
        """Of the images, once each."""
        return MapProblem(self.prior, self.operator, self.task.noise, self.y, self.precision)

    @cached_property
    def repeated(self) -> MapProblem:
        """Of the images once for each lam: lam by lam, all in one batch."""
        y = self.y.repeat(len(self.lambdas), *[1] * (self.y.ndim - 1))
        return MapProblem(self.prior, self.operator, self.task.noise, y, self.precision)

    @property
    def lam(self) -> Tensor:
        """The weights of `repeated` (L * B,)."""
        return torch.tensor(self.lambdas, device=self.truth.device).repeat_interleave(len(self.truth))

    def repeat(self, x: Tensor) -> Tensor:
        """Images (B, ...) once for each lam."""
        return x.repeat(len(self.lambdas), *[1] * (x.ndim - 1))

    @cached_property
    def mle(self) -> Result:
        """The maximum-likelihood start, found once for all lam and methods."""
        return initial.mle(self.problem)

    @cached_property
    def zero(self) -> Tensor:
        return initial.zero(self.problem)

    @cached_property
    def random(self) -> Tensor:
        n = self.prior.flow.num_dims
        latents = [torch.randn(1, n, generator=torch.Generator().manual_seed(self._seed(i) + 1)) for i in self.numbers]
        with torch.no_grad():
            return self.prior.flow.decode(torch.cat(latents).to(self.truth))

    def watch(self, share: Callable[[Any], Tensor], spent: Tensor | int = 0) -> Callable[[State], None]:
        """A callback for a solve of `repeated`, to tell how far it is and to keep its losses.

        `share` says of a state how much is done, image by image; the start took `spent` evaluations.
        """
        before = float(torch.as_tensor(spent).double().mean())

        def look(state: State) -> None:
            evals = before + state.evals.double().mean().item()
            self.progress(share(state).double().mean().item())
            trace = self.trace
            # A tenth more each time is enough for a curve.
            if trace is not None and (not trace or evals > 1.1 * trace[-1][0]) and not state.D.isnan().any():
                loss = (state.D + self.lam * state.P).unflatten(0, (len(self.lambdas), -1)).nanmean(1)
                trace.append([evals, *loss.tolist()])

        return look

    def _seed(self, number: int) -> int:
        # Far apart, so that no image's noise is another's start. A generator looks at 32 bits of its seed only, so the
        # run's own is spread over them (by an odd multiplier) rather than put above them.
        return (2654435761 * self.seed + 1000 * number) % 2**32
