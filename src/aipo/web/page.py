"""The page: its theme, what happens when which control is used, what may be said there, and what Gradio keeps for it.

Gradio lays out the controls, keeps the queue and streams the messages. The two parts that people touch most, the brush
and the viewer, are components of our own (painter.js, viewer.js). They work in the browser alone, so painting and
moving λ never wait for the server.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gradio as gr

from aipo.web.controls import Controls, lay_out
from aipo.web.events import Check, Events, Function, flat, nothing, number, on_or_off, one_of
from aipo.web.handlers import Handlers
from aipo.web.session import AppState

__all__ = ["build", "events_of", "forget", "theme", "unread"]

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# Not queued: a preview must not wait behind restorations, nor be refused because too many of them wait.
AT_ONCE = {**QUIET, "queue": False}


def build(state: AppState, whole: bool = False) -> gr.Blocks:
    """The whole page with its events; `whole` if there is another one, for photographs."""
    with gr.Blocks(title="AIPO: restore a face", analytics_enabled=False, delete_cache=(600, 600)) as page:
        controls, handlers = lay_out(state, whole), Handlers(state)
        _connect_preview(controls, handlers)
        _connect_restoration(controls, handlers)
    # `state.jobs` says when there are too many; this limit only stops a flood.
    return page.queue(max_size=10 * state.jobs.limit, api_open=False)


def _connect_preview(controls: Controls, handlers: Handlers) -> None:
    c = controls
    refresh: dict[str, Any] = {"fn": handlers.refresh, "inputs": c.asked, "outputs": c.preview, **AT_ONCE}
    c.source.pick(handlers.take_sample, None, [c.image, c.damage], **AT_ONCE).then(**refresh)
    c.source.upload(handlers.take_upload, c.source, [c.image, c.damage, c.source], **AT_ONCE).then(**refresh)
    c.task.input(handlers.usual_sigma, c.task, c.sigma, **AT_ONCE).then(**refresh)
    changes = [c.damage.input, c.estimate.input, c.sigma.release, c.factor.input, c.blur.release]
    gr.on(changes, trigger_mode="always_last", **refresh)


def _connect_restoration(controls: Controls, handlers: Handlers) -> None:
    c = controls
    begun = c.start.click(handlers.begin, None, [c.viewer, c.start, c.stop], **AT_ONCE)
    # No limit of Gradio's: `state.jobs` says whose turn it is.
    restored = begun.then(handlers.restore, [c.prior, *c.asked, c.painter], c.viewer, concurrency_limit=None, **QUIET)
    restored.then(handlers.end, None, [c.start, c.stop], **AT_ONCE)
    c.stop.click(handlers.stop, None, None, **AT_ONCE)


def events_of(page: gr.Blocks, samples: Collection[str]) -> Events:
    """The events of a page on which a click may carry the name of a sample."""
    functions = {
        index: Function(
            values=[_check_of(control) for control in function.inputs],
            queued=function.queue,
            names=samples if function.collects_event_data else None,
        )
        for index, function in page.fns.items()
    }
    return Events(functions, frozenset(page.blocks))


def _check_of(control: Any) -> Check:
    label = getattr(control, "label", None) or control.elem_id
    if isinstance(control, gr.Slider):
        return number(label, control.minimum, control.maximum)
    if isinstance(control, gr.Radio | gr.Dropdown):
        return one_of(label, [choice for _, choice in control.choices])
    if isinstance(control, gr.Checkbox):
        return on_or_off(label)
    if isinstance(control, gr.HTML):
        return flat
    if isinstance(control, gr.State):
        return nothing
    raise TypeError(f"nothing is known of what {type(control).__name__} can say; teach {__name__}")


def unread(page: gr.Blocks, name: str) -> int | None:
    """How many messages wait to be fetched; None if there is nothing to wait for either."""
    messages = page._queue.pending_messages_per_session.get(name)
    return None if messages is None else messages.qsize()


def forget(page: gr.Blocks, name: str) -> None:
    """Drop all that is kept for a page that is gone: its state, and the messages that it has not fetched yet.

    Left alone, Gradio keeps the states of ten thousand pages, 0.1 MB each, and any number of messages.
    """
    queue = page._queue
    for event_id in queue.pending_event_ids_session.pop(name, ()):
        if event_id in queue.event_ids_to_events:
            queue.event_ids_to_events[event_id].alive = False  # so that it leaves no message any more
    queue.pending_messages_per_session.pop(name, None)
    page.state_holder.session_data.pop(name, None)
    page.state_holder.time_last_used.pop(name, None)


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
