"""Draw docs/continuation.png: why following lam from 0 finds the global minimum where plain descent does not.

python scripts/make_continuation_figure.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import aipo
from aipo.flows import MixtureFlow
from aipo.operators import Denoising

SHAPE = (1, 1, 2)
Y = torch.tensor([0.62, 0.38], dtype=torch.float64).view(1, 1, 1, 2)
LAMBDA = 1.0
OUT = Path(__file__).parents[1] / "docs" / "continuation.png"


def problem(batch: int) -> aipo.MapProblem:
    """An image of two pixels, a prior with four modes, and a noisy measurement of both pixels."""
    flow = MixtureFlow(SHAPE, means=(0.2, 0.8), stds=(0.1, 0.1)).double().requires_grad_(False)
    return aipo.MapProblem(flow, Denoising(SHAPE), aipo.Gaussian(0.1), Y.repeat(batch, 1, 1, 1))


def trace(solver: aipo.FixedLambda | aipo.Amortized, x0: torch.Tensor) -> torch.Tensor:
    """Every iterate of a solve, (steps, 2)."""
    one, points = problem(1), []
    state = solver.init(one, LAMBDA, x0)
    while state.running.any():
        points.append(state.x.flatten())
        state = solver.step(one, state)
    return torch.stack(points)


def landscape(ax: Axes, lam: float) -> None:
    axis = torch.linspace(-0.05, 1.05, 221, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).view(-1, *SHAPE)
    loss = problem(len(grid)).loss(grid, lam).view(221, 221).T
    levels = loss.min() + torch.linspace(0, 6, 25).square()
    ax.contourf(axis, axis, loss, levels=levels.tolist(), cmap="Blues_r", extend="max")
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), xlabel="pixel 1", aspect="equal")
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])


def main() -> None:
    fig, axes = plt.subplots(1, 4, figsize=(13, 3.7), layout="constrained", sharey=True)
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
    axes[0].set_ylabel("pixel 2")
    fig.savefig(OUT, dpi=110)
    print(f"wrote {OUT}; final loss by continuation {result.loss.item():.3f}")


if __name__ == "__main__":
    main()
