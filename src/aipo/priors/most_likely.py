"""The noise level that makes an image most likely, found in a few evaluations of its density."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from aipo.images.tiles import tiles
from aipo.transforms.haar import diagonal_deviation

__all__ = ["most_likely_level"]

EVALS, STEP, TOLERANCE = 8, 1.25, 1e-3
NEAR = 0.3  # in log s
MOST_PIXELS, TILE = 2**18, 256


def most_likely_level(log_prob: Callable[[Tensor, float], Tensor], y: Tensor, levels: tuple[float, float]) -> float:
    """The s in `levels` with the largest log_prob(y, s), for one image (1, C, H, W); of a large one some tiles do."""
    low, high = levels
    parts = _representative(y)

    def value(s: float) -> float:
        return -sum(log_prob(part, s).item() for part in parts)

    guess = torch.cat([diagonal_deviation(part) for part in parts]).median().item()
    s = min(max(guess, low * STEP), high / STEP)
    tried = {v: value(v) for v in (s / STEP, s, s * STEP)}
    while len(tried) < EVALS:
        s = _next_level(tried, low, high)
        if min(abs(math.log(v / s)) for v in tried) < TOLERANCE:
            break
        tried[s] = value(s)
    return min(tried, key=tried.__getitem__)


def _representative(y: Tensor) -> list[Tensor]:
    """An image (1, C, H, W), or if it is large some tiles of it, evenly spread."""
    if y.shape[2] * y.shape[3] <= MOST_PIXELS:
        return [y]
    every = [tile.cut(y) for tile in tiles(y.shape[2], y.shape[3], TILE, 0)]
    return every[:: -(-len(every) * TILE**2 // MOST_PIXELS)]


def _next_level(tried: dict[float, float], low: float, high: float) -> float:
    """Where to look next for the minimum in [low, high], with at least three levels tried."""
    levels = sorted(tried)
    best = levels.index(min(tried, key=tried.__getitem__))
    if best in (0, len(levels) - 1):
        # Beyond it, by strides that double; or if that is the end of the range, between it and its neighbor.
        neighbor, end = (levels[1], low) if best == 0 else (levels[-2], high)
        there = levels[best] * (levels[best] / neighbor) ** 2
        return math.sqrt(levels[best] * neighbor) if levels[best] == end else min(max(there, low), high)
    three = levels[best - 1 : best + 2]
    t = [math.log(v / three[1]) for v in three]
    # Noise alone would give a + b log s + c / s^2; near the minimum every curve is a parabola.
    near = t[2] - t[0] < NEAR
    rows = torch.tensor([[1.0, u, u**2 if near else math.exp(-2 * u)] for u in t], dtype=torch.float64)
    _, b, c = torch.linalg.solve(rows, torch.tensor([tried[v] for v in three], dtype=torch.float64)).tolist()
    u = -b / (2 * c) if near else 0.5 * math.log(max(2 * c / b, 1e-9)) if b > 0 else 0.0
    if not t[0] < u < t[2]:
        u = t[0] / 2 if -t[0] > t[2] else t[2] / 2
    return three[1] * math.exp(u)
