"""Options that several commands have, and how a command ends if something failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aipo.cli.terminal import complain
from aipo.errors import InputError
from aipo.restore.tasks import FACE_PRIOR

if TYPE_CHECKING:
    from aipo.restore.run import Spread

__all__ = [
    "DEFAULT_PRIOR",
    "FITS",
    "DeviceOption",
    "JobsOption",
    "JsonOption",
    "OutOption",
    "PriorOption",
    "QuietOption",
    "RayOption",
    "by_value",
    "choices",
    "exit_if_failed",
    "one_of",
    "spread_over",
]

DEFAULT_PRIOR = FACE_PRIOR

# Those of `aipo.images.windows`, which needs torch and cannot be imported here.
FITS = {
    "crop": "the middle, pixel by pixel",
    "resize": "the middle square, scaled",
    "align": "the largest face",
}

PriorOption = Annotated[
    str, typer.Option("--prior", metavar="NAME|FILE", help="An embedded prior, or your own .safetensors file.")
]
OutOption = Annotated[
    Path, typer.Option(metavar="DIR", readable=False, help="Folder for the results; created if needed.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to compute; auto takes a GPU if there is one.")
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Processes that share the pictures.", show_default="by cores and memory"),
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS|auto", help="Share the pictures among the machines of a Ray cluster."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def one_of(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is one of those known; otherwise `InputError`, which lists them."""
    if name not in known:
        raise InputError(f"unknown {what} {name}; choose from {', '.join(known)}")
    return name


def choices(what: str, known: Iterable[str]) -> dict[str, Any]:
    """Arguments of `typer.Option` for an option that is one of several names."""
    names = tuple(known)

    def check(name: str | None) -> str | None:
        return None if name is None else one_of(what, name, names)

    return {"metavar": f"[{'|'.join(names)}]", "callback": check}


def by_value(values: Mapping[str, object]) -> str:
    """Which names have which value, for help texts: {"a": 1, "b": 2, "c": 1} -> "1 for a and c; 2 for b"."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(str(value), []).append(name)
    return "; ".join(f"{value} for {_listed(group)}" for value, group in names.items())


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def spread_over(jobs: int | None, ray: str | None, default: int, device: str) -> Spread | None:
    """Who shares the work, so many processes or a Ray cluster; None if this process does it alone.

    Arguments:
        default: processes, if nothing was asked for.
        device: where they compute, as `--device` says it. On a cluster each has a GPU of its own.
    """
    from aipo.integrations.spread import Processes, spread
    from aipo.integrations.spread_ray import Cluster
    from aipo.priors.prior import chosen_device

    if ray is None:
        count = default if jobs is None else jobs
        return partial(spread, machines=Processes(count)) if count > 1 else None
    if jobs is not None:
        raise InputError("--jobs and --ray cannot go together; leave one out")
    device = chosen_device(device)
    if device not in ("cpu", "cuda"):
        raise InputError(f"with --ray each process has a GPU of its own: --device cuda, not {device}")
    return partial(spread, machines=Cluster(ray, gpus=float(device == "cuda")))


def exit_if_failed(statuses: list[tuple[str, str]]) -> None:
    failed = [(name, status) for name, status in statuses if status != "done"]
    for name, status in failed:
        complain(f"{name}: not restored, the solver stopped with: {status}")
    if failed:
        raise typer.Exit(1)
