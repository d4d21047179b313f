"""The command line: reads options, calls the library, prints for people or as JSON. A file for each command.

Whatever needs torch is imported inside the commands, so that help and usage errors come at once.
"""

from __future__ import annotations

import errno
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aipo.cli import bench, corrupt, demo, priors, restore, train, web
from aipo.cli.common import DEFAULT_PRIOR
from aipo.errors import InputError
from aipo.terminal import complain

__all__ = ["DEFAULT_PRIOR", "app", "main"]

STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # nobody's mistake, and no bug
# In the messages of PyTorch's allocators, for GPUs and CPUs; it has one class of errors for all of its own.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class _Group(TyperGroup):
    """Turns bad input and Ctrl-C into one line; every other exception is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt as interrupt:
            complain(f"interrupted; {str(interrupt) or 'every file that was written is complete'}")
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno not in STORAGE_ERRORS:
                raise
            complain(f"cannot write: {error.strerror}; what was finished is in place, make room and run it again")
            raise typer.Exit(1) from None
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not any(said in str(error) for said in NO_MEMORY):
                raise
            complain(
                "no memory left; what was finished is in place: free some, or take fewer images at once (--chunk of a "
                "benchmark, --batch of a training), and run it again"
            )
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    help="Restore images by MAP estimation with exact normalizing-flow priors of 64x64 aligned faces.",
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
    # slower where other programs want the same cores; not to spin at all costs a quarter where none does.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
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
