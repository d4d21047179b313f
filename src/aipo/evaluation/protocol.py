"""What is measured: experiments, weights of the prior, and the two protocols as lists of priors, splits and methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aipo.noise import Gaussian
from aipo.operators import CompressedSensing, Denoising, Inpainting, Operator

__all__ = ["EXPERIMENTS", "LAMBDAS", "PROTOCOLS", "Experiment", "Protocol"]

LAMBDAS = (0.3, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Experiment:
    """An inverse problem of the paper's Section 4: an operator and Gaussian noise. Its operator has the seed 0.

    Attributes:
        name: what rows of results and the command line call their `task`.
        title: for captions.
        sigma: of the noise, for images in [0, 1].
        make_operator: the operator for images of a shape (C, H, W).
    """

    name: str
    title: str
    sigma: float
    make_operator: Callable[[tuple[int, int, int]], Operator]

    @property
    def noise(self) -> Gaussian:
        return Gaussian(self.sigma)


def _sense(m: int) -> Experiment:
    title = f"Compressed sensing, m = {m}, sigma 0.1"
    return Experiment(f"ncs{m}", title, 0.1, lambda shape: CompressedSensing(shape, m, seed=0))


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("denoise", "Denoising, sigma 0.1", 0.1, Denoising),
        _sense(4000),
        _sense(2000),
        Experiment(
            "inpaint",
            "Inpainting, a quarter missing in 4x4 blocks, sigma 0.02",
            0.02,
            lambda shape: Inpainting.random_blocks(shape, fraction=0.25, block=4, seed=0),
        ),
    )
}


@dataclass(frozen=True)
class Protocol:
    """Which methods are compared, with which priors and on which splits. What two protocols share is measured once."""

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
