"""Rules that choose lam without the truth, each from what can be known of a path of restorations.

discrepancy  the residual is as large as it should be, chi^2 = `MapProblem.expected_chi2`. Costs nothing beside the
             path.
sure         the expected squared error of f(x), by Stein's unbiased estimate with one random probe. Gaussian noise
             only; costs a second path. All images of a batch share one grid, so where their noise differs the
             result of an image depends on its neighbors, as with no other rule.
held-out     how well measurements left out of the fit are predicted. Any noise; costs a second path.
l-curve      the corner of the curve of P against the residual.
fixed        a lam of yours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.problem.map_problem import MapProblem
from aipo.solvers.solution_path import SolutionPath

__all__ = [
    *("Follow", "Verdict", "best", "corner", "crossing", "discrepancy", "fixed", "held_out", "l_curve"),
    *("shared_grid", "sure"),
]

# Of sigma. Smaller, and the solver's own error shows in the derivative; larger, and it is no derivative any more.
SURE_STEP = 0.1
HELD_OUT_SHARE = 0.1

# Follows the path of a problem along a grid, None being the automatic one.
Follow = Callable[[MapProblem, list[float] | None], SolutionPath]


@dataclass(frozen=True)
class Verdict:
    """What a rule says.

    Attributes:
        lam: the best one of each image (B,).
        score: what the rule looked at (B, L), and
        score_lam: at which lam (B, L).
        second: the path that it followed beside the one that was given, if any.
    """

    lam: Tensor
    score: Tensor
    score_lam: Tensor
    second: SolutionPath | None = None


def fixed(problem: MapProblem, path: SolutionPath, lam: float | Tensor) -> Verdict:
    """The lam that was asked for: a number, or one per image (B,). Nothing is looked at."""
    nothing = path.lam[:, :0]
    return Verdict(problem.lam_tensor(lam), nothing, nothing)


def discrepancy(problem: MapProblem, path: SolutionPath) -> Verdict:
    """Where chi^2 reaches what a good restoration should have. The score is chi^2."""
    chi2 = path.chi2(problem)
    return Verdict(crossing(path.lam, chi2, problem.expected_chi2), chi2, path.lam)


def l_curve(problem: MapProblem, path: SolutionPath) -> Verdict:
    """Where the curve of P against the residual bends most. The score is its curvature."""
    score = corner(path.lam, path.chi2(problem), path.P)
    return Verdict(best(path.lam, -score), score, path.lam)


def sure(problem: MapProblem, path: SolutionPath, grid: list[float], seed: int, follow: Follow) -> Verdict:
    """Stein: E|f(x) - f(truth)|^2 = E|y - f(x)|^2 - m sigma^2 + 2 sigma^2 div, div = the trace of d f(x(y)) / dy.

    The score is that, per measurement and in units of sigma^2. The path has the same grid for all images.
    """
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
    return Verdict(best(path.lam, score), score, path.lam, second)


def held_out(problem: MapProblem, seed: int, follow: Follow) -> Verdict:
    """Where measurements that a second path has not seen are predicted best.

    The score is their negative log-likelihood, per measurement.
    """
    operator, y = problem.operator, problem.y
    observed = operator.restrict(torch.ones_like(y[:1]))[0] != 0
    draw = torch.rand(y.shape[1:], generator=as_generator(seed)).to(y.device)
    held = observed & (draw < HELD_OUT_SHARE)
    if not held.any() or (held == observed).all():
        raise InputError(f"{operator!r} has too few measurements to leave some out; choose another rule")
    kept = observed & ~held
    second = follow(MapProblem(problem.prior, operator.subset(kept), problem.noise, y * kept, problem.precision), None)
    with torch.no_grad():
        seen = [operator.A(x) for x in second.x.unbind(1)]
        # What is not held out is taken as met exactly: it counts the same for every lam.
        losses = [-problem.noise.log_prob(y, torch.where(held, fx, y)) for fx in seen]
        score = torch.stack(losses, dim=1) / held.sum()
    return Verdict(best(second.lam, score), score, second.lam, second)


def shared_grid(path: SolutionPath) -> list[float] | None:
    """The lam of all images, apart from those that failed and have none; None if they differ."""
    lam = path.lam[path.lam.isfinite().any(1)]
    return lam[0].tolist() if len(lam) and (lam == lam[:1]).all() else None


def crossing(lam: Tensor, chi2: Tensor, target: Tensor) -> Tensor:
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


def best(lam: Tensor, score: Tensor) -> Tensor:
    """The lam with the lowest score (B,); the minimum of the parabola through it and its neighbors in log lam."""
    score = torch.where(lam.isfinite(), score.nan_to_num(torch.inf), torch.inf)
    rows = torch.arange(len(lam), device=lam.device)
    lowest = score.argmin(1)
    at = lowest.clamp(1, max(1, lam.shape[1] - 2))
    if lam.shape[1] < 3:
        return lam[rows, lowest]
    t = [lam[rows, at + k].log() for k in (-1, 0, 1)]
    s = [score[rows, at + k] for k in (-1, 0, 1)]
    left, right = (s[0] - s[1]) / (t[0] - t[1]), (s[2] - s[1]) / (t[2] - t[1])
    bend = (right - left) / (t[2] - t[0])
    vertex = (t[0] + t[1]) / 2 - left / (2 * bend)
    vertex = torch.minimum(torch.maximum(vertex, t[0]), t[2])
    return torch.where((bend > 0) & vertex.isfinite(), vertex, lam[rows, lowest].log()).exp()


def corner(lam: Tensor, residual: Tensor, P: Tensor) -> Tensor:
    """The curvature of the curve (residual, P), both scaled to [0, 1], at each lam (B, L); 0 at the ends."""

    def scaled(v: Tensor) -> Tensor:
        low, high = v.nan_to_num(torch.inf).amin(1, keepdim=True), v.nan_to_num(-torch.inf).amax(1, keepdim=True)
        return (v - low) / (high - low)

    a, b = scaled(residual), scaled(P)
    score = torch.zeros_like(lam)
    if lam.shape[1] >= 3:
        # Menger: four times the area of the triangle of three neighbors over the product of its sides.
        ux, uy, vx, vy = *(d.diff(dim=1)[:, :-1] for d in (a, b)), *(d.diff(dim=1)[:, 1:] for d in (a, b))
        sides = torch.hypot(ux, uy) * torch.hypot(vx, vy) * torch.hypot(ux + vx, uy + vy)
        score[:, 1:-1] = (2 * (ux * vy - uy * vx) / sides).nan_to_num(0.0)
    return score
