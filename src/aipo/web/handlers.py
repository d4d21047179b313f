"""What happens when people use the controls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr
from torch import Tensor

from aipo.errors import InputError
from aipo.restore.tasks import task_named
from aipo.web import session
from aipo.web.controls import sample_note
from aipo.web.jobs import Job
from aipo.web.messages import failure, painter_value
from aipo.web.pictures import unpack
from aipo.web.request import Request, parse_mask
from aipo.web.session import SHAPE, AppState

__all__ = ["Handlers"]

SIZE = SHAPE[1:]
EVERY = 0.2  # seconds between two looks at the line


class Handlers:
    """One method per event. What they take and return are values of components, in the order in which `page` says."""

    def __init__(self, state: AppState):
        self.state = state

    def asked_for(
        self,
        chosen: tuple[Tensor, str],
        task: str,
        damage: bool,
        estimate: bool,
        sigma: float,
        factor: int,
        blur: float,
        painted: object = None,
    ) -> Request:
        """What the user asks for."""
        automatic = task == "denoise" and not damage and estimate
        mask = parse_mask(painted.get("mask"), SIZE) if isinstance(painted, dict) and task == "inpaint" else None
        return Request(chosen[0], task, bool(damage), None if automatic else sigma, mask, int(factor), blur)

    def refresh(self, *asked: Any) -> list[Any]:
        """The preview, and which options the task needs."""
        wanted, note = self.asked_for(*asked), asked[0][1]
        return [
            painter_value(wanted, note),
            gr.update(visible=wanted.task == "superres"),
            gr.update(visible=wanted.task == "deblur"),
            gr.update(visible=wanted.task == "denoise" and not wanted.damage),
            gr.update(visible=wanted.sigma is not None),
        ]

    def usual_sigma(self, task: str) -> float:
        """Where the slider of the noise begins for a task."""
        return task_named(task).added_sigma

    def take_sample(self, event: gr.EventData) -> list[Any]:
        """The image with its sentence, and that it is to be damaged."""
        name = event.name
        return [(self.state.samples[name], sample_note(name)), True]

    def take_upload(self, sent: object) -> list[Any]:
        """The image with its sentence, that it is not to be damaged, and the answer to the page."""
        try:
            return [unpack(sent, SIZE), False, {"taken": True}]
        except InputError as error:
            return [gr.skip(), gr.skip(), {"refused": f"Not accepted: {error}."}]

    def begin(self) -> list[Any]:
        """A message for the viewer, and Stop in the place of Restore."""
        return [_waiting(0), gr.update(visible=False), gr.update(visible=True)]

    def restore(self, prior: str, request: gr.Request, *asked: Any) -> Iterator[dict[str, Any]]:
        """The messages of a restoration, for the viewer. The job lives as long as this runs, and no longer."""
        jobs = self.state.jobs
        try:
            job = jobs.begin(_user(request))
        except InputError as error:
            yield failure(error)
            return
        try:
            yield from self._wait_for_turn(job)
            if job.gone.is_set():
                return
            wanted, loaded = self.asked_for(*asked), self.state.prior(prior)
            stop = partial(jobs.is_over, job)
            for message in session.restore(wanted, loaded, stop, self.state.time_limit, self.state.cores):
                if job.gone.is_set():
                    return
                yield message
        except InputError as error:
            yield failure(error)
        finally:
            jobs.end(job)

    def _wait_for_turn(self, job: Job) -> Iterator[dict[str, Any]]:
        """Until a core is free: a message whenever the line has moved."""
        told, cores = 0, self.state.cores.count
        while not self.state.jobs.is_over(job):
            ahead = self.state.jobs.ahead(job)
            if ahead is not None and ahead < cores:
                return
            if ahead is not None and ahead != told:
                yield _waiting(ahead - cores + 1)
                told = ahead
            job.stop.wait(EVERY)

    def end(self) -> list[Any]:
        """Restore in the place of Stop."""
        return [gr.update(visible=True), gr.update(visible=False)]

    def stop(self, request: gr.Request) -> None:
        """End the user's job; what was solved stays."""
        self.state.jobs.stop(_user(request))


def _waiting(ahead: int) -> dict[str, Any]:
    line = f", number {ahead} in line" if ahead else ""
    return {"status": "waiting", "text": f"Waiting for a free core{line} …"}


def _user(request: gr.Request) -> str:
    return str(request.session_hash)
