"""The command line: reads options, calls the library, prints for people or as JSON. One file per command.

Whatever needs torch is imported inside the commands, so that help and usage errors appear at once.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from aipo.cli import bench, corrupt, demo, priors, restore, train, web
from aipo.cli.common import DEFAULT_PRIOR
from aipo.cli.terminal import complain
from aipo.errors import InputError
from aipo.files import is_storage_error

__all__ = ["DEFAULT_PRIOR", "app", "main"]

# In the messages of PyTorch's allocators, for GPUs and CPUs: it raises RuntimeError for everything.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
# Newer versions of typer bring a click of their own, so click's name for it would not do.
UsageError: Any = typer.BadParameter.__base__


class _Group(TyperGroup):
    """Turns wrong usage, bad input and Ctrl-C into one line; every other exception is a bug and keeps its traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            _explain(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _explain(error)
        except InputError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt as interrupt:
            complain(f"interrupted; {str(interrupt) or 'every file that was written is complete'}")
            raise typer.Exit(130) from None
        except OSError as error:
            raise typer.Exit(_explain_system(error)) from None
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not any(said in str(error) for said in NO_MEMORY):
                raise
            complain(
                "out of memory; finished results are in place: free some memory, or take fewer images at once (--chunk "
                "of bench run, --batch of train), and run the command again"
            )
            raise typer.Exit(1) from None


def _explain(error: Any) -> NoReturn:
    """End a command that was called in a wrong way."""
    if type(error).__name__ == "NoArgsIsHelpError":  # then typer prints the help
        raise error
    command = error.ctx.command_path if error.ctx else "aipo"
    complain(f"{error.format_message().rstrip('. ')}; see {command} --help")
    raise typer.Exit(2) from None


def _explain_system(error: OSError) -> int:
    """Say what the system has refused, and return the exit code."""
    if error.errno == errno.EPIPE:  # whoever read what we print has stopped; typer knows what to do
        raise error
    if is_storage_error(error):
        complain(f"cannot write: {error.strerror}; finished results are in place, make room and run the command again")
        return 1
    name = f"{error.filename}: " if error.filename else ""
    complain(f"{name}{error.strerror or error}; check the name and its permissions")
    return 2


app = typer.Typer(
    cls=_Group,
    help="Restore photographs of any size, and 64x64 faces, with exact normalizing-flow priors.",
    epilog="Start with: aipo demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: aipo demo --out aipo-demo")(demo.demo)
app.command(epilog="Example: aipo restore noisy.png --task denoise --out restored")(restore.restore)
app.command(epilog="Example: aipo corrupt photo.png --task inpaint --fraction 0.25 --fit align --out corrupted")(
    corrupt.corrupt
)
app.command(epilog="Example: aipo train photos --model realnvp-small --minutes 30 --out my-prior.safetensors")(
    train.train
)
app.command("app", epilog="Example: aipo app --port 8000")(web.web_app)
app.add_typer(priors.priors_app, name="priors")
app.add_typer(bench.bench_app, name="bench")


def main() -> None:
    # Before torch is imported. By default its threads spin for long while they wait, which makes everything three times
    # slower if other programs want the same cores. Not spinning at all would cost a quarter if none does.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not sys.warnoptions:
        # What libraries tell each other; people get our own lines.
        warnings.simplefilter("ignore")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode must not end a command that has something to say.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="aipo")


def _version(wanted: bool) -> None:
    if wanted:
        from aipo import __version__

        print(f"aipo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options of `aipo` itself."""
