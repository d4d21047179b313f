"""What Gradio keeps for a page: its state, and the messages that it has not fetched yet.

Left alone, Gradio keeps the states of ten thousand pages, 0.1 MB each, and any number of messages.
"""

from __future__ import annotations

import gradio as gr

__all__ = ["forget", "unread"]


def unread(page: gr.Blocks, name: str) -> int | None:
    """How many messages wait to be fetched; None if there is nothing to wait for either."""
    messages = page._queue.pending_messages_per_session.get(name)
    return None if messages is None else messages.qsize()


def forget(page: gr.Blocks, name: str) -> None:
    """Drop all that is kept for a page that is gone."""
    queue = page._queue
    for event_id in queue.pending_event_ids_session.pop(name, ()):
        if event_id in queue.event_ids_to_events:
            queue.event_ids_to_events[event_id].alive = False  # so that it leaves no message any more
    queue.pending_messages_per_session.pop(name, None)
    page.state_holder.session_data.pop(name, None)
    page.state_holder.time_last_used.pop(name, None)
