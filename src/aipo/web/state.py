"""What all users of the app share: the priors, the sample images, and who is computing at the moment."""

from __future__ import annotations

from torch import Tensor

from aipo.errors import InputError
from aipo.images import samples, to_uint8
from aipo.priors.prior import Prior
from aipo.priors.zoo import flow_prior_names, load_flow_prior
from aipo.web import session
from aipo.web.jobs import Cores, Jobs
from aipo.web.painter import scratches
from aipo.web.request import Request

__all__ = ["CAPTIONS", "SHAPE", "AppState"]

SHAPE = (3, 64, 64)  # of the embedded priors and the samples
QUEUE = 24  # jobs that may run or wait; beyond that people are asked to come back
CAPTIONS = {
    "astronaut": "a real face",
    "drawn-1": "drawn from the prior",
    "drawn-2": "drawn from the prior",
    "cat": "not a face at all",
}


class AppState:
    """Shared by all requests.

    Attributes:
        default: the name of the prior that is chosen at first.
        priors: the names that can be chosen.
        samples: the images (3, 64, 64) that are offered, by name; those of `CAPTIONS`.
        time_limit: seconds after which a restoration is stopped.
        cores, jobs: who is computing.
    """

    def __init__(self, prior: str, time_limit: float):
        loaded = load_flow_prior(prior)
        if loaded.image_shape != SHAPE:
            raise InputError(f"the app needs a prior for images of shape {SHAPE}; {prior} is for {loaded.image_shape}")
        self.default = loaded.name
        self.time_limit = time_limit
        self.cores, self.jobs = Cores(), Jobs(QUEUE)
        # By name: users need not know where a file lies. The others are loaded when they are first asked for.
        self._loaded = {self.default: loaded}
        self.priors = sorted({*flow_prior_names(), self.default})
        self.samples = _samples(loaded)

    def prior(self, name: str) -> Prior:
        """The prior of that name; `InputError` if it is not one of `priors`."""
        if name not in self.priors:
            raise InputError(f"unknown prior {name}; choose from {', '.join(self.priors)}")
        if name not in self._loaded:
            self._loaded[name] = load_flow_prior(name)
        return self._loaded[name]

    def warm_up(self) -> None:
        """The first evaluation packs weights and wakes threads; no user should have to wait for that."""
        request = Request(self.samples["astronaut"], "inpaint", True, 0.02, scratches())
        for messages, _ in enumerate(session.restore(request, self.prior(self.default), lambda: False, 30, self.cores)):
            if messages == 2:
                break


def _samples(prior: Prior) -> dict[str, Tensor]:
    # As in a file, so that every sample can be looked at and measured like an upload.
    drawn = to_uint8(prior.sample(2, temperature=0.7, seed=0)).float() / 255
    return {
        "astronaut": samples.load("astronaut"),
        "drawn-1": drawn[0],
        "drawn-2": drawn[1],
        "cat": samples.load("cat"),
    }
