"""What is to be measured: priors, experiments, splits and methods, and the chunks of images that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from aipo.engine.engine import Precision
from aipo.errors import InputError
from aipo.evaluation.cell import Cell, Setup
from aipo.evaluation.image_set import ImageSet, default_image_set
from aipo.evaluation.methods import METHODS
from aipo.priors.prior import Prior, chosen_device
from aipo.priors.zoo import load_flow_prior

__all__ = ["Job", "Plan", "jobs_of"]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        image_sets: the user's own images, by split; a split that is not here has its default, or is left out.
        tasks: names of experiments.
        chunk: how many images are solved together. Apart from rounding it changes only the mean budget of L-BFGS.
        subset: how many images of each split are solved; all if None.
        minutes: after this time nothing new begins.
        keep: how many images of each split have their restorations kept, to be looked at.
        trace: whether mean losses over evaluations are kept, of the first chunk of each split.
    """

    image_sets: dict[str, ImageSet]
    priors: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    splits: tuple[str, ...]
    lambdas: tuple[float, ...]
    precision: Precision = "exact"
    device: str = "cpu"
    seed: int = 0
    chunk: int = 50
    subset: int | None = None
    minutes: float | None = None
    keep: int = 0
    trace: bool = False

    def __post_init__(self) -> None:
        if not all(0 < lam < math.inf for lam in self.lambdas) or list(self.lambdas) != sorted(set(self.lambdas)):
            raise InputError(f"lam must be positive, finite and ascending, but it is {list(self.lambdas)}")
        if self.minutes is not None and math.isnan(self.minutes):
            raise InputError("--budget is nan; give a number of minutes")
        object.__setattr__(self, "device", chosen_device(self.device))

    @property
    def setup(self) -> Setup:
        return Setup(self.lambdas, self.precision, self.seed)


@dataclass(frozen=True, eq=False)
class Job:
    """One chunk of one split, with its cells in the order in which they are solved. It can be sent to a process.

    Attributes:
        prior: its name or file.
        truth: images (B, C, H, W); no tensor, which processes would share through open files.
    """

    prior: str
    truth: np.ndarray
    cells: tuple[Cell, ...]


def jobs_of(plan: Plan) -> Iterator[Job]:
    for method in plan.methods:
        missing = [other for other in METHODS[method].needs if other not in plan.methods]
        if missing:
            raise InputError(f"{method} gets the evaluations of {missing[0]} as its budget: add --method {missing[0]}")
    for name in plan.priors:
        prior = load_flow_prior(name)
        sha256 = prior.card["sha256"]
        splits = {split: _image_set(plan, prior, split) for split in plan.splits}
        for task in plan.tasks:
            for split, image_set in splits.items():
                if image_set is None:
                    continue
                count = min(len(image_set), plan.subset or len(image_set))
                methods = [method for method in plan.methods if task in METHODS[method].tasks]
                for start in range(0, count if methods else 0, plan.chunk):
                    stop = min(start + plan.chunk, count)
                    about = (prior.name, sha256, task, split, image_set.fingerprint)
                    cells = tuple(Cell(*about, method, METHODS[method].settings, start, stop) for method in methods)
                    yield Job(name, image_set.images[start:stop].numpy(), cells)


def _image_set(plan: Plan, prior: Prior, split: str) -> ImageSet | None:
    found = plan.image_sets.get(split) or default_image_set(prior, split)
    if found is not None and tuple(found.images.shape[1:]) != prior.image_shape:
        shape = tuple(found.images.shape[1:])
        raise InputError(
            f"the {split} images are {shape}, but {prior.name} is for {prior.image_shape}; run it separately"
        )
    return found
