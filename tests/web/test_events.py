"""Events of the page: what its controls can say gets through, and nothing else."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aipo.errors import InputError
from aipo.web.events import Events, Function, flat, nothing, number, on_or_off, one_of

VALUES = [number("Noise", 0.005, 0.3), one_of("Enlarge", [2, 4]), on_or_off("Damage"), flat, nothing]
GOOD = [0.1, 4, True, {"mask": "01", "paint": False, "size": 3, "note": None}, None]
EVENTS = Events({0: Function(VALUES), 1: Function(queued=True), 2: Function(names={"cat"})}, {7, 8})
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


def event(**changes):
    whole = {"data": GOOD, "fn_index": 0, "session_hash": "abc", "trigger_id": 7, "event_data": None, **changes}
    return {key: value for key, value in whole.items() if value is not ...}


def parse(content, queued=False):
    return EVENTS.parse(content if isinstance(content, bytes) else json.dumps(content).encode(), queued)


@pytest.mark.parametrize(
    ("content", "queued"),
    [
        (event(), False),
        (event(trigger_id=..., event_data=...), False),
        (event(trigger_id=None, event_data={}), False),
        (event(data=[0.005, 2, False, {}, None]), False),
        (event(data=[0.1 + 0.2, 2, False, None, None]), False),  # 0.30000000000000004
        (event(data=[], fn_index=1), True),
        (event(data=[], fn_index=2, event_data={"name": "cat"}), False),
    ],
)
def test_what_the_page_sends(content, queued):
    assert parse(content, queued) == content


@pytest.mark.parametrize(
    ("position", "values"),
    [
        (0, [0.0, 0.31, -1, 1e400, 10**400, "0.1", True, None, [0.1], {}]),
        (1, [3, 2.0, "2", True, None, [2], {"2": 2}]),
        (2, ["true", 1, 0, None, []]),
        (3, [[], "x", 1, True, {"path": {"meta": 1}}, {"a": []}, {"a": 10**400}, {"a": 1e7}]),
        (4, [0, "", [], {}, "state"]),
    ],
)
def test_values_that_no_control_has(position, values):
    for value in values:
        data = [*GOOD[:position], value, *GOOD[position + 1 :]]
        with pytest.raises(InputError) as caught:
            parse(json.dumps(event(data=data)).replace("Infinity", "1e400").encode())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        event(data=...),
        event(fn_index=...),
        event(session_hash=...),
        event(data=None),
        event(data={}),
        event(data=GOOD[:-1]),
        event(data=[*GOOD, None]),
        *(event(fn_index=index) for index in (None, -1, 3, True, "0", 0.0, [0], 10**30)),
        event(fn_index=1, data=[]),  # which has another door
        *(event(session_hash=session) for session in (None, "", 7, [], "a" * 65, "a b", "../x", "ä", "a\n")),
        *(event(trigger_id=control) for control in (1, "7", True, [7], {}, 7.0)),
        *(event(event_data=details) for details in ("x", [], 0, False, {"name": "cat"})),
        *(
            event(data=[], fn_index=2, event_data=details)
            for details in (None, {}, {"name": "dog"}, {"name": ["cat"]}, {"name": "cat", "x": 1}, ["cat"], "cat")
        ),
        *(event(**{key: 1}) for key in ("event_id", "simple_format", "batched", "oauth_token", "request")),
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"1" * 5000,
        json.dumps(event()).replace("0.1", "NaN").encode(),
        json.dumps(event(session_hash="x")).replace('"x"', r'"\ud800"').encode(),
        json.dumps(event(data=[*GOOD[:3], {"note": "x"}, None])).replace('"x"', r'"\ud800"').encode(),
    ],
)
def test_events_that_no_page_sends(content):
    with pytest.raises(InputError) as caught:
        parse(content)
    assert "\n" not in str(caught.value)


@given(ANYTHING)
@example({"data": [{}], "fn_index": {}, "session_hash": {}})
def test_anything_else_is_refused_in_one_line(content):
    for whole in (content, event(data=content), event(fn_index=content), event(event_data=content)):
        try:
            parse(whole)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_what_is_passed_on_was_read_once():
    """Two values under one name: the one that was checked counts."""
    twice = b'{"data": [], "fn_index": 2, "fn_index": 1, "session_hash": "a"}'
    assert parse(twice, queued=True)["fn_index"] == 1
