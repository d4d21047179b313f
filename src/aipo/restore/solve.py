"""Measurements to restorations: the problem of several images, the solver that was asked for, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from aipo.choose.lam import EVALS, Choice, Rule, choose_lambda
from aipo.noise import Gaussian
from aipo.problem.map_problem import MapProblem
from aipo.restore.inputs import MeasuredImage
from aipo.restore.record import ImageResult, PathPoint
from aipo.restore.settings import SOLVERS, Settings
from aipo.solvers.result import Result
from aipo.solvers.solution_path import SolutionPath

__all__ = ["finite", "image_results", "make_problem", "path_points", "solve"]


def make_problem(items: Sequence[MeasuredImage], settings: Settings) -> MapProblem:
    """The problem of images that share an operator; each keeps its own sigma."""
    sigmas = {item.sigma for item in items}
    noise = Gaussian(sigmas.pop() if len(sigmas) == 1 else torch.tensor([item.sigma for item in items]))
    y = torch.stack([item.y for item in items]).to(settings.face_prior.weights.device)
    return MapProblem(settings.face_prior, items[0].operator, noise, y)


def solve(problem: MapProblem, settings: Settings, share: Callable[[float], None]) -> tuple[Result, Choice | None]:
    """Restore with the solver and lam of the settings; the choice is None if lam was given.

    Arguments:
        share: is told which share of the work is done, from 0 to 1.
    """
    if isinstance(settings.lam, str):
        # Two of the rules follow a second path.
        follow = _Progress(share, EVALS * (2 if settings.lam in ("sure", "held-out") else 1))
        # A sigma that nobody gave comes from the picture already, or stands for more than noise.
        choice = choose_lambda(
            problem,
            cast(Rule, settings.lam),
            callback=follow,
            trust_sigma=settings.sigma is None or settings.trust_sigma,
        )
        return choice.result, choice
    solver = SOLVERS[settings.solver]
    return solver.solve(problem, settings.lam, callback=_Progress(share, solver.budget)), None


class _Progress:
    """Turns the states that a solver reports into the share of the work that is done."""

    def __init__(self, share: Callable[[float], None], total: int | Callable[[Any], int]):
        self.share, self.total = share, total
        self.before, self.last = 0.0, 0.0

    def __call__(self, state: Any) -> None:
        spent = state.evals.double().mean().item()
        if spent < self.last:  # another path has begun
            self.before += self.last
        self.last = spent
        if callable(self.total):
            # The budget is that of the whole solve, beginning where it is first seen.
            self.total = max(1, round(spent) + self.total(state))
        self.share(min(1.0, (self.before + spent) / self.total))


@torch.no_grad()
def image_results(problem: MapProblem, result: Result) -> list[ImageResult]:
    """What a result says about each image."""
    chi2 = problem.chi2(result.x)
    return [
        ImageResult(
            status=status,
            lam=result.lam[i].item() if status == "done" else None,
            loss=finite(result.loss[i]),
            D=finite(result.D[i]),
            P=finite(result.P[i]),
            chi2=finite(chi2[i]),
            evaluations=int(result.evals[i]),
        )
        for i, status in enumerate(result.status)
    ]


def path_points(problem: MapProblem, path: SolutionPath) -> list[tuple[PathPoint, ...]]:
    """For each image, what is known at each lam of its path that was solved."""
    chi2 = path.chi2(problem)
    numbers = (chi2, path.loss, path.D, path.P, path.gap)
    return [
        tuple(PathPoint(path.lam[i, j].item(), *(finite(number[i, j]) for number in numbers)) for j in range(count))
        for i, count in enumerate(path.lam.isfinite().sum(1).tolist())
    ]


def finite(value: torch.Tensor) -> float | None:
    """A single number, or None if it is not finite."""
    return value.item() if math.isfinite(value.item()) else None
