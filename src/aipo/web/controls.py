"""What is on the page: pictures and questions on the left, the restoration on the right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import gradio as gr
from torch import Tensor

from aipo.restore.tasks import FACTORS, TASKS, Damage
from aipo.web.messages import data_url, painter_value
from aipo.web.request import TASKS as WEB_TASKS
from aipo.web.request import Request, mask_text, scratches
from aipo.web.session import CAPTIONS, SHAPE, AppState

__all__ = ["Controls", "asset", "lay_out", "sample_note"]

FIRST_SAMPLE, FIRST_TASK = "astronaut", "denoise"


def asset(name: str) -> str:
    """The text of a file in this folder."""
    return (files("aipo.web") / name).read_text(encoding="utf-8")


def _part(name: str) -> str:
    """What stands under a name in page.html."""
    parts = re.split(r"<!-- ([\w-]+) -->\n", asset("page.html"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


@dataclass(frozen=True)
class Controls:
    """The components of the page, and the image that was chosen with a sentence about it."""

    image: gr.State
    source: gr.HTML
    painter: gr.HTML
    task: gr.Radio
    factor: gr.Radio
    blur: gr.Slider
    damage: gr.Checkbox
    estimate: gr.Checkbox
    sigma: gr.Slider
    prior: gr.Dropdown
    start: gr.Button
    stop: gr.Button
    viewer: gr.HTML

    @property
    def asked(self) -> list[Any]:
        """What `Handlers.asked_for` takes, in its order."""
        return [self.image, self.task, self.damage, self.estimate, self.sigma, self.factor, self.blur]

    @property
    def preview(self) -> list[Any]:
        """What `Handlers.refresh` returns, in its order."""
        return [self.painter, self.factor, self.blur, self.estimate, self.sigma]


def lay_out(state: AppState, whole: bool) -> Controls:
    """Place everything on the page; called within `gr.Blocks`. `whole` if there is a page for photographs."""
    image = gr.State((state.samples[FIRST_SAMPLE], sample_note(FIRST_SAMPLE)), time_to_live=3600)
    gr.HTML(_part("header") + _part("photographs" if whole else "faces-only"), elem_id="header")
    with gr.Row(elem_id="columns"):
        with gr.Column(scale=2, min_width=300, elem_id="controls"):
            gr.HTML("<h2>1. A picture of a face</h2>")
            chosen = _image_controls(state)
            gr.HTML("<h2>2. What is wrong with it?</h2>")
            chosen |= _task_controls() | _noise_controls() | _prior_control(state)
            with gr.Row(elem_id="go"):
                start = gr.Button("Restore", variant="primary", elem_id="restore")
                stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
        with gr.Column(scale=5, min_width=300, elem_id="outcome"):
            viewer = gr.HTML(
                html_template=_part("viewer"),
                js_on_load=asset("viewer.js"),
                apply_default_css=False,
                elem_id="viewer",
            )
    return Controls(image=image, start=start, stop=stop, viewer=viewer, **chosen)


def sample_note(name: str) -> str:
    """One sentence about a sample."""
    return f"{name.capitalize()}: {CAPTIONS[name]}."


def _image_controls(state: AppState) -> dict[str, Any]:
    first = Request(state.samples[FIRST_SAMPLE], FIRST_TASK, True, TASKS[FIRST_TASK].added_sigma)
    source = gr.HTML(
        html_template=_source(state.samples),
        js_on_load=asset("source.js"),
        apply_default_css=False,
        elem_id="source",
    )
    painter = gr.HTML(
        value=painter_value(first, sample_note(FIRST_SAMPLE), mask_text(scratches(SHAPE[1:]))),
        html_template=_part("painter"),
        js_on_load=asset("painter.js"),
        apply_default_css=False,
        elem_id="painter",
    )
    return {"source": source, "painter": painter}


def _task_controls() -> dict[str, Any]:
    task = gr.Radio(
        [(TASKS[name].symptom, name) for name in WEB_TASKS],
        value=FIRST_TASK,
        show_label=False,
        container=False,
        elem_id="task",
    )
    factor = gr.Radio(
        [(f"{f} times", f) for f in FACTORS if SHAPE[1] % f == 0],
        value=max(FACTORS),
        label="Enlarge",
        visible=False,
        elem_id="factor",
    )
    blur = gr.Slider(
        0.5,
        3,
        Damage.blur,
        step=0.1,
        label="Width of the blur, in pixels",
        buttons=[],
        visible=False,
        elem_id="blur",
    )
    return {"task": task, "factor": factor, "blur": blur}


def _noise_controls() -> dict[str, Any]:
    damage = gr.Checkbox(
        True,
        label="The picture is clean: damage it first",
        info="To try things out. The original is kept for comparison.",
        elem_id="damage",
    )
    estimate = gr.Checkbox(True, label="Estimate the noise from the picture", visible=False, elem_id="estimate")
    sigma = gr.Slider(
        0.005,
        0.3,
        TASKS[FIRST_TASK].added_sigma,
        step=0.005,
        label="Noise (sigma, for pixels in 0..1)",
        buttons=[],
        elem_id="sigma",
    )
    return {"damage": damage, "estimate": estimate, "sigma": sigma}


def _prior_control(state: AppState) -> dict[str, Any]:
    with gr.Accordion("Prior", open=False, elem_id="more"):
        prior = gr.Dropdown(
            state.priors,
            value=state.default,
            show_label=False,
            container=False,
            info="The small one is the fastest, the others restore better.",
            elem_id="prior",
        )
    return {"prior": prior}


def _source(images: dict[str, Tensor]) -> str:
    thumbs = "".join(
        f'<button type="button" data-name="{name}" title="{name}: {CAPTIONS[name]}">'
        f'<img src="{data_url(x)}" alt="{name}: {CAPTIONS[name]}"></button>'
        for name, x in images.items()
    )
    return f'<div class="source">{thumbs}{_part("upload")}</div>'
