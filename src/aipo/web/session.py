"""What the app computes: what all its users share, and one restoration as a stream of messages that a page can show.

Nothing here knows of the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from aipo.choose.lam import EVALS
from aipo.errors import InputError
from aipo.images import samples, to_uint8
from aipo.noise import Gaussian
from aipo.priors.prior import Prior
from aipo.priors.zoo import flow_prior_names, load_flow_prior
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.follow_path import FollowPath
from aipo.web.jobs import Cores, Jobs
from aipo.web.messages import Messages, failure
from aipo.web.request import Request, measure, scratches

__all__ = ["CAPTIONS", "SHAPE", "AppState", "restore"]

SHAPE = (3, 64, 64)  # of the embedded priors and the samples
QUEUE = 24  # jobs that may run or wait; beyond that people are asked to come back
CAPTIONS = {
    "astronaut": "a real face",
    "drawn-1": "drawn from the prior",
    "drawn-2": "drawn from the prior",
    "cat": "not a face at all",
}
EVERY = 0.15  # seconds between two pictures of the moment


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
        for messages, _ in enumerate(restore(request, self.prior(self.default), lambda: False, 30, self.cores)):
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


def restore(
    request: Request, prior: Prior, stop: Callable[[], bool], time_limit: float, cores: Cores
) -> Iterator[dict[str, Any]]:
    """Follow the path and say what it looks like, until it is done, `stop` says so, or time is over.

    The first message comes before the first evaluation of the flow. Bad input and failure are messages too.
    """
    try:
        measurement = measure(request)
        problem = MapProblem(prior, measurement.operator, Gaussian(measurement.sigma), measurement.y)
    except InputError as error:
        yield failure(error)
        return
    messages = Messages(prior, request, measurement, problem, time.monotonic())

    def why_stop() -> str:
        if stop():
            return "Stopped by you"
        late = time.monotonic() - messages.start > time_limit
        return f"Stopped after {time_limit:.0f} s, the time limit" if late else ""

    with cores.job():
        yield from _follow(messages, why_stop, cores)


def _follow(messages: Messages, why_stop: Callable[[], str], cores: Cores) -> Iterator[dict[str, Any]]:
    cores.take_share()
    problem, frames = messages.problem, list[dict[str, Any]]()
    x0 = initial.gaussian(problem)
    live = messages.frame(None, x0[0], evals=0)
    yield messages.message("running", "A first guess, before the prior has had a look.", live=live, frames=frames)
    solver = FollowPath.automatic(problem, EVALS)
    target, shown, why = problem.expected_chi2.item(), time.monotonic(), ""
    for state in solver.states(problem, x0=x0):
        solved = state.visited[0].nonzero()[:, 0].tolist()
        new = solved[len(frames) :]
        frames = [*frames, *(messages.frame(solver.lambdas[i], state.path_x[0, i]) for i in new)]
        if new or (state.evals.any() and time.monotonic() - shown > EVERY):
            shown = time.monotonic()
            yield messages.message(
                "running",
                "The prior gains weight.",
                live=messages.frame(solver.lambdas[int(state.index)], state.x_seen[0], evals=int(state.evals)),
                frames=frames,
                target=target,
                range=[solver.lambdas[0], solver.lambdas[-1]],
            )
        why = why_stop() if state.running.any() else ""
        if why:
            break
        cores.take_share()  # others may have come or gone
    yield messages.end(solver.result(problem, state), why)
