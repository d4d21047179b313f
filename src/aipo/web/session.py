"""One restoration as the app runs it: from a wish to a stream of messages that a page can show.

Nothing here knows of the page. A message is plain data, ready for JSON:

    status   "running", "done", "stopped" (by the user or the time limit) or "failed"
    text     one sentence about it
    before   the picture as it was measured; `truth` the clean one, where it is known
    live     the picture of the moment, with lam, chi2 and the evaluations spent
    frames   all lam that were solved so far, each with its picture and numbers
    chosen   which of the frames is the restoration, once lam is chosen

and at the end `facts`, `doubt` (see `sureness`) and `record`, what the JSON file says. Pictures are data URLs.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo.choose import EVALS, Choice, choose_lambda
from aipo.discrepancy import expected_chi2
from aipo.errors import InputError
from aipo.images import png_bytes
from aipo.metrics import psnr
from aipo.noise import Gaussian
from aipo.operators import Operator
from aipo.path import Path
from aipo.prior import Prior
from aipo.problem import MapProblem
from aipo.sigma import estimate_sigma
from aipo.solvers.path import STRIDE, FollowPath, PathState, automatic_grid
from aipo.tasks import make_operator, task_named
from aipo.web.jobs import Cores
from aipo.web.sureness import doubt_map, facts

__all__ = ["TASKS", "Measurement", "Wish", "data_url", "failure", "measure", "restore"]

SEED = 0  # of the damage, so that the preview and the restoration show the same
TASKS = ("denoise", "inpaint", "superres", "deblur", "colorize")
EVERY = 0.15  # seconds between two pictures of the moment


@dataclass(frozen=True)
class Wish:
    """What the user asks for.

    Attributes:
        picture: (3, H, W) in [0, 1].
        task: one of `TASKS`.
        damage: whether the picture is clean and is to be damaged first. Otherwise it is taken as it is; only to enlarge
            or to colour it, what those tasks do not look at is dropped.
        sigma: of the noise; None estimates it, which only denoising can.
        mask: inpaint: (1, H, W), 0 where pixels are missing.
        factor: superres.
        blur: deblur: the width of the Gaussian in pixels.
    """

    picture: Tensor
    task: str
    damage: bool
    sigma: float | None
    mask: Tensor | None = None
    factor: int = 4
    blur: float = 1.5


@dataclass(frozen=True)
class Measurement:
    """The problem's data. `before` is what a person would see of y, (3, H, W); `truth` is None where it is unknown."""

    operator: Operator
    y: Tensor
    sigma: float
    before: Tensor
    truth: Tensor | None


def measure(wish: Wish) -> Measurement:
    """What is known about the picture that was wished for."""
    if wish.task not in TASKS:
        raise InputError(f"unknown task {wish.task}; choose from {', '.join(TASKS)}")
    x = wish.picture[None]
    needed = {name for choices in task_named(wish.task).needs for name in choices} & {"mask", "factor", "blur"}
    if wish.task == "inpaint" and (wish.mask is None or wish.mask.all()):
        raise InputError("nothing is painted yet: paint over what is missing, then press Restore")
    operator = make_operator(wish.task, _shape(x), **{name: getattr(wish, name) for name in needed})
    if wish.damage:
        if wish.sigma is None:
            raise InputError("say how much noise to add")
        y = operator.measure(x, Gaussian(wish.sigma), SEED)
    else:
        # A noisy or blurred picture is the measurement; of the others, what was measured is a part of the picture.
        y = x if wish.task in ("denoise", "deblur") else operator.A(x)
    sigma = _estimated(y) if wish.sigma is None else wish.sigma
    seen = y if wish.task == "deblur" else operator.A_dagger(y)
    if wish.task == "colorize":
        seen = y
    if wish.task == "inpaint" and wish.mask is not None:
        seen = torch.where(wish.mask > 0, y, 0.5)  # grey: black could be part of the picture
    return Measurement(operator, y, sigma, seen[0].expand(_shape(x)), wish.picture if wish.damage else None)


def _shape(x: Tensor) -> tuple[int, int, int]:
    return x.shape[1], x.shape[2], x.shape[3]


def _estimated(y: Tensor) -> float:
    sigma = estimate_sigma(y).item()
    if not sigma > 0:
        raise InputError("the noise of this picture cannot be estimated; set it yourself")
    return sigma


@dataclass(frozen=True)
class _Run:
    """What all messages of one restoration share."""

    prior: Prior
    wish: Wish
    measurement: Measurement
    problem: MapProblem
    start: float

    def message(self, status: str, text: str, **more: Any) -> dict[str, Any]:
        truth = self.measurement.truth
        return {
            "status": status,
            "text": text,
            "before": data_url(self.measurement.before),
            "truth": None if truth is None else data_url(truth),
            "size": list(self.wish.picture.shape[1:]),
            "budget": EVALS,
            **more,
        }

    def numbers(self, x: Tensor) -> dict[str, Any]:
        """Of one picture (3, H, W), for the page."""
        truth = self.measurement.truth
        return {
            "chi2": self.problem.chi2(x[None]).item(),
            "psnr": None if truth is None else psnr(x[None].clamp(0, 1), truth[None]).item(),
            "image": data_url(x),
        }


def restore(
    wish: Wish, prior: Prior, stop: Callable[[], bool], time_limit: float, cores: Cores
) -> Iterator[dict[str, Any]]:
    """Follow the path of the wish and say what it looks like, until it is done, `stop` says so, or time is over.

    The first message comes before the first evaluation of the flow. Bad input and failure are messages too.
    """
    try:
        measurement = measure(wish)
        problem = MapProblem(prior, measurement.operator, Gaussian(measurement.sigma), measurement.y)
    except InputError as error:
        yield failure(error)
        return
    run = _Run(prior, wish, measurement, problem, time.monotonic())
    with cores.job():
        yield from _follow(run, stop, time_limit, cores)


def failure(error: InputError) -> dict[str, Any]:
    """The message about bad input."""
    text = str(error)
    return {"status": "failed", "text": f"{text[:1].upper()}{text[1:]}."}


def _follow(run: _Run, stop: Callable[[], bool], time_limit: float, cores: Cores) -> Iterator[dict[str, Any]]:
    cores.take_share()
    problem, frames = run.problem, list[dict[str, Any]]()
    x0 = aipo.initial.gaussian(problem)
    live = {"lam": None, "evals": 0, **run.numbers(x0[0])}
    yield run.message("running", "A first guess, before the prior has had a look.", live=live, frames=frames)
    solver = FollowPath(tuple(automatic_grid(problem)), EVALS, STRIDE)
    target = expected_chi2(problem).item()
    state, shown, why = solver.init(problem, solver.lambdas[-1], x0), time.monotonic(), ""
    while state.running.any():
        if stop():
            why = "Stopped by you"
        elif time.monotonic() - run.start > time_limit:
            why = f"Stopped after {time_limit:.0f} s, the time limit"
        if why:
            break
        cores.take_share()
        before = state.index.item()
        state = solver.step(problem, state)
        solved = state.index.item() != before
        if solved:
            frames = [*frames, _frame(run, solver.lambdas[int(before)], state.path_x[0, int(before)])]
        if solved or time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            yield run.message(
                "running",
                "The prior gains weight.",
                live=_live(run, solver, state),
                frames=frames,
                target=target,
                range=[solver.lambdas[0], solver.lambdas[-1]],
            )
    yield _end(run, solver.result(problem, state), why)


def _frame(run: _Run, lam: float, x: Tensor) -> dict[str, Any]:
    return {"lam": lam, **run.numbers(x)}


def _live(run: _Run, solver: FollowPath, state: PathState) -> dict[str, Any]:
    lam = solver.lambdas[int(state.index.item())]
    return {"lam": lam, "evals": int(state.evals.item()), **run.numbers(state.x_seen[0])}


def _end(run: _Run, path: Path, why: str) -> dict[str, Any]:
    """The last message: the restoration, chosen from what there is of the path."""
    seconds = time.monotonic() - run.start
    solved = int(path.lam.isfinite().sum())
    if not why and path.status[0] != "done":
        return run.message("failed", f"The solver gave up: {path.status[0]}. Is the noise set much too small?")
    if not solved:
        return run.message("stopped", f"{why}, before the first lambda was solved.", frames=[])
    choice = choose_lambda(run.problem, path=path)
    frames = [
        {
            "lam": path.lam[0, i].item(),
            "D": path.D[0, i].item(),
            "P": path.P[0, i].item(),
            "gap": path.gap[0, i].item(),
            **run.numbers(path.x[0, i]),
        }
        for i in range(solved)
    ]
    lam = choice.lam.item()
    chosen = sum(frame["lam"] < lam for frame in frames)
    restored = {"lam": lam, "D": choice.result.D.item(), "P": choice.result.P.item(), **run.numbers(choice.result.x[0])}
    if chosen < solved and abs(frames[chosen]["lam"] / lam - 1) < 1e-4:
        frames[chosen] = {**frames[chosen], **restored}
    else:
        frames.insert(chosen, restored)
    image, peak = doubt_map(path, lam)
    status = "stopped" if why else "done"
    text = f"{why}; the path so far can be looked at." if why else f"Restored in {seconds:.1f} s."
    return run.message(
        status,
        text,
        frames=frames,
        chosen=chosen,
        # A path that was stopped may not have come to the lam that would have been chosen.
        reached=frames[-1]["chi2"] >= choice.target.item(),
        target=choice.target.item(),
        range=[frames[0]["lam"], frames[-1]["lam"]],
        facts=facts(run.problem, choice),
        doubt={"image": data_url(image), "peak": peak},
        psnr_before=_psnr_before(run.measurement),
        record=_record(run, choice, frames, chosen, status, seconds),
    )


def _psnr_before(measurement: Measurement) -> float | None:
    if measurement.truth is None:
        return None
    return psnr(measurement.before[None].clamp(0, 1), measurement.truth[None]).item()


def _record(
    run: _Run, choice: Choice, frames: list[dict[str, Any]], chosen: int, status: str, seconds: float
) -> dict[str, Any]:
    """What the JSON file says: the restoration, the path, and all that is needed to make them again."""
    wish, result = run.wish, choice.result
    settings = {
        "task": wish.task,
        "damaged_first": wish.damage,
        "sigma": run.measurement.sigma,
        "sigma_estimated": wish.sigma is None,
        "factor": wish.factor if wish.task == "superres" else None,
        "blur": wish.blur if wish.task == "deblur" else None,
        "missing_pixels": int((wish.mask == 0).sum()) if wish.task == "inpaint" and wish.mask is not None else None,
        "seed": SEED if wish.damage else None,
        "evaluations_at_most": EVALS,
        "prior": run.prior.name,
        "prior_sha256": run.prior.card.get("sha256"),
    }
    return {
        "status": status,
        "lam": result.lam.item(),
        "rule": choice.rule,
        "loss": result.loss.item(),
        "D": result.D.item(),
        "P": result.P.item(),
        "chi2": frames[chosen]["chi2"],
        "chi2_expected": choice.target.item(),
        "psnr": frames[chosen]["psnr"],
        "evaluations": int(result.evals.item()),
        "seconds": round(seconds, 3),
        "path": [{key: value for key, value in frame.items() if key != "image"} for frame in frames],
        "settings": {key: value for key, value in settings.items() if value is not None},
        "versions": {"aipo": aipo.__version__, "torch": torch.__version__},
    }


def data_url(x: Tensor) -> str:
    """A picture (3, H, W) or (1, H, W) in [0, 1], as a PNG in a URL."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(x)).decode("ascii")
