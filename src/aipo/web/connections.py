"""Connections: not too many, and none that is kept open for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["make_server"]

MAX_CONNECTIONS = 600  # three for each page; below what systems let a process have open
HEADERS_SECONDS = 10.0  # within which a request must say what it wants
READ_SECONDS = 60.0  # within which whoever asks must take what waits to be sent


class Connection(H11Protocol):
    """One connection. Beyond what uvicorn does, it ends when the other side is silent, trickles, or does not read."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._silence: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        transport.set_write_buffer_limits(0)  # so that `pause_writing` is called as soon as anything is left to send
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._silence)
        _cancel(self._unread)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)
        self._unread = None

    def _watch(self) -> None:
        """While a request is incomplete, time runs; once it is there, the app decides how long its body may take."""
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._silence)
            self._silence = None
        elif self._silence is None:
            self._silence = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Server(uvicorn.Server):
    """Tells the app before it ends. Otherwise uvicorn waits for open pages in vain, and then cancels them noisily."""

    closing: Callable[[], object]

    async def shutdown(self, sockets: Any = None) -> None:
        self.closing()
        await super().shutdown(sockets)


def make_server(app: Any, closing: Callable[[], object]) -> uvicorn.Server:
    """A server for the app. `closing` is called when it is about to end."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        proxy_headers=False,  # they are not to be trusted, and only change what the log says
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    server.closing = closing
    return server
