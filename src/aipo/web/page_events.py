"""What the controls of a Gradio page can say."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gradio as gr

from aipo.web.events import Check, Events, Function, flat, nothing, number, on_or_off, one_of

__all__ = ["events_of"]


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
