"""Serve the page: on this machine only unless told otherwise, with nothing fetched from elsewhere."""

from __future__ import annotations

import errno
import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from aipo.errors import InputError, how_to_install
from aipo.priors.zoo import load_noise_prior, prior_names
from aipo.web.budget import return_large_blocks
from aipo.web.guard import LOCAL, Guard
from aipo.web.pictures import Pictures
from aipo.web.visitors import Visitors

__all__ = ["check_installed", "embedded_photo_prior", "make_app", "open_socket", "serve"]

PHOTO_PRIORS = ("photo", "photo-small")  # the better one first
VISITORS = 200  # pages that are known at a time; Gradio keeps up to 1 MB for each


def check_installed() -> None:
    """`InputError` that says what to install, if the app's packages are missing."""
    # Set before Gradio is imported, because it reads them then.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"  # statistics of its own, which nobody sees
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio
    except ImportError:
        raise InputError(f"the app needs Gradio: {how_to_install('app')}") from None
    if not hasattr(gradio, "State") or int(gradio.__version__.split(".")[0]) < 6:
        raise InputError(f"the app needs Gradio 6, not {gradio.__version__}: {how_to_install('app')}")


def make_app(prior: str, time_limit: float, host: str = LOCAL[0], photo_prior: str | None = None) -> Guard:
    """The ASGI application, warmed up. Without a prior for photographs it restores faces only."""
    import gradio as gr
    from fastapi import FastAPI

    from aipo.web.controls import asset
    from aipo.web.page import build, events_of, forget, theme, unread
    from aipo.web.photo_page import PhotoPage
    from aipo.web.photos import Photos
    from aipo.web.session import SHAPE, AppState

    state = AppState(prior, time_limit)
    state.warm_up()
    photos = None
    if photo_prior is not None:
        photos = PhotoPage(Photos(load_noise_prior(photo_prior), state.cores, state.jobs, time_limit))
        photos.warm_up()
    page = build(state, whole=photos is not None)
    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,  # to strangers; the log has it all
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=asset("page.css"),
    )
    return Guard(
        app,
        events_of(page, state.samples),
        Visitors(VISITORS, partial(forget, page)),
        Pictures(SHAPE[1:], state.cores),
        state.jobs,
        partial(unread, page),
        photos,
        local=host in LOCAL,
    )


def embedded_photo_prior() -> str | None:
    """The best prior for photographs that ships with the package; None if there is none."""
    return next((name for name in PHOTO_PRIORS if name in prior_names()), None)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; `InputError` if there cannot be one."""
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
            raise InputError(f"port {port} is in use; choose another --port, or 0 for any free one") from None
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    return listener


def serve(
    host: str,
    port: int,
    prior: str,
    time_limit: float,
    browser: bool,
    ready: Callable[[str], object],
    photo_prior: str | None = None,
) -> None:
    """Serve until Ctrl-C. `ready` gets the address once the page can be opened."""
    check_installed()
    from aipo.web.connections import make_server

    return_large_blocks()
    listener = open_socket(host, port)
    with listener:
        app = make_app(prior, time_limit, host, photo_prior or embedded_photo_prior())
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}"
        ready(address)
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):  # which is how it ends
            make_server(app, app.close).run(sockets=[listener])
