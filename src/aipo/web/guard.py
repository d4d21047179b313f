"""The door of the app: it lets in what the page asks for, and nothing else.

Gradio has many routes, and trusts what it is sent. The pages need few of them:

    /, /photo/FILE          the page for photographs, where a prior for them is at hand; see `photo_page`
    /photo/ACTION           what it asks for; see `photos`
    /faces, /assets/ ...    the page for faces, which is Gradio's; without a prior for photographs also at /
    heartbeat/SESSION       open for as long as the page is shown; see `visitors`
    run/predict             what happened on the page, answered at once; see `events`
    queue/join, queue/data  what takes longer: joining the queue, and fetching its messages
    /picture                an upload, which is not Gradio's business; see `pictures`

A page makes up its own session. Here it is tied to a cookie, so knowing another's session is not enough to see it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote

from aipo.errors import InputError
from aipo.web.decode import MAX_BYTES
from aipo.web.events import Events
from aipo.web.http import Answer, Asgi, Body, Message, Receive, Refusal, Send, announced_length, sentence
from aipo.web.jobs import Jobs
from aipo.web.photo_page import PhotoPage
from aipo.web.photos import LONGEST
from aipo.web.pictures import Pictures
from aipo.web.visitors import SESSION, Visitors

__all__ = ["LOCAL", "MAX_EVENT", "Guard", "is_host", "is_local"]

PAGES = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/robots\.txt|/gradio_api/app_id"
    r"|/(assets|static)/(\w[\w-]*/)*\w[\w.-]*",  # no part begins with a dot
    re.ASCII,
)
HEARTBEAT = re.compile(r"/gradio_api/heartbeat/(.*)")
MESSAGES = "/gradio_api/queue/data"
AT_ONCE, QUEUED = "/gradio_api/run/predict", "/gradio_api/queue/join"
PICTURE, FACES, PHOTO = "/picture", "/faces", "/photo/"
MAX_EVENT = 65_536  # bytes; the largest has a small picture and a mask in it
MAX_UNREAD = 100  # messages; a restoration has about sixty
COOKIE = re.compile(rb"(?:^|;\s*)aipo=([\w-]{32,64})(?:;|$)")
LOCAL = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(rb"([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
FORWARDED = (b"x-forwarded-host", b"x-gradio-server")  # from which Gradio makes addresses


@dataclass
class Guard:
    """Wraps the whole app.

    Attributes:
        app: the page, as Gradio serves it.
        photos: the page for photographs; None without a prior for them.
        local: whether only this machine may ask. Otherwise a web page from elsewhere could point its own name at this
            machine and ask in the user's name.
        unread: how many messages a page has not fetched; None if it has asked for none.
        closing: set when the server is about to end, so that what would go on for as long as a page is open ends too.
    """

    app: Asgi
    events: Events
    visitors: Visitors
    pictures: Pictures
    jobs: Jobs
    unread: Callable[[str], int | None]
    photos: PhotoPage | None = None
    local: bool = True
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            answer = Answer(send)
            try:
                await self._serve(scope, receive, answer)
            except Refusal as refusal:
                await answer.refuse(refusal.status, refusal.text)
        else:
            await send({"type": "websocket.close"})

    def close(self) -> None:
        """End all that would go on."""
        self.closing.set()
        self.jobs.close()

    async def _serve(self, scope: Message, receive: Receive, answer: Answer) -> None:
        self._check_host(scope)
        path, heartbeat = scope["path"], HEARTBEAT.fullmatch(scope["path"])
        if path in (AT_ONCE, QUEUED):
            _check_method(scope, "POST")
            await self._serve_event(scope, receive, answer)
        elif path == PICTURE:
            _check_method(scope, "POST")
            _browser(scope)
            length = announced_length(scope["headers"], MAX_BYTES)
            await answer.json(200, await self.pictures.take(receive, length))
        elif path == MESSAGES:
            _check_method(scope, "GET")
            await self._serve_messages(scope, receive, answer)
        elif heartbeat:
            _check_method(scope, "GET")
            name = _name(scope, heartbeat[1])
            with self.visitors.visit(name):
                try:
                    await self._stream(_changed(scope, path=f"/gradio_api/heartbeat/{name}"), receive, answer)
                finally:
                    self.jobs.leave(name)
        elif self.photos and path.startswith(PHOTO) and path.removeprefix(PHOTO) in LONGEST:
            _check_method(scope, "POST")
            await self._serve_photo(self.photos, scope, receive, answer)
        elif PAGES.fullmatch(path) or path == FACES or (self.photos and path in self.photos.files):
            _check_method(scope, "GET", "HEAD")
            await self._serve_page(scope, receive, answer)
        else:
            raise Refusal(404, "There is nothing here.")

    async def _serve_page(self, scope: Message, receive: Receive, answer: Answer) -> None:
        path = scope["path"]
        if path in ("/", FACES) and _cookie(scope) is None:
            answer.set_cookie(f"aipo={secrets.token_urlsafe(32)}; Path=/; HttpOnly; SameSite=Lax")
        if self.photos and path in self.photos.files:
            await self.photos.send_file(path, answer, scope["method"] == "HEAD")
        else:
            await self.app(_changed(scope, path="/" if path == FACES else path), receive, answer)

    async def _serve_photo(self, photos: PhotoPage, scope: Message, receive: Receive, answer: Answer) -> None:
        _browser(scope)
        action = scope["path"].removeprefix(PHOTO)
        length = announced_length(scope["headers"], LONGEST[action])
        await photos.photos.serve(action, receive, length, answer, lambda tab: _name(scope, str(tab)))

    def _check_host(self, scope: Message) -> None:
        host = dict(scope["headers"]).get(b"host", b"")
        if not (is_local(host) if self.local else is_host(host)):
            raise Refusal(400, "This is not a name of this machine.")

    async def _serve_event(self, scope: Message, receive: Receive, answer: Answer) -> None:
        queued = scope["path"] == QUEUED
        length = announced_length(scope["headers"], MAX_EVENT)
        body = await Body(receive, length).read()
        try:
            event = self.events.parse(body, queued)
        except InputError as error:
            raise Refusal(400, sentence(error)) from None
        name = event["session_hash"] = _name(scope, event["session_hash"])
        self.visitors.check(name)
        if queued and (self.unread(name) or 0) > MAX_UNREAD:
            raise Refusal(429, "This page does not fetch its messages; reload it.")
        # What was checked goes on, and not what came: there is more than one way to read some JSON.
        body = json.dumps(event).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.app(_changed(scope, headers), _replayed(body, receive), answer)

    async def _serve_messages(self, scope: Message, receive: Receive, answer: Answer) -> None:
        sessions = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [])
        name = _name(scope, sessions[0] if len(sessions) == 1 else "")
        self.visitors.check(name)
        if self.unread(name) is None:
            raise Refusal(404, "There are no messages for this page.")
        with self.visitors.listen(name), self.jobs.listening(name):
            query = f"session_hash={name}".encode()
            await self._stream(_changed(scope, query=query), receive, answer)

    async def _stream(self, scope: Message, receive: Receive, answer: Answer) -> None:
        """An answer that goes on until the page is closed, or the server."""

        async def receive_or_close() -> Message:
            arriving = asyncio.ensure_future(receive())
            closing = asyncio.ensure_future(self.closing.wait())
            try:
                await asyncio.wait({arriving, closing}, return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if closing.done() else arriving.result()
            finally:
                arriving.cancel()
                closing.cancel()

        await self.app(scope, receive_or_close, answer)
        await answer.finish()


def _check_method(scope: Message, *allowed: str) -> None:
    if scope["method"] not in allowed:
        raise Refusal(405, f"Only {' and '.join(allowed)} will do here.")
    headers = dict(scope["headers"])
    if scope["method"] != "POST" and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers):
        raise Refusal(400, "A question has no content.")


def _cookie(scope: Message) -> bytes | None:
    found = COOKIE.search(dict(scope["headers"]).get(b"cookie", b""))
    return found[1] if found else None


def _browser(scope: Message) -> bytes:
    """Its cookie; `Refusal` without one."""
    cookie = _cookie(scope)
    if cookie is None:
        raise Refusal(403, "This page is not known here; reload it, and allow cookies.")
    return cookie


def _name(scope: Message, session: str) -> str:
    """By what name Gradio knows the session: one that only the browser with the same cookie can ask for."""
    if not SESSION.fullmatch(session):
        raise Refusal(400, "This is not a session of the page.")
    return hashlib.sha256(_browser(scope) + b" " + session.encode()).hexdigest()


def _changed(
    scope: Message, headers: list[tuple[bytes, bytes]] | None = None, path: str | None = None, query: bytes = b""
) -> dict[str, Any]:
    """The request as Gradio gets it: with these headers in the place of those of their names, and no other query."""
    replaced = {name for name, _ in headers or ()}
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name not in replaced and (name not in FORWARDED or (name == FORWARDED[0] and is_host(value)))
    ]
    path = path or scope["path"]
    changed = {"headers": [*kept, *(headers or ())], "path": path, "raw_path": quote(path).encode()}
    return {**scope, **changed, "query_string": query}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was received already, and then whatever comes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def is_host(value: bytes) -> bool:
    """Whether this is a name or an address, with or without a port."""
    return _host_name(value) is not None


def is_local(value: bytes) -> bool:
    """Whether this is a name of this machine that no other can have."""
    return _host_name(value) in LOCAL


def _host_name(value: bytes) -> str | None:
    match = HOST.fullmatch(value)
    if match is None or int(match[2] or 0) > 65535:
        return None
    name = match[1].decode().lower().strip("[]")
    if ":" in name or not name.strip("0123456789."):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return None
    return name
