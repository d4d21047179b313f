"""The page: what happens when which control is used.

Gradio lays out the controls, keeps the queue and streams the messages. The two parts that people touch most, the brush
and the viewer, are components of our own (painter.js, viewer.js). They work in the browser alone, so painting and
moving λ never wait for the server.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from aipo.web.controls import Controls, lay_out
from aipo.web.handlers import Handlers
from aipo.web.state import AppState

__all__ = ["build"]

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# Not queued: a preview must not wait behind restorations, nor be refused because too many of them wait.
AT_ONCE = {**QUIET, "queue": False}


def build(state: AppState) -> gr.Blocks:
    """The whole page with its events."""
    with gr.Blocks(title="AIPO: restore a face", analytics_enabled=False, delete_cache=(600, 600)) as page:
        controls, handlers = lay_out(state), Handlers(state)
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
