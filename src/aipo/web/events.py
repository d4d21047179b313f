"""What the page sends when a control is used, checked against what its controls can say.

Gradio answers a value that a control cannot have with a traceback. Here such a request is refused before Gradio sees
it, so that every traceback in the log is a bug of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from aipo.errors import InputError
from aipo.web.visitors import SESSION

__all__ = ["Check", "Events", "Function", "flat", "nothing", "number", "on_or_off", "one_of"]

KEYS = {"data", "event_data", "fn_index", "trigger_id", "session_hash"}
LARGEST = 1e6  # no number of the page is near it

Check = Callable[[object], None]  # `InputError` if a control cannot have this value


@dataclass(frozen=True)
class Function:
    """One function of the page.

    Attributes:
        values: a check for each value that it takes.
        queued: by which of Gradio's two doors it is called.
        names: what a click that it reacts to may carry as its name; None if it reacts to no such click.
    """

    values: Sequence[Check] = ()
    queued: bool = False
    names: Collection[str] | None = None


@dataclass(frozen=True)
class Events:
    """The events of a page: its functions and the ids of its controls."""

    functions: dict[int, Function]
    controls: Collection[int]

    def parse(self, body: bytes, queued: bool) -> dict[str, Any]:
        """The event in the body of a request, which came by the door of `queued` functions or by the other.

        Raises:
            InputError: the page would not send this.
        """
        event = _parsed(body)
        if not isinstance(event, dict) or not {"data", "fn_index", "session_hash"} <= event.keys() <= KEYS:
            raise InputError("this is not an event of the page; reload it")
        session, index, control = event["session_hash"], event["fn_index"], event.get("trigger_id")
        if not isinstance(session, str) or not SESSION.fullmatch(session):
            raise InputError("the event belongs to no page; reload it")
        if type(index) is not int or index not in self.functions or self.functions[index].queued is not queued:
            raise InputError("the page has no such function; reload it")
        if control is not None and (type(control) is not int or control not in self.controls):
            raise InputError("the page has no such control; reload it")
        _check_details(self.functions[index], event.get("event_data"))
        _check_values(self.functions[index], event["data"])
        return event


def _parsed(body: bytes) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        event = json.loads(body, parse_constant=refuse)
        json.dumps(event, ensure_ascii=False).encode()  # half a character is valid JSON, but no text
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    return event


def _check_details(function: Function, details: object) -> None:
    if function.names is None:
        if details not in (None, {}):
            raise InputError("this is not an event of the page; reload it")
        return
    name = details.get("name") if isinstance(details, dict) and len(details) == 1 else None
    if not isinstance(name, str) or name not in function.names:
        raise InputError("there is no such sample")


def _check_values(function: Function, values: object) -> None:
    if not isinstance(values, list) or len(values) != len(function.values):
        raise InputError(f"the event must have {len(function.values)} values; reload the page")
    for check, value in zip(function.values, values, strict=True):
        check(value)


def number(label: str, low: float, high: float) -> Check:
    """A number from `low` to `high`, up to rounding."""
    slack = 1e-9 * (high - low)

    def check(value: object) -> None:
        if type(value) not in (int, float) or not low - slack <= value <= high + slack:  # type: ignore[operator]
            raise InputError(f"{label}: give a number from {low} to {high}")

    return check


def one_of(label: str, choices: Sequence[object]) -> Check:
    """One of the choices, and of its type: to Python, true is 1."""

    def check(value: object) -> None:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise InputError(f"{label}: choose one that is offered")

    return check


def on_or_off(label: str) -> Check:
    """True or false."""

    def check(value: object) -> None:
        if not isinstance(value, bool):
            raise InputError(f"{label}: this is either on or off")

    return check


def flat(value: object) -> None:
    """Named texts and numbers, or nothing: what our own parts of the page send. Their handlers look at it closer."""
    if value is not None and not (isinstance(value, dict) and all(map(_is_plain, value.values()))):
        raise InputError("this is not what the page sends; reload it")


def nothing(value: object) -> None:
    """For what the server keeps itself."""
    if value is not None:
        raise InputError("the page does not send this value; reload it")


def _is_plain(value: object) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < LARGEST
    return value is None or isinstance(value, str | bool)
