"""Some images with one prior and one experiment: their measurements, and what several methods share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from aipo.engine.engine import Precision
from aipo.evaluation.protocol import Experiment
from aipo.operators import Operator
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.base import State
from aipo.solvers.result import Result

__all__ = ["Chunk"]


@dataclass(eq=False)
class Chunk:
    """Images that are solved together, at L lam.

    Noise and random starts belong to an image, by its number: they do not depend on how a split is cut into chunks.

    Attributes:
        truth: images (B, C, H, W) on the device.
        numbers: of the images in their split.
        lambdas: the weights at which every image is to be solved.
        evals: the evaluations that methods have spent so far, by name: (L, B).
        traces: if not None, mean losses along the way by method: [evaluations, loss at each lam], of solves that have
            `watch` as their callback.
        progress: hears which share of a solve is done.
    """

    prior: Prior
    experiment: Experiment
    operator: Operator
    truth: Tensor
    numbers: tuple[int, ...]
    lambdas: tuple[float, ...]
    seed: int
    precision: Precision
    evals: dict[str, Tensor]
    traces: dict[str, list[list[float]]] | None = None
    progress: Callable[[float], None] = lambda share: None

    @cached_property
    def y(self) -> Tensor:
        pairs = zip(self.truth.split(1), self.numbers, strict=True)
        return torch.cat([self.operator.measure(x, self.experiment.noise, self._seed(i)) for x, i in pairs])

    @cached_property
    def problem(self) -> MapProblem:
        """Of the images, once each."""
        return MapProblem(self.prior, self.operator, self.experiment.noise, self.y, self.precision)

    def repeated_problem(self, methods: int = 1) -> MapProblem:
        """Every image at every lam by every method in one batch: method by method, and in each of them lam by lam."""
        y = self.repeat(self.y, methods)
        return MapProblem(self.prior, self.operator, self.experiment.noise, y, self.precision)

    def repeated_lam(self, methods: int = 1) -> Tensor:
        """The weights of `repeated_problem` (methods * L * B,)."""
        return torch.tensor(self.lambdas, device=self.truth.device).repeat_interleave(len(self.truth)).repeat(methods)

    def repeat(self, x: Tensor, methods: int = 1) -> Tensor:
        """Images (B, ...) once for each lam, and that for each method: (methods * L * B, ...)."""
        return x.repeat(methods * len(self.lambdas), *[1] * (x.ndim - 1))

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

    def start(self, name: str) -> tuple[Tensor, Tensor | int]:
        """Where a method starts (B, C, H, W), and the evaluations that this took."""
        if name == "mle":
            return self.mle.x, self.mle.evals
        return (self.random if name == "random" else self.zero), 0

    def watch(
        self, methods: Sequence[str], share: Callable[[Any], Tensor], spent: Sequence[Tensor | int]
    ) -> Callable[[State], None]:
        """A callback for a solve of `repeated_problem`: it reports progress, and keeps losses if traces are wanted.

        `share` says of a state how much is done, image by image; the start of each method took `spent` evaluations.
        """
        before = torch.stack([torch.as_tensor(n).double().mean().cpu() for n in spent])
        lam = self.repeated_lam(len(methods))

        def mean(values: Tensor) -> Tensor:
            """Over images: (methods, L)."""
            return values.double().view(len(methods), len(self.lambdas), -1).nanmean(2).cpu()

        def look(state: State) -> None:
            self.progress(share(state).double().mean().item())
            if self.traces is None or state.D.isnan().all():
                return
            evals, losses = before + mean(state.evals).mean(1), mean(state.D + lam * state.P)
            for method, at, loss in zip(methods, evals.tolist(), losses.tolist(), strict=True):
                trace = self.traces.setdefault(method, [])
                # A point for every 10% more evaluations is enough for a curve.
                if not trace or at > 1.1 * trace[-1][0]:
                    trace.append([at, *loss])

        return look

    def _seed(self, number: int) -> int:
        # Far apart, so that no image's noise is another's start. A generator looks at 32 bits of its seed only, so the
        # run's own is spread over them (by an odd multiplier) rather than put above them.
        return (2654435761 * self.seed + 1000 * number) % 2**32
