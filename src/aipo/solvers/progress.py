"""A bar on the terminal while a solve runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from aipo.solvers.base import State

__all__ = ["ProgressBar"]


class ProgressBar:
    """Gradient evaluations spent, of those that will be.

    Arguments:
        show: whether to show anything at all.
        budget: says of the first state how many evaluations an image will need from there on.
    """

    def __init__(self, show: bool, budget: Callable[[Any], int]):
        self._show, self._budget = show, budget
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, state: State) -> None:
        """Show how far a solve is. The bar appears with the first state: finding it may have a bar of its own."""
        if not self._show:
            return
        spent = int(state.evals.max())
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.add_task("starting", completed=spent, total=spent + self._budget(state))
            self._bar.start()
        if not state.D.isnan().all():
            losses = f"D {state.D.nanmean().item():.0f}  P {state.P.nanmean().item():.0f}"
            text = f"{int(state.running.sum())} running  {losses}"
            self._bar.update(self._bar.task_ids[0], completed=spent, description=text)


def _new_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("evaluations"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        transient=True,
        console=Console(stderr=True),
    )
