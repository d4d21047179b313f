"""What the commands print: tables, lines, JSON, complaints, and the bars of long runs.

File names and cards may contain anything. Whatever is printed goes through `harmless` or is JSON, so that none of it
can move the cursor, change colors or retitle the terminal.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = [
    "BenchBar",
    "RestoreBar",
    "TrainingBar",
    "complain",
    "harmless",
    "print_card",
    "print_json",
    "print_line",
    "print_table",
]

# Control characters, line separators, marks that reverse the order of what follows, and halves of characters, which
# stand for bytes that are not Unicode. Others that are invisible, such as joiners, some scripts cannot do without.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    r"""Text that a terminal only shows, on one line: what could do more is written as \x1b or \u202e."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def complain(message: str) -> None:
    # Messages may quote other libraries, so they may contain line breaks.
    print("aipo: " + harmless(" ".join(message.splitlines())), file=sys.stderr)


def print_card(card: dict[str, Any], indent: str = "") -> None:
    for key, value in card.items():
        if isinstance(value, dict):
            print_line(f"{indent}{key}:")
            print_card(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            print_line(f"{indent}{key}: {len(value)} entries, in the card's file")  # a training history would be long
        else:
            print_line(f"{indent}{key}: {value}")


def print_table(header: list[str], rows: list[list[str]], wide: int = 0) -> None:
    """Print a table; the column numbered `wide` is wrapped if the terminal is too narrow."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, title in enumerate(header):
        justify: JustifyMethod = "left" if i in (0, 1, wide) else "right"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=i != wide)
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))  # Text: a file name is not markup
    Console().print(table)


def print_line(text: str) -> None:
    print(harmless(text))


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


class BenchBar:
    """A bar over the files of a benchmark, and one over the cell that is being measured, each with the time left."""

    def __init__(self, show: bool):
        self.bar = Progress(
            BarColumn(20),
            TextColumn("{task.percentage:3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            disable=not show,
        )
        self.all: TaskID | None = None
        self.cell: TaskID | None = None
        self.name = ""

    def __enter__(self) -> BenchBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def report(self, total: int, done: int, name: str, share: float) -> None:
        if self.all is None:
            # What an earlier run did must not count for this one's speed.
            self.bar.start()
            self.all = self.bar.add_task("", total=total, completed=done)
        self.bar.update(self.all, completed=done, description=f"{done} of {total} files")
        if name != self.name:
            # A bar of its own for each cell, as the next may be much slower.
            if self.cell is not None:
                self.bar.remove_task(self.cell)
            self.cell = self.bar.add_task(harmless(name), total=1.0) if name else None
            self.name = name
        if self.cell is not None:
            self.bar.update(self.cell, completed=share)


class RestoreBar:
    """A bar over the pictures of `aipo restore`, with the time left; with `verbose`, facts about each one above it.

    Without a terminal, in a pipe or a log, there is no bar.
    """

    def __init__(self, show: bool, verbose: bool):
        console = Console(stderr=True)
        self.verbose = verbose
        self.bar = Progress(
            TextColumn("restoring"),
            BarColumn(20),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            transient=True,
            console=console,
            disable=not (show and console.is_terminal),
        )
        self.task: TaskID | None = None
        self.total = 0

    def __enter__(self) -> RestoreBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def begin(self, total: int) -> None:
        self.total = total
        self.bar.start()
        self.task = self.bar.add_task("", total=float(total), shown=f"0/{total} pictures")

    def reached(self, pictures: float) -> None:
        if self.task is not None:
            shown = f"{int(pictures)}/{self.total} pictures"
            self.bar.update(self.task, completed=pictures, shown=shown)

    def say(self, text: str) -> None:
        if self.verbose:
            self.bar.console.print(Text(harmless(text)), soft_wrap=True)


class TrainingBar:
    """A line for every row of history above a bar with images/s and the time left."""

    def __init__(self, show: bool):
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
        )
        self.task = self.bar.add_task("training", total=1.0)

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def tick(self, fraction: float) -> None:
        # Shown from the first step on: until then bad input may turn up, and must be the only line.
        self.bar.start()
        self.bar.update(self.task, completed=fraction)

    def report(self, row: dict[str, float]) -> None:
        speed = f"{row['images_per_second']:.0f} images/s"
        self.bar.update(self.task, description=speed)
        if not self.bar.disable:
            skipped = f"  {row['skipped']:.0f} steps skipped" if row["skipped"] else ""
            unit = "nats/dim" if "nats" in row else "bits/dim"
            line = f"step {row['step']:6.0f}  train {row['train']:.4f}  val {row['val']:.4f} {unit}  {speed}{skipped}"
            if "psnr_25" in row:
                line += f"  {row['psnr_15']:.2f} / {row['psnr_25']:.2f} / {row['psnr_50']:.2f} dB"
            self.bar.console.print(line)
