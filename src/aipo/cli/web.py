"""`aipo app`."""

from __future__ import annotations

from typing import Annotated

import typer

from aipo.cli.common import DEFAULT_PRIOR, PriorOption
from aipo.cli.terminal import print_line

__all__ = ["web_app"]


def web_app(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in, without any password.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="INTEGER", help="Port to listen on; 0 takes any free one.")
    ] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    photo_prior: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="For photographs: an embedded prior, or your own .safetensors file.",
            show_default="the best one embedded; without any the app restores faces only",
        ),
    ] = None,
    prior: PriorOption = DEFAULT_PRIOR,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds after which a restoration is stopped.")] = 1800.0,
) -> None:
    """Restore photographs in the browser, at their own size: paint what is missing, compare, download.

    The paper's tasks on 64x64 faces are on a page of their own, with --prior.

    Needs the extra `app`. Everything is computed on this machine, and nothing is downloaded.
    """
    from aipo.web.server import serve

    def ready(address: str) -> None:
        print_line(f"Open {address} (Ctrl-C ends it)")

    serve(host, port, prior, time_limit, browser, ready, photo_prior)
