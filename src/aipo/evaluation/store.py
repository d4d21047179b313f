"""Results on disk: one row per image and lam.

While a run goes on, each cell (a chunk of images, solved by one method) has its own file in `rows/`, and its trace, if
one is kept, in `traces/`. A file's name says what it holds and ends in a hash of the settings: the run's, the method's,
the prior's weights and the images. So a finished cell is recognized by its name, and a run with other settings never
meets the rows of this one. Whoever changes what else the numbers depend on, the experiments above all, must count up
`FORMAT`. A file that turns out to be damaged is measured again by the next run.

To publish, `Store.pack` gathers all cells in `rows.parquet` and all traces in `traces.json.gz`. Both forms are read,
also side by side: a run goes on in a packed folder.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aipo.errors import InputError
from aipo.evaluation.cell import (
    IDENTITY,
    Cell,
    Setup,
    check_cell,
    check_columns,
    check_images,
    check_points,
    check_trace,
)
from aipo.evaluation.packed import (
    decode_rows,
    decode_traces,
    encode_rows,
    encode_traces,
    from_parquet,
    pyarrow,
    same_rows,
    same_traces,
    to_parquet,
)
from aipo.files import FolderLock, ensure_folder, write_atomically

__all__ = ["IDENTITY", "Cell", "Packed", "Setup", "Store"]

MEASURE_AGAIN = "the same `aipo bench run` measures it again, or move it elsewhere"
MOVE = "move it elsewhere"

T = TypeVar("T")
Table = Any  # pyarrow.Table; pyarrow is optional


@dataclass(frozen=True)
class Packed:
    """What `Store.pack` did: cells and traces in the packed files, and how many files of single cells it removed."""

    cells: int
    traces: int
    removed: int


class Store:
    """A folder of rows, and beside them images and traces of some solves, to look at."""

    def __init__(self, folder: Path):
        pyarrow()  # what it needs is asked for now, not after the first hour of solving
        self.root = folder
        self.folder = folder / "rows"
        self.images = folder / "pictures"
        self.traces = folder / "traces"
        self.packed_rows = folder / "rows.parquet"
        self.packed_traces = folder / "traces.json.gz"

    def has(self, cell: Cell, setup: Setup) -> bool:
        """Whether the rows of a cell are there; not if its file is damaged."""
        name = cell.name(setup)
        file = self._file(name)
        if not os.path.lexists(file):
            return name in _read_packed(self.packed_rows, _decode_rows)
        try:
            table = _read_table(file)
        except InputError:
            return False
        return all(json.loads(table.schema.metadata[key]) == about for key, about in _about(cell, setup).items())

    def write(self, cell: Cell, setup: Setup, rows: list[dict[str, Any]]) -> None:
        """Write the rows of a cell. A damaged file of its name stays beside it, as NAME.damaged."""
        pa, _ = pyarrow()
        common = {name: getattr(cell, name) for name in ("prior", "task", "split", "method", "settings")}
        table = pa.Table.from_pylist([{**common, **row, "setup": setup.key} for row in rows])
        table = table.replace_schema_metadata({key: json.dumps(about) for key, about in _about(cell, setup).items()})
        ensure_folder(self.folder)
        file = self._file(cell.name(setup))
        if os.path.lexists(file) and not self.has(cell, setup):
            os.replace(file, file.with_suffix(".damaged"))
        write_atomically(file, to_parquet(table))

    def read(self, cell: Cell, setup: Setup) -> list[dict[str, Any]]:
        name = cell.name(setup)
        file = self._file(name)
        return _rows(_read_table(file) if file.exists() else _read_packed(self.packed_rows, _decode_rows)[name])

    def read_all(self, for_report: bool = False) -> list[dict[str, Any]]:
        """Every row of the folder, of every setup; `for_report` refuses rows that a report could not show."""
        tables = self._tables()
        if for_report:
            for name, table in tables.items():
                file = self._file(name)
                with _named(file if file.exists() else self.packed_rows, MEASURE_AGAIN):
                    check_columns(table)
        return [row for table in tables.values() for row in _rows(table)]

    def write_trace(self, cell: Cell, setup: Setup, trace: list[list[float]]) -> None:
        """Keep [evaluations, mean loss at each lam], ... of a cell."""
        ensure_folder(self.traces)
        content = {**asdict(cell), "setup": setup.key, "lambdas": setup.lambdas, "trace": trace}
        write_atomically(self.traces / f"{cell.name(setup)}.json", (json.dumps(content) + "\n").encode())

    def read_traces(self, setup: str, for_report: bool = False) -> list[dict[str, Any]]:
        """The traces of a setup; `for_report` refuses those that cannot be drawn."""
        found = {name: trace for name, trace in sorted(self._all_traces().items()) if trace["setup"] == setup}
        for name, trace in found.items() if for_report else ():
            file = self.traces / f"{name}.json"
            with _named(file if file.exists() else self.packed_traces, MOVE):
                check_points(trace)
        return list(found.values())

    def write_images(self, cell: Cell, setup: Setup, arrays: dict[str, np.ndarray]) -> None:
        """Keep some images of a cell, arrays of uint8 by name."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        ensure_folder(self.images)
        write_atomically(self.images / f"{cell.name(setup)}.npz", buffer.getvalue())

    def read_images(self, setup: str) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The cell and the kept images of every file of a setup."""
        for file in sorted(self.images.glob("*.npz")):
            with _named(file, MOVE), np.load(io.BytesIO(_plain(file).read_bytes()), allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                images = {name: arrays[name] for name in arrays.files if name != "about"}
                check_images(about, images)
            if about["setup"] == setup:
                yield about, images

    def pack(self, remove: bool = False) -> Packed:
        """Gather all cells in `rows.parquet` and all traces in `traces.json.gz`; kept images stay as they are.

        What was packed before stays in. The files of single cells stay too, unless `remove`: then those that were
        packed are deleted, once the packed files were read back and found equal to them.
        """
        loose = [*self.folder.glob("*.parquet"), *self.traces.glob("*.json")]
        tables, traces = self._tables(), self._all_traces()
        with FolderLock(self.root) as lock:
            lock.acquire()
            _write_checked(self.packed_rows, tables, encode_rows, decode_rows, same_rows)
            if traces:
                _write_checked(self.packed_traces, traces, encode_traces, decode_traces, same_traces)
            if remove:
                for file in loose:
                    file.unlink()
                for folder in (self.folder, self.traces):
                    if folder.is_dir() and not any(folder.iterdir()):
                        folder.rmdir()
        return Packed(len(tables), len(traces), len(loose) if remove else 0)

    def _tables(self) -> dict[str, Table]:
        """The rows of every cell, packed or not, by and in the order of the cells' names."""
        loose = {file.stem: _read_table(file) for file in self.folder.glob("*.parquet")}
        tables = {**_read_packed(self.packed_rows, _decode_rows), **loose}
        if not tables:
            raise InputError(f"{self.root}: no results; run `aipo bench run` first")
        return dict(sorted(tables.items()))

    def _all_traces(self) -> dict[str, dict[str, Any]]:
        loose = {}
        for file in self.traces.glob("*.json"):
            with _named(file, MOVE):
                loose[file.stem] = json.loads(_plain(file).read_bytes())
                check_trace(loose[file.stem])
        return {**_read_packed(self.packed_traces, _decode_traces), **loose}

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"


def _about(cell: Cell, setup: Setup) -> dict[bytes, dict[str, Any]]:
    """What a file says about its rows; as it is read back, lists instead of tuples included."""
    return {b"cell": asdict(cell), b"setup": asdict(setup) | {"lambdas": list(setup.lambdas)}}


@contextmanager
def _named(file: Path, advice: str, what: str = "result") -> Iterator[None]:
    """Whatever goes wrong in the block is wrong with this file: `InputError`, which names it and says what to do."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # readers of damaged files raise a dozen unrelated types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{file}: not a readable {what} ({reason}); {advice}") from None


def _plain(file: Path) -> Path:
    if not file.is_file():  # reading a pipe may never end
        raise ValueError("it is not a file")
    return file


def _rows(table: Table) -> list[dict[str, Any]]:
    images = json.loads(table.schema.metadata[b"cell"])["fingerprint"]
    return [{**row, "fingerprint": images} for row in table.to_pylist()]


def _read_table(file: Path) -> Table:
    with _named(file, MEASURE_AGAIN):
        table = from_parquet(_plain(file).read_bytes())
        check_cell(table)
        return table


def _decode_rows(content: bytes) -> dict[str, Table]:
    tables = decode_rows(content)
    for table in tables.values():
        check_cell(table)
    return tables


def _decode_traces(content: bytes) -> dict[str, Any]:
    traces = decode_traces(content)
    for trace in traces.values():
        check_trace(trace)
    return traces


def _read_packed(file: Path, decode: Callable[[bytes], dict[str, T]]) -> dict[str, T]:
    """What a packed file holds, by the name of the cell; nothing if there is none. Read again only if it changed."""
    return _decoded(file, file.stat().st_mtime_ns, decode) if os.path.exists(file) else {}


@lru_cache(maxsize=4)
def _decoded(file: Path, changed: int, decode: Callable[[bytes], dict[str, T]]) -> dict[str, T]:
    with _named(file, "get an intact copy", "file of packed results"):
        return decode(_plain(file).read_bytes())


def _write_checked(
    file: Path,
    content: dict[str, T],
    encode: Callable[[dict[str, T]], bytes],
    decode: Callable[[bytes], dict[str, T]],
    same: Callable[[T, T], bool],
) -> None:
    """Write a packed file. It takes the place of an earlier one only if it can be read back as what went in."""
    packed = encode(content)
    back = decode(packed)
    if back.keys() != content.keys() or not all(same(back[name], content[name]) for name in content):
        raise RuntimeError(f"{file}: packing would change what is in it; nothing was written")
    if not file.exists() or file.read_bytes() != packed:
        write_atomically(file, packed)
    if file.read_bytes() != packed:
        raise RuntimeError(f"{file}: the disk gives back something else than was written; nothing was removed")
