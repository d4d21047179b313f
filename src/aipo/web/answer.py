"""What the app sends back, with the headers that every answer has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

__all__ = ["Answer", "Asgi", "Message", "Receive", "Send"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

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


class Answer:
    """One answer. Called as an ASGI `send`, it passes on what the app says."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers = list(HEADERS)
        self._begun = self._complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
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
        if self._begun and not self._complete:
            await self({"type": "http.response.body", "body": b""})
