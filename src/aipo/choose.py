"""Choose lam without the truth.

A path of restorations is judged by what can be known of it:

    discrepancy  the residual is as large as it should be, chi^2 = `expected_chi2`. Costs nothing beside the path.
    sure         the expected squared error of f(x), by Stein's unbiased estimate with one random probe. Gaussian noise
                 only; costs a second path. All images of a batch share one grid, so where their noise differs the
                 result of an image depends on its neighbours, as with no other rule.
    held-out     how well measurements left out of the fit are predicted. Any noise; costs a second path.
    l-curve      the corner of the curve of P against the residual.
    fixed        a lam of yours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from aipo.discrepancy import expected_chi2
from aipo.errors import InputError
from aipo.iterate import Result
from aipo.noise import Gaussian, as_generator
from aipo.operators.kept import keep
from aipo.path import Path
from aipo.problem import MapProblem
from aipo.solvers.path import automatic_grid, follow_path

__all__ = ["EVALS", "RULES", "Choice", "Rule", "choose_lambda"]

Rule = Literal["auto", "discrepancy", "sure", "held-out", "l-curve", "fixed"]
RULES: tuple[Rule, ...] = get_args(Rule)

# Gradient evaluations of an image for a path. More of them lower the losses, but that does not show in the picture.
EVALS = 60

# Of sigma. Smaller, and the solver's own error shows in the derivative; larger, and it is no derivative any more.
SURE_STEP = 0.1
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Choice:
    """The chosen lam, and what it was chosen from.

    Attributes:
        result: the restorations at the chosen lam, one per image. Between two lam of the path x is interpolated in
            log lam; D, P and loss are those of that x. evals counts everything, also a second path.
        rule: the one that was used; never "auto".
        path: all restorations.
        score: what the rule looked at (B, L): chi^2 for the discrepancy, the estimated mean squared error of f(x) in
            units of sigma^2 for SURE, the held-out negative log-likelihood per measurement, the curvature of the
            L-curve; empty (B, 0) for a fixed lam.
        score_lam: at which lam (B, L). Those of the path, but for "held-out", which looks at a path of its own.
        target: the chi^2 that the discrepancy aims at (B,); NaN for other rules.
    """

    result: Result
    rule: str
    path: Path
    score: Tensor
    score_lam: Tensor
    target: Tensor

    @property
    def lam(self) -> Tensor:
        return self.result.lam


def choose_lambda(
    problem: MapProblem,
    rule: Rule = "auto",
    *,
    lam: float | Tensor | None = None,
    path: Path | None = None,
    evals: int = EVALS,
    seed: int = 0,
    progress: bool = False,
    callback: Callable[[Any], None] | None = None,
) -> Choice:
    """Restore with the lam that a rule finds best, for each image its own.

    Arguments:
        rule: "auto" is "discrepancy" where chi^2 is defined (Gaussian noise), else "held-out".
        lam: for the rule "fixed", a number or one per image (B,).
        path: from `follow_path`, to be judged; by default it is computed. "sure" computes it anew if the images do not
            share one grid.
        evals: gradient evaluations per image for each path.
        seed: of the probe of "sure" and of the measurements that "held-out" leaves out.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 16, 16))
        >>> operator = aipo.operators.Denoising((3, 16, 16))
        >>> x = prior.sample(1, seed=0)
        >>> y = operator.measure(x, aipo.Gaussian(0.25), seed=1)
        >>> choice = aipo.choose_lambda(aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y))
        >>> choice.rule, 0.5 < choice.lam.item() < 2  # 1 would be exact, this prior being the truth
        ('discrepancy', True)
    """
    if rule not in RULES:
        raise InputError(f"rule must be one of {', '.join(RULES)}, got {rule}")
    if (rule == "fixed") != (lam is not None):
        raise InputError("give lam with the rule fixed, and with no other")
    gaussian = isinstance(problem.noise, Gaussian)
    if rule == "auto":
        rule = "discrepancy" if gaussian else "held-out"
    if rule in ("discrepancy", "sure", "l-curve") and not gaussian:
        raise InputError(f"the rule {rule} needs Gaussian noise, not {problem.noise!r}; choose held-out or fixed")

    def follow(problem: MapProblem, lambdas: list[float] | None) -> Path:
        return follow_path(problem, lambdas, evals=evals, progress=progress, callback=callback)

    target = torch.full_like(problem.y.flatten(1)[:, 0], torch.nan)
    second: Path | None = None
    if rule == "sure":
        grid = None if path is None else _shared_grid(path)
        if path is None or grid is None:
            grid = automatic_grid(problem)
            path = follow(problem, grid)
        chosen, score, second = _sure(problem, path, grid, seed, follow)
    else:
        path = follow(problem, None) if path is None else path
        if rule == "fixed":
            assert lam is not None
            chosen, score = problem.lam_tensor(lam), path.lam[:, :0]
        elif rule == "discrepancy":
            target = expected_chi2(problem)
            score = path.chi2(problem)
            chosen = _crossing(path.lam, score, target)
        elif rule == "held-out":
            chosen, score, second = _held_out(problem, seed, follow)
        else:
            score = _corner(path.lam, path.chi2(problem), path.P)
            chosen = _best(path.lam, -score)
    score_lam = second.lam if rule == "held-out" and second is not None else path.lam[:, : score.shape[1]]
    return Choice(_restored(problem, path, chosen, second), rule, path, score, score_lam, target)


@torch.no_grad()
def _restored(problem: MapProblem, path: Path, lam: Tensor, second: Path | None) -> Result:
    x = path.interpolate(lam)
    lam = torch.where(path.lam.isfinite().any(1), lam, torch.nan)
    D, P = problem.D(x), problem.P(x)
    evals = sum(p.evals.nan_to_num().amax(1) for p in (path, second) if p is not None)
    return Result(x, lam, D + lam * P, D, P, torch.as_tensor(evals).to(torch.int64), path.status)


def _crossing(lam: Tensor, chi2: Tensor, target: Tensor) -> Tensor:
    """Where chi^2 first reaches the target on its way up, linear between logarithms; the ends beyond (B,)."""
    solved = lam.isfinite()
    ends = (solved.sum(1) - 1).clamp(min=0)
    reached = (chi2 >= target[:, None]) & solved
    upper = torch.where(reached.any(1), reached.to(torch.int8).argmax(1), ends)
    lower = (upper - 1).clamp(min=0)
    rows = torch.arange(len(lam), device=lam.device)
    x0, x1 = lam[rows, lower].log(), lam[rows, upper].log()
    y0, y1 = chi2[rows, lower].log(), chi2[rows, upper].log()
    share = ((target.log() - y0) / (y1 - y0)).nan_to_num(1.0).clamp(0, 1)
    share = torch.where(reached.any(1), share, 1.0)
    return torch.lerp(x0, x1, share).exp()


def _best(lam: Tensor, score: Tensor) -> Tensor:
    """The lam with the lowest score (B,); the minimum of the parabola through it and its neighbours in log lam."""
    score = torch.where(lam.isfinite(), score.nan_to_num(torch.inf), torch.inf)
    rows = torch.arange(len(lam), device=lam.device)
    best = score.argmin(1)
    at = best.clamp(1, max(1, lam.shape[1] - 2))
    if lam.shape[1] < 3:
        return lam[rows, best]
    t = [lam[rows, at + k].log() for k in (-1, 0, 1)]
    s = [score[rows, at + k] for k in (-1, 0, 1)]
    left, right = (s[0] - s[1]) / (t[0] - t[1]), (s[2] - s[1]) / (t[2] - t[1])
    bend = (right - left) / (t[2] - t[0])
    vertex = (t[0] + t[1]) / 2 - left / (2 * bend)
    vertex = torch.minimum(torch.maximum(vertex, t[0]), t[2])
    return torch.where((bend > 0) & vertex.isfinite(), vertex, lam[rows, best].log()).exp()


Follow = Callable[[MapProblem, list[float] | None], Path]


def _shared_grid(path: Path) -> list[float] | None:
    """The lam of all images, apart from those that failed and have none; None if they differ."""
    lam = path.lam[path.lam.isfinite().any(1)]
    return lam[0].tolist() if len(lam) and (lam == lam[:1]).all() else None


def _sure(problem: MapProblem, path: Path, grid: list[float], seed: int, follow: Follow) -> tuple[Tensor, Tensor, Path]:
    """Stein: E|f(x) - f(truth)|^2 = E|y - f(x)|^2 - m sigma^2 + 2 sigma^2 div, div = the trace of d f(x(y)) / dy."""
    operator, y = problem.operator, problem.y
    b = torch.randn(y.shape[1:], generator=as_generator(seed), dtype=torch.float64).to(y)
    b = operator.restrict(b.expand_as(y))
    step = SURE_STEP * problem.noise.variance(y).sqrt()
    moved = y + step.view(-1, *[1] * (y.ndim - 1)) * b
    shifted = MapProblem(problem.prior, operator, problem.noise, moved, problem.precision)
    second = follow(shifted, grid)
    with torch.no_grad():
        changes = [operator.A(v) - operator.A(u) for u, v in zip(path.x.unbind(1), second.x.unbind(1), strict=True)]
        divergence = torch.stack([(b * d).flatten(1).sum(1) for d in changes], dim=1) / step[:, None]
    score = path.chi2(problem) - 1 + 2 * divergence / operator.num_measurements
    return _best(path.lam, score), score, second


def _held_out(problem: MapProblem, seed: int, follow: Follow) -> tuple[Tensor, Tensor, Path]:
    operator, y = problem.operator, problem.y
    observed = operator.restrict(torch.ones_like(y[:1]))[0] != 0
    draw = torch.rand(y.shape[1:], generator=as_generator(seed)).to(y.device)
    held = observed & (draw < HELD_OUT_SHARE)
    if not held.any() or (held == observed).all():
        raise InputError(f"{operator!r} has too few measurements to leave some out; choose another rule")
    reduced = keep(operator, observed & ~held)
    second = follow(MapProblem(problem.prior, reduced, problem.noise, y * (observed & ~held), problem.precision), None)
    with torch.no_grad():
        residuals = [(y - operator.A(x)) * held for x in second.x.unbind(1)]
        score = torch.stack([-problem.noise.log_prob(r) for r in residuals], dim=1) / held.sum()
    return _best(second.lam, score), score, second


def _corner(lam: Tensor, residual: Tensor, P: Tensor) -> Tensor:
    """The curvature of the curve (residual, P), both scaled to [0, 1], at each lam (B, L); 0 at the ends."""

    def scaled(v: Tensor) -> Tensor:
        low, high = v.nan_to_num(torch.inf).amin(1, keepdim=True), v.nan_to_num(-torch.inf).amax(1, keepdim=True)
        return (v - low) / (high - low)

    a, b = scaled(residual), scaled(P)
    score = torch.zeros_like(lam)
    if lam.shape[1] >= 3:
        # Menger: four times the area of the triangle of three neighbours over the product of its sides.
        ux, uy, vx, vy = *(d.diff(dim=1)[:, :-1] for d in (a, b)), *(d.diff(dim=1)[:, 1:] for d in (a, b))
        sides = torch.hypot(ux, uy) * torch.hypot(vx, vy) * torch.hypot(ux + vx, uy + vy)
        score[:, 1:-1] = (2 * (ux * vy - uy * vx) / sides).nan_to_num(0.0)
    return score
