"""The grid of lam that suits a problem, for those who do not want to choose one."""

from __future__ import annotations

from torch import Tensor

from aipo.problem.map_problem import MapProblem

__all__ = ["automatic_grid", "lowest_lam"]

STEPS_PER_DECADE, LAST_STEP = 12, 6  # lam = 10^(step / 12), up to 3.2


def automatic_grid(problem: MapProblem) -> list[float]:
    """Twelve lam per decade, up to 3.2, where detail is lost, and from where a restoration still follows the noise.

    Around the best restoration chi^2 was 0.5 to about 4 lam in our measurements, so its lam is hardly ever below a
    quarter of the expected chi^2. A path that starts much lower spends its evaluations on fitting noise.

    A batch has one grid, which starts with the image that has to start lowest.
    """
    first = int(_first_steps(problem).min())
    return [float(f"{10 ** (i / STEPS_PER_DECADE):.4g}") for i in range(first, LAST_STEP + 1)]


def lowest_lam(problem: MapProblem) -> Tensor:
    """Below the first lam that the automatic grid of each image alone has, and above all smaller ones (B,)."""
    # Half a step lower: the grid is rounded.
    return 10 ** ((_first_steps(problem) - 0.5) / STEPS_PER_DECADE)


def _first_steps(problem: MapProblem) -> Tensor:
    """Where the automatic grid of each image alone starts, in steps from lam = 1 (B,)."""
    return (STEPS_PER_DECADE * (0.25 * problem.expected_chi2.double()).log10()).round()
