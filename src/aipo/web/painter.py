"""The image in the painter (painter.js), and the mask that people paint on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.web.messages import data_url
from aipo.web.request import Request, measure

__all__ = ["mask_text", "painter_value", "parse_mask", "scratches"]


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


def scratches(size: tuple[int, int] = (64, 64)) -> Tensor:
    """A mask (1, H, W) to begin with: two scratches and a stain."""
    rows, columns = torch.meshgrid(*(torch.arange(n) / n for n in size), indexing="ij")
    missing = (columns - 0.9 * rows - 0.12).abs() < 0.035
    missing |= (columns + 0.35 * rows - 0.95).abs() < 0.03
    missing |= (columns - 0.42).square() + (rows - 0.72).square() < 0.1**2
    return (~missing).float()[None]


def parse_mask(text: object, size: tuple[int, int]) -> Tensor:
    """A mask (1, H, W) from the page: one character for each pixel, 0 where it is missing."""
    height, width = size
    if not isinstance(text, str) or len(text) != height * width or set(text) - set("01"):
        raise InputError(f"the mask must have {height * width} characters, each 0 or 1; reload the page")
    return torch.tensor([float(c) for c in text]).view(1, height, width)


def mask_text(mask: Tensor) -> str:
    """The inverse of `parse_mask`."""
    return "".join(str(int(v)) for v in mask.flatten().tolist())
