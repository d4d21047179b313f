"""The files of the page that are not Python, and its theme."""

from __future__ import annotations

from importlib.resources import files

import gradio as gr

__all__ = ["asset", "theme"]


def asset(name: str) -> str:
    """The text of a file in this folder."""
    return (files("aipo.web") / name).read_text(encoding="utf-8")


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
