"""The page: pictures and questions on the left, the restoration on the right.

Gradio lays out the controls, keeps the queue and streams the messages. The two parts that people touch most, the brush
and the viewer, are components of our own (painter.js, viewer.js): they work in the browser alone, so that painting and
moving lam never wait for the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import gradio as gr
from torch import Tensor

from aipo import samples
from aipo.errors import InputError
from aipo.images import to_uint8
from aipo.prior import Prior
from aipo.tasks import FACTORS, task_named
from aipo.web import session
from aipo.web.jobs import Cores, Jobs
from aipo.web.mask import mask_text, parse_mask, scratches
from aipo.web.session import Wish, data_url, measure
from aipo.web.upload import read_upload, sent_bytes
from aipo.zoo import load_prior, prior_names

__all__ = ["Desk", "build", "style", "theme"]

SHAPE = (3, 64, 64)  # of the embedded priors and the samples
QUESTIONS = {
    "denoise": "Noise",
    "inpaint": "Missing parts",
    "superres": "Too few pixels",
    "deblur": "Blur",
    "colorize": "No colour",
}
ADDED_NOISE = 0.1  # to a clean picture that is to be denoised
QUEUE = 24  # jobs that may run or wait; beyond that people are told to come back


class Desk:
    """What the handlers share: priors, sample pictures, and who computes at the moment."""

    def __init__(self, prior: str, time_limit: float):
        loaded = load_prior(prior)
        if loaded.image_shape != SHAPE:
            raise InputError(f"the app's pictures have shape {SHAPE}, the prior takes {loaded.image_shape}")
        self.default = loaded.name
        self.time_limit = time_limit
        self.cores, self.jobs = Cores(), Jobs(QUEUE)
        # By name: where a file lies is nobody's business. The others are loaded when they are first asked for.
        self._loaded = {self.default: loaded}
        self.priors = sorted({*prior_names(), self.default})
        self.samples = _samples(loaded)

    def prior(self, name: str) -> Prior:
        if name not in self.priors:
            raise InputError(f"unknown prior {name}; choose from {', '.join(self.priors)}")
        if name not in self._loaded:
            self._loaded[name] = load_prior(name)
        return self._loaded[name]

    def warm_up(self) -> None:
        """The first evaluation packs weights and wakes threads; nobody should have to wait for that."""
        wish = Wish(self.samples["astronaut"], "inpaint", True, 0.02, scratches())
        for messages, _ in enumerate(session.restore(wish, self.prior(self.default), lambda: False, 30, self.cores)):
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


CAPTIONS = {
    "astronaut": "a real face",
    "drawn-1": "drawn from the prior",
    "drawn-2": "drawn from the prior",
    "cat": "no face at all",
}


def _note(name: str) -> str:
    return f"{name.capitalize()}: {CAPTIONS[name]}."


def _painter_value(wish: Wish, note: str, mask: str | None = None) -> dict[str, Any]:
    """What the painter shows: the picture as it would be measured. Where things are missing it is painted over."""
    paint = wish.task == "inpaint"
    try:
        # The noise also covers what the brush may hide later.
        shown = measure(Wish(wish.picture, "denoise", wish.damage, wish.sigma) if paint else wish).before
    except InputError:
        shown = wish.picture
    note += " Damaged on purpose." if wish.damage else ""
    return {"image": data_url(shown), "mask": mask, "paint": paint, "note": note}


def build(desk: Desk) -> gr.Blocks:
    """The whole page with its events."""
    size = SHAPE[1:]
    first = Wish(desk.samples["astronaut"], "denoise", True, ADDED_NOISE)

    with gr.Blocks(title="AIPO: restore a face", analytics_enabled=False, delete_cache=(600, 600)) as page:
        picture = gr.State((desk.samples["astronaut"], _note("astronaut")), time_to_live=3600)
        gr.HTML(_asset("header.html"), elem_id="header")
        with gr.Row(elem_id="columns"):
            with gr.Column(scale=2, min_width=300, elem_id="controls"):
                gr.HTML("<h2>1. A picture of a face</h2>")
                source = gr.HTML(
                    html_template=_source(desk.samples),
                    js_on_load=_asset("source.js"),
                    apply_default_css=False,
                    elem_id="source",
                )
                painter = gr.HTML(
                    value=_painter_value(first, _note("astronaut"), mask_text(scratches(size))),
                    html_template=_asset("painter.html"),
                    apply_default_css=False,
                    js_on_load=_asset("painter.js"),
                    elem_id="painter",
                )
                gr.HTML("<h2>2. What is wrong with it?</h2>")
                task = gr.Radio(
                    [(label, name) for name, label in QUESTIONS.items()],
                    value="denoise",
                    show_label=False,
                    container=False,
                    elem_id="task",
                )
                factor = gr.Radio(
                    [(f"{f} times", f) for f in FACTORS], value=4, label="Enlarge", visible=False, elem_id="factor"
                )
                blur = gr.Slider(
                    0.5,
                    3,
                    1.5,
                    step=0.1,
                    label="Width of the blur, in pixels",
                    buttons=[],
                    visible=False,
                    elem_id="blur",
                )
                damage = gr.Checkbox(
                    True,
                    label="The picture is clean: damage it first",
                    info="To try things out. The original is kept to compare with.",
                    elem_id="damage",
                )
                estimate = gr.Checkbox(
                    True, label="Estimate the noise from the picture", visible=False, elem_id="estimate"
                )
                sigma = gr.Slider(
                    0.005,
                    0.3,
                    ADDED_NOISE,
                    step=0.005,
                    label="Noise (sigma on 0..1)",
                    buttons=[],
                    elem_id="sigma",
                )
                with gr.Accordion("Prior", open=False, elem_id="more"):
                    prior = gr.Dropdown(
                        desk.priors,
                        value=desk.default,
                        show_label=False,
                        container=False,
                        info="The small one is the fastest, the others restore better.",
                        elem_id="prior",
                    )
                with gr.Row(elem_id="go"):
                    start = gr.Button("Restore", variant="primary", elem_id="restore")
                    halt = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
            with gr.Column(scale=5, min_width=300, elem_id="outcome"):
                viewer = gr.HTML(
                    html_template=_asset("viewer.html"),
                    js_on_load=_asset("viewer.js"),
                    apply_default_css=False,
                    elem_id="viewer",
                )

        def wish_of(
            chosen: tuple[Tensor, str],
            task: str,
            damage: bool,
            estimate: bool,
            sigma: float,
            factor: int,
            blur: float,
            painted: object = None,
        ) -> Wish:
            automatic = task == "denoise" and not damage and estimate
            mask = parse_mask(painted.get("mask"), size) if isinstance(painted, dict) and task == "inpaint" else None
            return Wish(chosen[0], task, bool(damage), None if automatic else sigma, mask, int(factor), blur)

        def refresh(*asked: Any) -> list[Any]:
            """The preview and the options that the task needs."""
            wish, note = wish_of(*asked), asked[0][1]
            return [
                _painter_value(wish, note),
                gr.update(visible=wish.task == "superres"),
                gr.update(visible=wish.task == "deblur"),
                gr.update(visible=wish.task == "denoise" and not wish.damage),
                gr.update(visible=wish.sigma is not None),
            ]

        def usual_noise(task: str) -> float:
            usual = task_named(task).sigma
            return ADDED_NOISE if usual is None else usual

        def take_sample(event: gr.EventData) -> list[Any]:
            name = getattr(event, "name", None)
            if name not in desk.samples:
                raise gr.Error("There is no such sample.", print_exception=False)
            return [(desk.samples[name], _note(name)), True]

        def take_upload(sent: object) -> list[Any]:
            try:
                return [read_upload(sent_bytes(sent), size), False, {"taken": True}]
            except InputError as error:
                return [gr.skip(), gr.skip(), {"refused": f"Not taken: {error}."}]

        def begin(request: gr.Request) -> list[Any]:
            try:
                desk.jobs.begin(str(request.session_hash))
            except InputError as error:
                return [session.failure(error), gr.skip(), gr.skip()]
            waiting = {"status": "waiting", "text": "Waiting for a free core …"}
            return [waiting, gr.update(visible=False), gr.update(visible=True)]

        def restore(prior: str, request: gr.Request, *asked: Any) -> Iterator[dict[str, Any]]:
            user = str(request.session_hash)
            try:
                stop = desk.jobs.current(user)
            except InputError as error:
                yield session.failure(error)
                return
            try:
                wish, loaded = wish_of(*asked), desk.prior(prior)
                yield from session.restore(wish, loaded, stop.is_set, desk.time_limit, desk.cores)
            except InputError as error:
                yield session.failure(error)
            finally:
                stop.set()
                desk.jobs.end(user, stop)

        def stop_job(request: gr.Request) -> None:
            desk.jobs.stop(str(request.session_hash))

        def leave(request: gr.Request) -> None:
            desk.jobs.leave(str(request.session_hash))

        asked = [picture, task, damage, estimate, sigma, factor, blur]
        preview = [painter, factor, blur, estimate, sigma]
        # Not queued: a preview must not wait behind restorations, nor be refused because too many of them wait.
        quick: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

        source.pick(take_sample, None, [picture, damage], **quick).then(refresh, asked, preview, **quick)
        source.upload(take_upload, source, [picture, damage, source], **quick).then(refresh, asked, preview, **quick)
        task.input(usual_noise, task, sigma, **quick).then(refresh, asked, preview, **quick)
        gr.on(
            [damage.input, estimate.input, sigma.release, factor.input, blur.release],
            refresh, asked, preview, trigger_mode="always_last", **quick,
        )  # fmt: skip
        (
            start.click(begin, None, [viewer, start, halt], **quick)
            .then(
                restore,
                [prior, *asked, painter],
                viewer,
                show_progress="hidden",
                api_visibility="private",
                concurrency_limit=desk.cores.count,
                concurrency_id="restore",
            )
            .then(lambda: [gr.update(visible=True), gr.update(visible=False)], None, [start, halt], **quick)
        )
        halt.click(stop_job, None, None, **quick)
        page.unload(leave)
    # The desk counts jobs and says when there are too many; this only keeps a flood of forged ones from growing.
    return page.queue(max_size=10 * QUEUE, api_open=False)


def _source(pictures: dict[str, Tensor]) -> str:
    thumbs = "".join(
        f'<button type="button" data-name="{name}" title="{name}: {CAPTIONS[name]}">'
        f'<img src="{data_url(x)}" alt="{name}: {CAPTIONS[name]}"></button>'
        for name, x in pictures.items()
    )
    return f'<div class="source">{thumbs}{_asset("upload.html")}</div>'


def _asset(name: str) -> str:
    return (files("aipo.web") / name).read_text(encoding="utf-8")


def style() -> str:
    return _asset("page.css")


def theme() -> gr.themes.Base:
    """Quiet, and with the system's own fonts: nothing is loaded from elsewhere."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif"],
        font_mono=["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"],
    ).set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#14181d",
        block_border_width="0px",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_shadow="none",
        block_padding="0",
        button_primary_background_fill="#1f5fbf",
        button_primary_background_fill_hover="#174d9e",
        button_primary_text_color="#ffffff",
        button_primary_background_fill_dark="#3a7bdc",
        button_primary_background_fill_hover_dark="#5a93e6",
        button_primary_text_color_dark="#ffffff",
    )
