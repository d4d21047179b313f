"""Results on disk: one row per image and lam, one parquet file for each chunk of images and method.

A file's name says what it holds, and ends in a hash of the settings: the run's, the method's, the prior's weights and
the pictures. So a finished chunk is recognised by its name alone, and a run with other settings never meets the rows of
this one. What else numbers depend on, the tasks above all, is not to be changed without counting up `FORMAT`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aipo.errors import InputError, how_to_install
from aipo.files import write_atomically

__all__ = ["IDENTITY", "Cell", "Setup", "Store"]

FORMAT = 1
# What rows, pictures and traces of the same solves have in common.
IDENTITY = ("task", "prior", "split", "method", "settings", "prior_sha256", "fingerprint")


@dataclass(frozen=True)
class Setup:
    """The settings that all rows of one table share."""

    lambdas: tuple[float, ...]
    precision: str
    seed: int
    format: int = FORMAT

    @property
    def key(self) -> str:
        return _hash(asdict(self))


@dataclass(frozen=True)
class Cell:
    """A chunk of images solved by one method at every lam."""

    prior: str
    prior_sha256: str
    task: str
    split: str
    fingerprint: str
    method: str
    settings: str
    start: int
    stop: int

    @property
    def place(self) -> str:
        """Which images, of which prior and task."""
        return f"{self.prior}.{self.task}.{self.split}.{self.start:04}-{self.stop:04}"

    def name(self, setup: Setup) -> str:
        return f"{self.place}.{self.method}.{_hash([asdict(self), asdict(setup)])}"


class Store:
    """A folder of rows, and beside it pictures and traces of some solves, for those who want to look at them."""

    def __init__(self, folder: Path):
        _pyarrow()  # what it needs is asked for now, not after the first hour of solving
        self.folder = folder / "rows"
        self.pictures = folder / "pictures"
        self.traces = folder / "traces"

    def has(self, cell: Cell, setup: Setup) -> bool:
        return self._file(cell, setup).exists()

    def write(self, cell: Cell, setup: Setup, rows: list[dict[str, Any]]) -> None:
        pa, pq = _pyarrow()
        common = {name: getattr(cell, name) for name in ("prior", "task", "split", "method", "settings")}
        table = pa.Table.from_pylist([{**common, **row, "setup": setup.key} for row in rows])
        table = table.replace_schema_metadata({"cell": json.dumps(asdict(cell)), "setup": json.dumps(asdict(setup))})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(cell, setup), buffer.getvalue())

    def write_pictures(self, cell: Cell, setup: Setup, arrays: dict[str, np.ndarray]) -> None:
        """Keep some pictures of a cell (uint8), by name."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        self.pictures.mkdir(parents=True, exist_ok=True)
        write_atomically(self.pictures / f"{cell.name(setup)}.npz", buffer.getvalue())

    def write_trace(self, cell: Cell, setup: Setup, trace: list[list[float]]) -> None:
        """Keep [evaluations, mean loss at each lam], ... of a cell."""
        self.traces.mkdir(parents=True, exist_ok=True)
        content = {**asdict(cell), "setup": setup.key, "lambdas": setup.lambdas, "trace": trace}
        write_atomically(self.traces / f"{cell.name(setup)}.json", (json.dumps(content) + "\n").encode())

    def read_traces(self, setup: str) -> list[dict[str, Any]]:
        found = [json.loads(file.read_text()) for file in sorted(self.traces.glob("*.json"))]
        return [trace for trace in found if trace["setup"] == setup]

    def read_pictures(self, setup: str) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The cell and the pictures of every file of a setup."""
        for file in sorted(self.pictures.glob("*.npz")):
            with np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                if about["setup"] == setup:
                    yield about, {name: arrays[name] for name in arrays.files if name != "about"}

    def read(self, cell: Cell, setup: Setup) -> list[dict[str, Any]]:
        return self._read(self._file(cell, setup))

    def read_all(self) -> list[dict[str, Any]]:
        """Every row of the folder, of every setup."""
        files = sorted(self.folder.glob("*.parquet"))
        if not files:
            raise InputError(f"{self.folder}: no results; run `aipo bench run` first")
        return [row for file in files for row in self._read(file)]

    def _read(self, file: Path) -> list[dict[str, Any]]:
        pa, pq = _pyarrow()
        try:
            table = pq.read_table(file)
            pictures = json.loads(table.schema.metadata[b"cell"])["fingerprint"]
            return [{**row, "fingerprint": pictures} for row in table.to_pylist()]
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{file}: not a readable result ({error}); delete it to have it measured again") from None

    def _file(self, cell: Cell, setup: Setup) -> Path:
        return self.folder / f"{cell.name(setup)}.parquet"


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"the benchmark stores its results with pyarrow: {how_to_install('bench')}") from None
    return pyarrow, pyarrow.parquet
