"""The card of a prior: what it must say, checked before anything is built from it.

A card and its weights may come from anybody. So every value has its type and bounds, and the sizes it promises are
compared with the shapes in the weights' file while they are still only numbers.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

from aipo.errors import InputError
from aipo.flows import ARCHITECTURES

__all__ = ["CARD_FORMAT", "MAX_CARD_BYTES", "check_card", "check_sizes", "read_card"]

CARD_FORMAT = 1
MAX_CARD_BYTES = 8_000_000
MAX_DEPTH = 12  # of lists and dictionaries in each other
MAX_TENSORS = 10_000
MAX_PIXELS = 2**24  # of an image
MAX_LEVELS = 16
# What a flow is built of so many times: no prior has more of them than it has tensors.
COUNTS = ("steps", "couplings", "blocks", "layers")
MORE_COUNTS = ("thumbnail_couplings",)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> TypeGuard[float]:
    # Neither NaN nor infinity lies between, nor a whole number that no float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (_whole, "a whole number"),
    "name": (_text, "text"),
    "architecture": (lambda v: _text(v) and v in ARCHITECTURES, f"one of {', '.join(ARCHITECTURES)}"),
    "config": (lambda v: isinstance(v, dict), "a dictionary"),
    "bits": (lambda v: _whole(v) and 0 <= v <= 16, "a whole number from 0 to 16"),
    "offset": (_number, "a finite number"),
    "data": (_text, "text"),
    "license": (_text, "text"),
    "metrics": (lambda v: isinstance(v, dict), "a dictionary"),
    "sha256": (lambda v: _text(v) and len(v) == 64 and set(v) <= set(string.hexdigits), "64 hexadecimal digits"),
}
# A card may also have what was measured of the prior; otherwise it is measured when it is first needed.
MEASURED = ("surrogate", "errors")


def read_card(content: bytes, path: Path) -> dict[str, Any]:
    """A card from its file's content; `InputError` if anything about it is wrong."""
    if len(content) > MAX_CARD_BYTES:
        raise InputError(f"{path}: {len(content)} bytes is too large for a card; the limit is {MAX_CARD_BYTES}")
    try:
        card = json.loads(content)
        deep = _depth(card) > MAX_DEPTH
    except RecursionError:
        deep = True
    except ValueError as error:
        raise InputError(f"{path}: the card is not JSON ({error})") from None
    if deep:
        raise InputError(f"{path}: the card has more than {MAX_DEPTH} lists and dictionaries in each other")
    if isinstance(card, dict) and "licence" in card:
        card.setdefault("license", card.pop("licence"))  # as cards were spelled at first
    check_card(card, path)
    return card


def check_card(card: object, path: Path) -> None:
    """`InputError` unless a card has every field, each of its type."""
    missing = [key for key in FIELDS if key not in card] if isinstance(card, dict) else list(FIELDS)
    if missing or not isinstance(card, dict):
        raise InputError(f"{path}: the card lacks {', '.join(missing)}")
    if card["format"] != CARD_FORMAT:
        raise InputError(f"{path}: card format {_short(card['format'])} is not {CARD_FORMAT}; update aipo")
    for key, (fits, wanted) in FIELDS.items():
        if not fits(card[key]):
            raise InputError(f"{path}: the card's {key} is {_short(card[key])}; it must be {wanted}")
    for key in MEASURED:
        if not _is_measured(card.get(key)):
            raise InputError(f"{path}: the card's {key} is {_short(card[key])}; it must be lists of numbers by name")


def check_sizes(card: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """`InputError` unless the flow that a card describes has tensors of just these shapes.

    The flow is made without its numbers: however large it claims to be, this takes no memory, and hardly any time.
    """
    config = card["config"]
    if len(shapes) > MAX_TENSORS:
        raise InputError(f"{path}: has {len(shapes)} tensors; no prior has more than {MAX_TENSORS}")
    for key, value in config.items():
        if not _is_plain(value):
            raise InputError(f"{path}: the card's {key} is {_short(value)}; it must be numbers")
    if math.prod(_largest(config.get(key, 1)) for key in COUNTS) > len(shapes) or any(
        _largest(config.get(key, 1)) > len(shapes) for key in MORE_COUNTS
    ):
        raise InputError(f"{path}: the card describes more layers than its weights have")
    image_shape = config.get("image_shape", [1])
    if isinstance(image_shape, list) and not 0 < math.prod(_flat(image_shape)) <= MAX_PIXELS:
        raise InputError(f"{path}: the card's image_shape is {_short(image_shape)}; no prior has such images")
    try:
        with torch.device("meta"):
            flow = ARCHITECTURES[card["architecture"]](**config)
    except Exception as error:  # a stranger's numbers can be wrong in more ways than have names
        raise InputError(f"{path}: the card describes no flow we know ({_short(error)})") from None
    wanted = {name: tuple(t.shape) for name, t in flow.state_dict().items()}
    if wanted != shapes:
        name = min(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
        raise InputError(
            f"{path}: the card does not fit its weights: {name} should be {wanted.get(name)}, is {shapes.get(name)}"
        )


def _depth(value: object) -> int:
    """How many lists and dictionaries are in each other."""
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def _is_plain(value: object) -> bool:
    """Whether a value is a finite number, or a short list of such."""
    if isinstance(value, list):
        return len(value) <= MAX_LEVELS and all(map(_is_plain, value))
    return _number(value) and abs(value) < 2**63


def _is_measured(value: object) -> bool:
    """Whether a value is absent, or lists of finite numbers by name."""
    return value is None or (isinstance(value, dict) and all(map(_number, _flat(list(value.values())))))


def _flat(value: Any) -> list[float]:
    return [number for part in value for number in _flat(part)] if isinstance(value, list) else [value]


def _largest(value: Any) -> float:
    return max(_flat(value), default=0)


def _short(value: object) -> str:
    text = " ".join((str(value) if isinstance(value, Exception) else repr(value)).split())
    return text if len(text) <= 80 else text[:77] + "..."
