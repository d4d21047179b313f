"""Where measured numbers are kept: `results/` at the top of the repository, one JSON file for each experiment.

A file of several runs is one object: the document of each run, by the run's name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aipo.files import write_atomically

__all__ = ["RESULTS", "load_run", "load_runs", "save", "save_run", "short_name"]

RESULTS = Path(__file__).parents[1] / "results"


def load_runs(file: Path) -> dict[str, dict[str, Any]]:
    """The documents of all runs in a file, by name; none if there is no file."""
    return json.loads(file.read_text()) if file.exists() else {}


def load_run(file: Path, name: str) -> dict[str, Any]:
    """The document of one run; empty if there is none."""
    return load_runs(file).get(name, {})


def save_run(file: Path, name: str, document: dict[str, Any]) -> None:
    """Put the document of one run into a file of several. It replaces an earlier one of the same name."""
    save(file, {**load_runs(file), name: document})


def save(file: Path, document: dict[str, Any]) -> None:
    write_atomically(file, (json.dumps(document, indent=1) + "\n").encode())


def short_name(prior: str) -> str:
    """The name of an embedded prior without the part that all of them have."""
    return prior.removeprefix("celeba64-")
