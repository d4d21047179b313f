"""Options that several commands have, and how a command ends if something failed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from aipo.errors import InputError
from aipo.terminal import complain

__all__ = ["DEFAULT_PRIOR", "Fit", "JsonOption", "PriorOption", "QuietOption", "Task", "exit_if_failed", "one_of"]

DEFAULT_PRIOR = "celeba64-realnvp-small"

PriorOption = Annotated[
    str, typer.Option("--prior", metavar="NAME|FILE", help="An embedded prior, or your own .safetensors file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


class Task(StrEnum):
    """The names of `aipo.tasks.TASKS`, which cannot be imported here."""

    denoise = "denoise"
    inpaint = "inpaint"
    superres = "superres"
    deblur = "deblur"
    colorize = "colorize"
    sense = "sense"


class Fit(StrEnum):
    crop = "crop"
    resize = "resize"
    align = "align"


def one_of(what: str, name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise InputError(f"unknown {what} {name}; choose from {', '.join(known)}")
    return name


def exit_if_failed(statuses: list[tuple[str, str]]) -> None:
    failed = [(name, status) for name, status in statuses if status != "done"]
    for name, status in failed:
        complain(f"{name}: not restored, the solver stopped with: {status}")
    if failed:
        raise typer.Exit(1)
