"""What the commands print: tables, lines, JSON, complaints, and the bar of a training run."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = ["BenchBar", "TrainingBar", "complain", "print_card", "print_json", "print_line", "print_table"]


def complain(message: str) -> None:
    # Messages may quote file names and other libraries, so their line breaks are not ours to rule out.
    print("aipo: " + " ".join(message.splitlines()), file=sys.stderr)


def print_card(card: dict[str, Any], indent: str = "") -> None:
    for key, value in card.items():
        if isinstance(value, dict):
            print_line(f"{indent}{key}:")
            print_card(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            print_line(f"{indent}{key}: {len(value)} entries, in the card's file")  # a training history is long
        else:
            print_line(f"{indent}{key}: {value}")


def print_table(header: list[str], rows: list[list[str]], wide: int = 0) -> None:
    """Print seven columns into 80 characters; the one numbered `wide` is folded if it must be."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, title in enumerate(header):
        justify: JustifyMethod = "left" if i in (0, 1, wide) else "right"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=i != wide)
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))  # Text: a file name is not markup
    Console().print(table)


def print_line(text: str) -> None:
    print(_printable(text))


def _printable(text: str) -> str:
    """A file name need not be valid Unicode; printing it must not fail for that."""
    return text.encode("utf-8", "replace").decode()


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


class BenchBar:
    """A bar over the files of a benchmark, with what is being measured and the time left."""

    def __init__(self, show: bool):
        self.bar = Progress(
            BarColumn(20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            disable=not show,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> BenchBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def report(self, total: int, done: int, text: str) -> None:
        if self.task is None:
            # What an earlier run did is not part of this one's speed.
            self.bar.start()
            self.task = self.bar.add_task(text, total=total, completed=done)
        self.bar.update(self.task, completed=done, description=text)


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
            line = f"step {row['step']:6.0f}  train {row['train']:.4f}  val {row['val']:.4f} bits/dim  {speed}{skipped}"
            self.bar.console.print(line)
