"""One restoration as the app runs it: from a request to a stream of messages that a page can show.

Nothing here knows of the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from aipo.choose.lam import EVALS
from aipo.errors import InputError
from aipo.noise import Gaussian
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.follow_path import FollowPath
from aipo.web.jobs import Cores
from aipo.web.messages import Messages, failure
from aipo.web.request import Request, measure

__all__ = ["restore"]

EVERY = 0.15  # seconds between two pictures of the moment


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
