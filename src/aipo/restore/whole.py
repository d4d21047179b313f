"""Restore a whole photograph with a prior for images of any size: tile by tile, in memory that does not grow with it.

Each tile is a problem of its own, with its part of the measurement, solved by `Anneal`; denoising takes one evaluation
of the prior. Tiles overlap, and only their inside is kept.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.files import write_atomically
from aipo.images.tiles import Tile, tiles
from aipo.noise import Gaussian
from aipo.operators import Inpainting, LinearOperator, SuperResolution, ValidBlur
from aipo.priors.noise_prior import NoisePrior
from aipo.problem.map_problem import MapProblem
from aipo.solvers.anneal import Anneal

__all__ = ["FinishedTiles", "Whole", "restore_whole"]

SIDE, MARGIN, MULTIPLE = 960, 48, 48  # of tiles; the multiple contains the prior's grid and every factor
DRAWS = 4  # estimates that are averaged where noise is not white


@dataclass(frozen=True)
class Whole:
    """What is at hand of a photograph.

    Attributes:
        y: (C, h, w); where nothing is observed it does not matter.
        sigma: its noise.
        factor: how many pixels of the restoration, along a side, one of y stands for.
        kernel: with which it was blurred (kh, kw).
        observed: which values are known, (1, H, W) or (C, H, W) of bool; None if all are.
        white: whether the noise is white; if not, and there is only noise, sigma is that of the noise to be added.
    """

    y: Tensor
    sigma: float
    factor: int = 1
    kernel: Tensor | None = None
    observed: Tensor | None = None
    white: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the restoration (C, H, W)."""
        channels, height, width = self.y.shape
        return channels, height * self.factor, width * self.factor

    @property
    def noise_only(self) -> bool:
        return self.factor == 1 and self.kernel is None and self.observed is None

    def tiles(self) -> list[Tile]:
        return list(tiles(*self.shape[1:], SIDE, MARGIN, MULTIPLE))

    def nothing_missing(self, tile: Tile) -> bool:
        """Whether a tile has only to be copied."""
        if self.observed is None or self.observed.shape[0] != 1:
            return False
        return bool(self.observed[:, tile.kept_rows, tile.kept_columns].all())

    def cut(self, tile: Tile) -> Tensor:
        """The part of y that a tile shows (1, C, h, w)."""
        rows, columns = (slice(s.start // self.factor, s.stop // self.factor) for s in (tile.rows, tile.columns))
        return self.y[None, :, rows, columns]

    def problem(self, tile: Tile) -> tuple[LinearOperator, Tensor, Tensor]:
        """The operator of a tile, its measurement, and where to start."""
        y = self.cut(tile)
        channels, height, width = y.shape[1:]
        if self.kernel is not None:
            blur = ValidBlur((channels, height, width), self.kernel)
            return blur, y, blur.extended(y)
        if self.factor > 1:
            size = (height * self.factor, width * self.factor)
            return SuperResolution((channels, *size), self.factor), y, F.interpolate(y, size, mode="bicubic")
        assert self.observed is not None
        observed = tile.cut(self.observed)
        return Inpainting(observed, (channels, height, width)), y, filled(y, observed.expand_as(y[0])[None])


class FinishedTiles:
    """The tiles of one picture that an interrupted run has left, in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder = folder

    def load(self, number: int, shape: tuple[int, ...]) -> Tensor | None:
        try:
            values = np.load(self.folder / f"{number}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if values.shape != shape or values.dtype != np.float32 or not np.isfinite(values).all():
            return None
        return torch.from_numpy(values)

    def save(self, number: int, part: Tensor) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, part.contiguous().numpy())
        write_atomically(self.folder / f"{number}.npy", buffer.getvalue())


@torch.no_grad()
def restore_whole(
    prior: NoisePrior,
    whole: Whole,
    evals: int = 20,
    share: Callable[[float], None] = lambda done: None,
    finished: FinishedTiles | None = None,
) -> tuple[Tensor, int]:
    """The restoration (C, H, W) in [0, 1], and how many evaluations of the prior its pixels have cost at most.

    Arguments:
        evals: of the prior; denoising takes one.
        share: is told which share of the work is done, from 0 to 1.
        finished: where the tiles of a picture with several are kept until all are there.
    """
    parts = whole.tiles()
    x, most = whole.y.new_empty(whole.shape), 0
    for number, tile in enumerate(parts):
        if whole.nothing_missing(tile):
            tile.put(x, whole.cut(tile)[0])
            continue
        shape = (whole.shape[0], tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start)
        part = finished.load(number, shape) if finished else None
        steps = (1 if whole.white else DRAWS) if whole.noise_only else evals
        if part is None:
            for done, estimate in enumerate(_estimates(prior, whole, tile, evals)):
                part = estimate
                share((number + done / steps) / len(parts))
            assert part is not None
            if finished and len(parts) > 1:
                finished.save(number, part)
        tile.put(x, part)
        most = max(most, steps)
        share((number + 1) / len(parts))
    if whole.observed is not None:
        x = torch.where(whole.observed, whole.y, x)
    return x.clamp(0, 1), most


def _estimates(prior: NoisePrior, whole: Whole, tile: Tile, evals: int) -> Iterator[Tensor]:
    """The restorations of a tile (C, h, w), each better than the one before."""
    device = prior.weights.device
    if whole.noise_only:
        y = whole.cut(tile).to(device)
        x = prior.denoise(y, whole.sigma) if whole.white else prior.denoise_smooth(y, whole.sigma, DRAWS)
        yield x[0].cpu()
        return
    operator, y, x0 = whole.problem(tile)
    problem = MapProblem(prior, operator, Gaussian(whole.sigma), y.to(device), precision="fast")
    for state in Anneal(evals).states(problem, x0=x0.to(device)):
        x = operator.inside(state.x_seen) if isinstance(operator, ValidBlur) else state.x_seen
        yield x[0].cpu()


def filled(y: Tensor, observed: Tensor) -> Tensor:
    """Images (B, C, H, W) whose unknown values are smooth continuations of the known ones.

    Each value that is missing comes from the same place of a picture of half the size, in which less is missing.
    """
    known = observed.to(y.dtype)
    if known.all():
        return y
    height, width = y.shape[2:]
    if min(height, width) == 1 or not known.any():
        mean = (y * known).sum((2, 3), keepdim=True) / known.sum((2, 3), keepdim=True).clamp(min=1)
        return torch.where(observed, y, torch.where(known.any(), mean, 0.5))
    weight = F.avg_pool2d(known, 2, ceil_mode=True, count_include_pad=False)
    half = F.avg_pool2d(y * known, 2, ceil_mode=True, count_include_pad=False) / weight.clamp(min=1e-6)
    coarse = filled(half, weight > 0)
    return torch.where(observed, y, F.interpolate(coarse, (height, width), mode="bilinear"))
