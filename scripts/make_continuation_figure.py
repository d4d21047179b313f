"""Draw docs/continuation.png: the two continuations, lam up and the prior's noise level down, on two pixels.

python scripts/make_continuation_figure.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import aipo
from aipo.flows import MixtureFlow
from aipo.operators import Denoising
from aipo.problem.proximal import proximal

SHAPE = (1, 1, 2)
Y = torch.tensor([0.62, 0.38], dtype=torch.float64).view(1, 1, 1, 2)
LAMBDA = 1.0
LEVELS = (0.4, 0.3, 0.2, 0.15, 0.1)
SHOWN = (0.4, 0.2, 0.1)
OUT = Path(__file__).parents[1] / "docs" / "continuation.png"


def problem(batch: int, s: float = 0.0) -> aipo.MapProblem:
    """An image of two pixels, a prior with four modes, and a noisy measurement of both pixels.

    Noise of level s on the prior's images makes its modes wider.
    """
    std = (0.1**2 + s**2) ** 0.5
    flow = MixtureFlow(SHAPE, means=(0.2, 0.8), stds=(std, std)).double().requires_grad_(False)
    return aipo.MapProblem(flow, Denoising(SHAPE), aipo.Gaussian(0.1), Y.repeat(batch, 1, 1, 1))


def trace(solver: aipo.FixedLambda | aipo.Amortized, x0: torch.Tensor) -> torch.Tensor:
    """Every iterate of a solve, (steps, 2)."""
    one, points = problem(1), []
    state = solver.init(one, LAMBDA, x0)
    while state.running.any():
        points.append(state.x.flatten())
        state = solver.step(one, state)
    return torch.stack(points)


def landscape(ax: Axes, lam: float, s: float = 0.0) -> None:
    axis = torch.linspace(-0.05, 1.05, 221, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).view(-1, *SHAPE)
    loss = problem(len(grid), s).loss(grid, lam).view(221, 221).T
    levels = loss.min() + torch.linspace(0, 6, 25).square()
    ax.contourf(axis, axis, loss, levels=levels.tolist(), cmap="Blues_r", extend="max")
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal")
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])


def follow_lam(axes: list[Axes]) -> torch.Tensor:
    """The paper's continuation in three panels, plain descent in the fourth; returns where it ends."""
    path = trace(aipo.Amortized(K=10, decay="round"), Y)
    result = aipo.Amortized(K=10, decay="round").solve(problem(1), LAMBDA, Y)
    rounds = result.trajectory["lam"][0]
    for ax, lam in zip(axes, (0.0, 0.15, LAMBDA, LAMBDA), strict=True):
        landscape(ax, lam)
        ax.plot(*Y.flatten(), "k+", ms=11, mew=2)
    for ax, lam in zip(axes[:3], (0.0, 0.15, LAMBDA), strict=True):
        done = torch.nan_to_num(rounds, nan=torch.inf) <= lam + 1e-9
        ends = result.trajectory["K"][0][done].cumsum(0).long().clamp(max=len(path) - 1)
        ax.plot(*path[ends].T, "-", color="tab:orange", lw=2)
        ax.plot(*path[ends[-1]], "o", color="tab:orange", ms=8)
        ax.set_title(f"following $x^*(\\lambda)$: $\\lambda$ = {lam:g}")
    for start in ((0.05, 0.95), (0.1, 0.12), (0.92, 0.95)):
        x0 = torch.tensor(start, dtype=torch.float64).view(1, *SHAPE)
        descent = trace(aipo.FixedLambda(400, 0.01, "cosine"), x0)
        axes[3].plot(*descent.T, "-", color="tab:red", lw=2)
        axes[3].plot(*descent[0], "s", color="tab:red", ms=6)
        axes[3].plot(*descent[-1], "X", color="tab:red", ms=10)
    axes[3].set_title("descent at $\\lambda$ = 1 from bad starts")
    return result.x.flatten()


def follow_level(axes: list[Axes], most_probable: torch.Tensor) -> None:
    """The continuation in the noise level in three panels; the posterior with what the two return in the fourth."""
    v, path, marked = Y, [Y.flatten()], dict(zip(SHOWN, axes, strict=False))
    for s in LEVELS:
        estimate = v - s**2 * problem(1, s).evaluate(v).grad_P
        v = proximal(problem(1), estimate, torch.tensor([LAMBDA / s**2], dtype=torch.float64))
        path.append(v.flatten())
        if s in marked:
            ax = marked[s]
            landscape(ax, LAMBDA, s)
            ax.plot(*Y.flatten(), "k+", ms=11, mew=2)
            ax.plot(*torch.stack(path).T, "-", color="tab:green", lw=2)
            ax.plot(*v.flatten(), "o", color="tab:green", ms=8)
            ax.set_title(f"following s: s = {s:g}")
    landscape(axes[3], LAMBDA)
    axis = torch.linspace(-0.4, 1.4, 361, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).view(-1, *SHAPE)
    weights = torch.softmax(-problem(len(grid)).loss(grid, 1.0), 0)
    mean = (weights[:, None] * grid.flatten(1)).sum(0)
    axes[3].plot(*most_probable, "o", color="tab:orange", ms=17, label="the most probable")
    axes[3].plot(*estimate.flatten(), "o", color="tab:green", ms=11, label="last estimate")
    axes[3].plot(*mean, "*", color="white", mec="black", ms=9, label="mean of the posterior")
    axes[3].legend(loc="upper right", fontsize=8)
    axes[3].set_title("what they return")
    print(f"most probable {most_probable.tolist()}, estimate {estimate.flatten().tolist()}, mean {mean.tolist()}")


def main() -> None:
    figure = Figure(figsize=(13, 7.2), layout="constrained")
    axes = figure.subplots(2, 4, sharey=True)
    follow_level(list(axes[1]), follow_lam(list(axes[0])))
    for row in axes:
        row[0].set_ylabel("pixel 2")
    for ax in axes[1]:
        ax.set_xlabel("pixel 1")
    figure.savefig(OUT, dpi=110)
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
