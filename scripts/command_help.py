"""A hook of mkdocs: docs/api/commands.md gets what `aipo COMMAND --help` prints, so it is never out of date."""

from __future__ import annotations

import re
from typing import Any

PAGE = "api/commands.md"
WIDTH = 92


def help_text(command: str) -> str:
    """What `aipo COMMAND --help` prints, without colors."""
    from rich.text import Text
    from typer.testing import CliRunner

    from aipo.cli import app

    environment = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*command.split(), "--help"], env=environment, prog_name="aipo")
    if result.exit_code:
        raise SystemExit(f"aipo {command} --help failed: {result.output}")
    plain = Text.from_ansi(result.output).plain
    return "\n".join(line.rstrip() for line in plain.splitlines()).strip("\n")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page; replaces each line `<!-- help: COMMAND -->`."""
    if page.file.src_uri != PAGE:
        return markdown
    return re.sub(r"<!-- help: (.*?) -->", lambda match: f"```text\n{help_text(match[1])}\n```", markdown)
