"""Receive the body of a request: as long as was announced, and not slower than a slow line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from aipo.web.refusal import Refusal

__all__ = ["Body", "announced_length"]

GRACE = 10.0  # seconds before a slow body counts as one
SLOWEST = 50_000  # bytes per second from then on; 20 MB may take seven minutes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


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

    def _add(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.disconnect":
            raise Refusal(400, "The request ended early.")
        self._chunks.append(message.get("body", b""))
        self._arrived += len(self._chunks[-1])
        self._complete = not message.get("more_body", False)
        if self._arrived > self._length:
            raise Refusal(413, "The request is longer than it said.")
