"""Connections that are silent, trickle, do not read, or are too many: all of them end, and others are served."""

import http.client
import socket
import time

import pytest

pytest.importorskip("uvicorn", reason="the extra app is not installed")

from aipo.web import connections
from aipo.web import http as exchange
from aipo.web.events import Events
from aipo.web.guard import Guard
from aipo.web.jobs import Cores, Jobs
from aipo.web.pictures import Pictures
from aipo.web.visitors import Visitors
from app_client import PATIENCE, serving

SHORT = 0.3  # seconds, in the place of ten or sixty
HEAD = b"POST /picture HTTP/1.1\r\nHost: localhost\r\nCookie: aipo=" + b"a" * 43 + b"\r\n"


async def large_page(scope, receive, send):
    """Stands for the page; more than the system keeps for a client that does not read."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(20_000_000)})
    else:
        for _ in range(2):
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_SECONDS", SHORT)
    monkeypatch.setattr(connections, "READ_SECONDS", SHORT)
    monkeypatch.setattr(exchange, "GRACE", SHORT)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    parts = Events({}, ()), Visitors(9, print), Pictures((64, 64), Cores(1)), Jobs(9), lambda _: None
    with serving(Guard(large_page, *parts)) as client:
        yield client


def connect(app):
    host, port = app.address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def until_closed(connection, trickle=b""):
    """All that comes until the other side closes, while some bytes are sent now and then."""
    connection.settimeout(SHORT / 10)
    received, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if trickle:
                connection.sendall(trickle)
            piece = connection.recv(1 << 20)
            if not piece:
                return received
            received += piece
        except TimeoutError:
            continue
        except OSError:  # closed while something was still on its way
            return received
    raise AssertionError("it was never closed")


@pytest.mark.parametrize(
    ("begin", "trickle"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"x"),
        (b"G", b""),
        (b"\r\n", b""),
        (b"GET /robots HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: ", b"x"),
    ],
)
def test_a_request_that_is_never_complete_ends(app, begin, trickle):
    with connect(app) as connection:
        connection.sendall(begin)
        until_closed(connection, trickle)


@pytest.mark.parametrize("trickle", [b"", b"x"])
@pytest.mark.parametrize("length", [b"1000", b"19000000"])
def test_a_body_that_trickles_is_answered_with_408(app, length, trickle):
    with connect(app) as connection:
        connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n")
        answer = until_closed(connection, trickle)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"too slowly" in answer
    assert app.ask("/")[0] == 200


def test_a_body_in_chunks_is_refused_at_once(app):
    with connect(app) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 411 ")


def test_who_does_not_read_is_cut_off(app):
    """Twenty of them at a time, which is all there may be: the next ones are served nevertheless."""
    for _ in range(2):
        idle = []
        for _ in range(20):
            idle.append(connect(app))
            idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for_answer(app)
        for connection in idle:
            connection.close()


def test_too_many_connections_are_turned_away(app, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_SECONDS", 10 * PATIENCE)
    silent = [connect(app) for _ in range(100)]
    closed, end = set(), time.monotonic() + PATIENCE
    while len(closed) < 80 and time.monotonic() < end:
        closed |= {i for i, connection in enumerate(silent) if is_closed(connection)}
    assert sorted(closed) == list(range(20, 100))  # whoever came late
    for connection in silent:
        connection.close()
    wait_for_answer(app)


def is_closed(connection):
    connection.settimeout(0.001)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def wait_for_answer(app):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            assert app.ask("/robots.txt")[0] == 200
            return
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    raise AssertionError("it was never served")


def test_connections_are_kept_for_several_requests(app):
    connection = http.client.HTTPConnection(app.address, timeout=PATIENCE)
    for _ in range(3):
        connection.request("GET", "/")
        assert len(connection.getresponse().read()) == 20_000_000
    connection.close()
