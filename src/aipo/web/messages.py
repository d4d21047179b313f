"""What a restoration tells the page: plain data, ready for JSON.

    status   "running", "done", "stopped" (by the user or the time limit) or "failed"
    text     one sentence about it
    before   the picture as it was measured; `truth` the clean one, where it is known
    live     the picture of the moment, with lam, chi2 and the evaluations spent
    frames   all lam that were solved so far, each with its picture and numbers
    chosen   which of the frames is the restoration, once lam is chosen

and at the end `facts`, `doubt` (see `confidence`) and `record`, what the JSON file says. Pictures are data URLs.
Before it begins, `painter_value` is what the painter shows.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import aipo
from aipo.choose.lam import EVALS, Choice, choose_lambda
from aipo.errors import InputError
from aipo.images import png_bytes
from aipo.images.metrics import psnr
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem
from aipo.solvers.solution_path import SolutionPath
from aipo.web.confidence import doubt_map, facts
from aipo.web.http import sentence
from aipo.web.request import SEED, Measurement, Request, measure

__all__ = ["Messages", "data_url", "failure", "painter_value"]


def data_url(x: Tensor) -> str:
    """A picture (3, H, W) or (1, H, W) in [0, 1], as a PNG in a URL."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(x)).decode("ascii")


def failure(error: InputError) -> dict[str, Any]:
    """The message about bad input."""
    return {"status": "failed", "text": sentence(error)}


def painter_value(request: Request, note: str, mask: str | None = None) -> dict[str, Any]:
    """What the painter shows: the image as it would be measured. Missing parts are painted over it in the browser.

    Arguments:
        note: one sentence about the image.
        mask: a mask to begin with, as of `mask_text`; None leaves what is painted.
    """
    paint = request.task == "inpaint"
    try:
        # The noise also covers what the brush may hide later.
        shown = measure(Request(request.picture, "denoise", request.damage, request.sigma) if paint else request).before
    except InputError:
        shown = request.picture
    note += " Damaged on purpose." if request.damage else ""
    return {"image": data_url(shown), "mask": mask, "paint": paint, "note": note}


@dataclass(frozen=True)
class Messages:
    """The messages of one restoration, which began at `start` (time.monotonic)."""

    prior: Prior
    request: Request
    measurement: Measurement
    problem: MapProblem
    start: float

    def message(self, status: str, text: str, **more: Any) -> dict[str, Any]:
        """A message with what all of them share."""
        truth = self.measurement.truth
        return {
            "status": status,
            "text": text,
            "before": data_url(self.measurement.before),
            "truth": None if truth is None else data_url(truth),
            "size": list(self.request.picture.shape[1:]),
            "budget": EVALS,
            **more,
        }

    def frame(self, lam: float | None, x: Tensor, **more: Any) -> dict[str, Any]:
        """One picture (3, H, W) with its numbers."""
        truth = self.measurement.truth
        return {
            "lam": lam,
            **more,
            "chi2": self.problem.chi2(x[None]).item(),
            "psnr": None if truth is None else psnr(x[None].clamp(0, 1), truth[None]).item(),
            "image": data_url(x),
        }

    def end(self, path: SolutionPath, why: str) -> dict[str, Any]:
        """The last message: the restoration, chosen from what there is of the path. `why` says who stopped it."""
        seconds = time.monotonic() - self.start
        if not why and path.status[0] != "done":
            return self.message("failed", f"The solver gave up: {path.status[0]}. Is the noise set much too small?")
        if not path.lam.isfinite().any():
            return self.message("stopped", f"{why}, before the first lambda was solved.", frames=[])
        choice = choose_lambda(self.problem, path=path)
        frames, chosen = self._frames(choice)
        image, peak = doubt_map(path, choice.lam.item())
        status = "stopped" if why else "done"
        text = f"{why}; the path so far can be looked at." if why else f"Restored in {seconds:.1f} s."
        return self.message(
            status,
            text,
            frames=frames,
            chosen=chosen,
            # A path that was stopped may not have come to the lam that would have been chosen.
            reached=frames[-1]["chi2"] >= choice.target.item(),
            target=choice.target.item(),
            range=[frames[0]["lam"], frames[-1]["lam"]],
            facts=facts(self.problem, choice),
            doubt={"image": data_url(image), "peak": peak},
            psnr_before=self._psnr_before(),
            record=self._record(choice, frames, chosen, status, seconds),
        )

    def _frames(self, choice: Choice) -> tuple[list[dict[str, Any]], int]:
        """All pictures of the path with the chosen one among them, and which that is."""
        path, lam = choice.path, choice.lam.item()
        numbers = {name: getattr(path, name)[0].tolist() for name in ("lam", "D", "P", "gap")}
        solved = int(path.lam.isfinite().sum())
        frames = [
            self.frame(x=path.x[0, i], **{name: values[i] for name, values in numbers.items()}) for i in range(solved)
        ]
        chosen = sum(frame["lam"] < lam for frame in frames)
        restored = self.frame(lam, choice.result.x[0], D=choice.result.D.item(), P=choice.result.P.item())
        if chosen < solved and abs(frames[chosen]["lam"] / lam - 1) < 1e-4:
            frames[chosen] = {**frames[chosen], **restored}
        else:
            frames.insert(chosen, restored)
        return frames, chosen

    def _psnr_before(self) -> float | None:
        measurement = self.measurement
        if measurement.truth is None:
            return None
        return psnr(measurement.before[None].clamp(0, 1), measurement.truth[None]).item()

    def _record(
        self, choice: Choice, frames: list[dict[str, Any]], chosen: int, status: str, seconds: float
    ) -> dict[str, Any]:
        """What the JSON file says: the restoration, the path, and all that is needed to make them again."""
        result = choice.result
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
            "settings": {key: value for key, value in self._settings().items() if value is not None},
            "versions": {"aipo": aipo.__version__, "torch": torch.__version__},
        }

    def _settings(self) -> dict[str, Any]:
        request = self.request
        missing = int((request.mask == 0).sum()) if request.task == "inpaint" and request.mask is not None else None
        return {
            "task": request.task,
            "damaged_first": request.damage,
            "sigma": self.measurement.sigma,
            "sigma_estimated": request.sigma is None,
            "factor": request.factor if request.task == "superres" else None,
            "blur": request.blur if request.task == "deblur" else None,
            "missing_pixels": missing,
            "seed": SEED if request.damage else None,
            "evaluations_at_most": EVALS,
            "prior": self.prior.name,
            "prior_sha256": self.prior.card.get("sha256"),
        }
