"""A request and its answer: how a body is received, what is refused, and the headers that every answer has."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from aipo.errors import InputError

__all__ = ["Answer", "Asgi", "Body", "Message", "Receive", "Refusal", "Send", "announced_length", "sentence"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

GRACE = 10.0  # seconds before a slow body counts as one
SLOWEST = 50_000  # bytes per second from then on; 20 MB may take seven minutes

# Gradio needs eval and inline scripts; what counts is that nothing comes from, or goes to, another host.
POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "frame-ancestors 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    ]
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),  # for browsers that do not know frame-ancestors
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Refusal(Exception):
    """Says to whoever sent the request why it is not served.

    Attributes:
        status: the HTTP status, 4xx: the request is at fault, or it came at a bad time.
        text: one sentence for people.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def sentence(error: InputError) -> str:
    """What is wrong with the input, as a sentence of its own."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def announced_length(headers: Iterable[tuple[bytes, bytes]], limit: int) -> int:
    """What Content-Length says.

    Raises:
        Refusal: it is missing, as it is in a chunked request, not a number, or more than `limit`.
    """
    length = dict(headers).get(b"content-length", b"")
    if not length.isdigit() or len(length) > 18:
        raise Refusal(411, "The request does not say how long it is.")
    if int(length) > limit:
        raise Refusal(413, f"The request is too large; the limit is {limit} bytes.")
    return int(length)


class Body:
    """The body of a request, as it arrives.

    The time it may take grows with what has arrived. So a body that trickles in is cut off after `GRACE` seconds,
    whatever length it announced, and a large one over a slow line is not.
    """

    def __init__(self, receive: Receive, length: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._receive, self._length, self._clock = receive, length, clock
        self._chunks, self._arrived, self._complete = list[bytes](), 0, False

    async def read(self, count: int | None = None) -> bytes:
        """All of it; or as much as there is, once that is `count` bytes.

        Raises:
            Refusal: it came too slowly, ended early, or is longer than announced.
        """
        start, before = self._clock(), self._arrived
        while not self._complete and (count is None or self._arrived < count):
            left = start + GRACE + (self._arrived - before) / SLOWEST - self._clock()
            try:
                message = await asyncio.wait_for(self._receive(), max(0.0, left))
            except TimeoutError:
                raise Refusal(408, "The request came too slowly.") from None
            self._add(message)
        return b"".join(self._chunks)

    def _add(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            raise Refusal(400, "The request ended early.")
        self._chunks.append(message.get("body", b""))
        self._arrived += len(self._chunks[-1])
        self._complete = not message.get("more_body", False)
        if self._arrived > self._length:
            raise Refusal(413, "The request is longer than it said.")


class Answer:
    """One answer. Called as an ASGI `send`, it passes on what the app says.

    Attributes:
        begun: whether anything was sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers = list(HEADERS)
        self.begun = self._complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", []), *self._headers]}
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def set_cookie(self, cookie: str) -> None:
        """To be sent along."""
        self._headers.append((b"set-cookie", cookie.encode()))

    async def json(self, status: int, content: Mapping[str, Any], *headers: tuple[bytes, bytes]) -> None:
        """A whole answer."""
        body = json.dumps(content).encode()
        about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
        await self({"type": "http.response.start", "status": status, "headers": about})
        await self({"type": "http.response.body", "body": body})

    async def refuse(self, status: int, text: str) -> None:
        """A short answer, after which nothing more is read. Gradio's page looks for its text under either name."""
        await self.json(status, {"error": text, "detail": text}, (b"connection", b"close"))

    async def finish(self) -> None:
        """End an answer that was begun."""
        if self.begun and not self._complete:
            await self({"type": "http.response.body", "body": b""})
