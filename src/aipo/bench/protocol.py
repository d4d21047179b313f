"""What is measured: tasks, weights of the prior, and the two protocols as lists of priors, splits and methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aipo.noise import Gaussian
from aipo.operators import CompressedSensing, Denoising, Inpainting, Operator

__all__ = ["LAMBDAS", "PROTOCOLS", "TASKS", "Protocol", "Task"]

LAMBDAS = (0.3, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Task:
    """An inverse problem of the paper's Section 4; everything random in it has the seed 0."""

    name: str
    title: str
    sigma: float
    make_operator: Callable[[tuple[int, int, int]], Operator]

    @property
    def noise(self) -> Gaussian:
        return Gaussian(self.sigma)


TASKS = {
    task.name: task
    for task in (
        Task("denoise", "Denoising, sigma 0.1", 0.1, Denoising),
        Task("ncs4000", "Compressed sensing, m = 4000, sigma 0.1", 0.1, lambda s: CompressedSensing(s, 4000, seed=0)),
        Task("ncs2000", "Compressed sensing, m = 2000, sigma 0.1", 0.1, lambda s: CompressedSensing(s, 2000, seed=0)),
        Task(
            "inpaint",
            "Inpainting, a quarter missing in 4x4 blocks, sigma 0.02",
            0.02,
            lambda s: Inpainting.random_blocks(s, fraction=0.25, block=4, seed=0),
        ),
    )
}


@dataclass(frozen=True)
class Protocol:
    """Which methods meet on which priors and splits. Equal cells of two protocols are measured once."""

    name: str
    title: str
    priors: tuple[str, ...]
    splits: tuple[str, ...]
    methods: tuple[str, ...]


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "paper",
            "The paper's protocol: constant steps, equal evaluations",
            ("celeba64-realnvp", "celeba64-glow"),
            ("test", "ood"),
            ("aipo", "aipo_printed", "mle_init", "random_init", "zero_init"),
        ),
        Protocol(
            "fair",
            "The same cells with tuned baselines, and the path solver at a fraction of the evaluations",
            ("celeba64-realnvp", "celeba64-glow", "celeba64-tarflow"),
            ("test", "ood", "fairface"),
            (
                *("aipo", "aipo_printed", "path", "path_long", "adam_mle", "adam_random", "adam_zero", "lbfgs"),
                *("bm3d", "tv", "biharmonic", "wavelets"),
            ),
        ),
    )
}
