"""Serve the page: on this machine only unless told otherwise, with nothing fetched from elsewhere."""

from __future__ import annotations

import errno
import os
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from aipo.errors import InputError, how_to_install
from aipo.web.upload import MAX_BYTES

__all__ = ["check_installed", "make_app", "open_socket", "serve"]

LOCAL = ("127.0.0.1", "localhost", "::1")
# Eval and inline scripts are Gradio's; what counts is that nothing comes from, or goes to, another host.
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
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}
# Of Gradio's routes, those that the page has no use for and a stranger might.
CLOSED = (
    "/gradio_api/upload",
    "/upload",
    "/gradio_api/file",
    "/file",
    "/gradio_api/proxy",
    "/proxy",
    "/gradio_api/info",
    "/gradio_api/api",
    "/gradio_api/monitoring",
    "/monitoring",
    "/gradio_api/runs",
    "/gradio_api/deep_link",
    "/docs",
    "/redoc",
    "/openapi.json",
)
MAX_BODY = 4 * MAX_BYTES // 3 + 1_000_000  # a picture in base64, and the rest

Message = MutableMapping[str, Any]
Asgi = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def check_installed() -> None:
    """Say what to install if the app's packages are missing."""
    # Set before Gradio is imported, because it asks then.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio
    except ImportError:
        raise InputError(f"the app needs Gradio: {how_to_install('app')}") from None
    if not hasattr(gradio, "State") or int(gradio.__version__.split(".")[0]) < 6:
        raise InputError(f"the app needs Gradio 6, not {gradio.__version__}: {how_to_install('app')}")


class Guard:
    """Around the whole app: refuses what the page never asks for, and sets the headers."""

    def __init__(self, app: Asgi):
        self.app = app

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refusal(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS.items()]
            await send(message)

        if refused is None:
            await self.app(scope, receive, with_headers)
            return
        await with_headers({"type": "http.response.start", "status": refused, "headers": []})
        await with_headers({"type": "http.response.body", "body": b""})

    def _refusal(self, scope: Message) -> int | None:
        path = "/" + scope["path"].lstrip("/")
        if any(path == closed or path.startswith((closed + "/", closed + "=")) for closed in CLOSED):
            return 404
        if scope["method"] in ("POST", "PUT", "PATCH"):
            length = dict(scope["headers"]).get(b"content-length", b"")
            if not length.isdigit():
                return 411
            if int(length) > MAX_BODY:
                return 413
        return None


def make_app(prior: str, time_limit: float, host: str = LOCAL[0]) -> Any:
    """The ASGI application, warmed up."""
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from aipo.web.page import Desk, build, style, theme

    desk = Desk(prior, time_limit)
    desk.warm_up()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    if host in LOCAL:
        # Otherwise a web page from elsewhere could rename itself to this machine and ask in the user's name.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL[:2], "[::1]"])
    app.add_middleware(Guard)
    app.state.desk = desk
    return gr.mount_gradio_app(
        app,
        build(desk),
        path="/",
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=True,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=style(),
    )


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket, or a line that says why there is none."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"cannot listen on {host}: {error.strerror}; give --host an address of this machine") from None
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is taken; choose another one with --port, or 0 for any") from None
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    return listener


def serve(host: str, port: int, prior: str, time_limit: float, browser: bool, ready: Callable[[str], object]) -> None:
    """Serve until Ctrl-C. `ready` is told the address once the page can be opened."""
    check_installed()
    import uvicorn

    listener = open_socket(host, port)
    with listener:
        app = make_app(prior, time_limit, host)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}"
        ready(address)
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        with suppress(KeyboardInterrupt):  # which is how it ends
            uvicorn.Server(config).run(sockets=[listener])
