"""How sure a restoration is, in words and as a picture."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aipo.choose.lam import Choice
from aipo.problem.map_problem import MapProblem
from aipo.solvers.solution_path import SolutionPath

__all__ = ["doubt_map", "facts"]

AGREES = 0.1  # relative difference of chi^2 from what is expected that is not worth a word, beside its own spread
GAP = 0.005  # nats per value of the picture; less than a level of 255 on average, which no eye can tell
VIOLATION = 1.0  # nats beyond what the gaps excuse
STEPS = 9  # weights at which the picture is compared with itself
SPAN = 2.0  # from half the chosen lam to twice of it
HOT = ((0.07, 0.08, 0.11), (0.75, 0.25, 0.12), (1.0, 0.85, 0.45))  # dark, orange, yellow


def facts(problem: MapProblem, choice: Choice) -> list[dict[str, Any]]:
    """What can be checked without the truth: a title, a sentence, and whether it is as it should be."""
    return [_residual(problem, choice), _minimum(problem, choice), _path(choice.path)]


def _residual(problem: MapProblem, choice: Choice) -> dict[str, Any]:
    chi2, target = problem.chi2(choice.result.x).item(), choice.target.item()
    # The sum of m squared normal numbers spreads by sqrt(2 / m) around its mean.
    slack = AGREES * target + 2 * math.sqrt(2 / problem.operator.num_measurements)
    if chi2 < target - slack:
        text = "Less is left over than noise of this strength should leave: some of it may still be in the picture."
    elif chi2 > target + slack:
        text = "More is left over than the noise explains: detail may be lost, or the noise is stronger than set."
    else:
        text = "What the restoration leaves over is as large as the noise should be."
    return _fact("Fit", f"chi² {chi2:.2f}, expected {target:.2f}", text, abs(chi2 - target) <= slack)


def _minimum(problem: MapProblem, choice: Choice) -> dict[str, Any]:
    lam, gap = choice.path.lam[0], choice.path.gap[0]
    nearest = (lam.log() - choice.lam.log()).abs().nan_to_num(torch.inf).argsort()[:2]
    worst = gap[nearest].nan_to_num(0.0).max().item()
    good = worst <= GAP * math.prod(problem.image_shape)
    text = "Close enough not to show." if good else "The solver had not quite arrived; a longer run may look different."
    return _fact("Solver", f"about {_nats(worst)} above the best", text + " An estimate, no bound.", good)


def _path(path: SolutionPath) -> dict[str, Any]:
    solved = int(path.lam.isfinite().sum())
    worst = max(
        path.P_rises()[0, : max(0, solved - 1)].amax().item() if solved > 1 else 0.0,
        path.concavity_violated()[0, : max(0, solved - 2)].amax().item() if solved > 2 else 0.0,
    )
    good = worst <= VIOLATION
    text = (
        "The loss bends over lambda as it must where every picture is the best one."
        if good
        else "Somewhere along the path the solver changed from one solution to another."
    )
    return _fact("Path", "one branch" if good else f"off by {_nats(worst)}", text, good)


def _fact(title: str, value: str, text: str, good: bool) -> dict[str, Any]:
    return {"title": title, "value": value, "text": text, "good": good}


def _nats(value: float) -> str:
    return f"{value:.1f} nats" if value < 10 else f"{value:.0f} nats"


def doubt_map(path: SolutionPath, lam: float) -> tuple[Tensor, float]:
    """Where the picture depends on lam: its standard deviation from lam / 2 to 2 lam, colored (3, H, W), and its peak.

    No posterior: a pixel can be wrong at every lam. But where the picture hangs on the weight of the prior, it is the
    prior that speaks and not the measurement.
    """
    weights = torch.logspace(math.log10(lam / SPAN), math.log10(lam * SPAN), STEPS)
    pictures = torch.stack([path.interpolate(float(w))[0].clamp(0, 1) for w in weights])
    spread = pictures.var(0, correction=0).mean(0).sqrt()
    peak = spread.amax().item()
    dark, middle, light = (torch.tensor(color)[:, None, None] for color in HOT)
    t = (spread / max(peak, 1e-6))[None]
    return torch.where(t < 0.5, torch.lerp(dark, middle, 2 * t), torch.lerp(middle, light, 2 * t - 1)), peak
