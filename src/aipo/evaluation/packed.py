"""All cells of a folder in one file of rows, and all traces in another: the form in which results are published.

Packed rows are one parquet table. Beside the columns of the rows it has `cell`, the name of the cell that a row belongs
to, and `about`: in the first row of each cell, as JSON, the columns and the metadata that the cell's own file had.
Packed traces are one compressed JSON object: the content of each trace, by the name of its cell.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from aipo.errors import InputError, how_to_install

__all__ = [
    "decode_rows",
    "decode_traces",
    "encode_rows",
    "encode_traces",
    "from_parquet",
    "pyarrow",
    "same_rows",
    "same_traces",
    "to_parquet",
]

Table = Any  # pyarrow.Table; pyarrow is optional


def encode_rows(tables: dict[str, Table]) -> bytes:
    """A parquet file of several tables, by the name of their cell. The same tables give the same bytes."""
    pa, _ = pyarrow()
    parts = []
    for name, table in sorted(tables.items()):
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        about = json.dumps({"columns": table.column_names, "metadata": metadata})
        extra = {"cell": pa.repeat(name, len(table)), "about": [about] + [None] * (len(table) - 1)}
        columns = dict(zip(table.column_names, table.columns, strict=True))
        parts.append(pa.table({**extra, **columns}))
    try:
        # A column that a cell does not have is null there; `about` knows that.
        whole = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise InputError(f"these results do not fit into one table ({error}); pack them in separate folders") from None
    floats = [field.name for field in whole.schema if pa.types.is_floating(field.type)]
    others = [name for name in whole.column_names if name not in floats]
    # Measured numbers hardly repeat: splitting their bytes saves a third, a dictionary nothing.
    return to_parquet(whole, compression_level=9, use_byte_stream_split=floats, use_dictionary=others)


def decode_rows(content: bytes) -> dict[str, Table]:
    """The tables of `encode_rows`, each as its own file had it."""
    whole = from_parquet(content)
    abouts = whole["about"].to_pylist()
    starts = [i for i, about in enumerate(abouts) if about is not None]
    tables = {}
    for start, stop in zip(starts, [*starts[1:], len(whole)], strict=True):
        about = json.loads(abouts[start])
        rows = whole.slice(start, stop - start)
        tables[rows["cell"][0].as_py()] = rows.select(about["columns"]).replace_schema_metadata(about["metadata"])
    return tables


def to_parquet(table: Table, **options: Any) -> bytes:
    """A table as the bytes of a parquet file."""
    pa, pq = pyarrow()
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd", **options)
    return stream.getvalue().to_pybytes()


def from_parquet(content: bytes) -> Table:
    """The table in the bytes of a parquet file.

    All of it happens in this thread. A thread of Arrow's own that still holds something of Python's when the program
    ends would abort it.
    """
    pa, pq = pyarrow()
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)


def same_rows(a: Table, b: Table) -> bool:
    """Whether two tables have the same rows, columns and metadata. NaN is the same as NaN, 1 is not the same as 1.0."""
    return a.schema.metadata == b.schema.metadata and repr(a.to_pylist()) == repr(b.to_pylist())


def encode_traces(traces: dict[str, Any]) -> bytes:
    """A compressed JSON file of several traces, by the name of their cell. The same traces give the same bytes."""
    return gzip.compress(json.dumps(dict(sorted(traces.items()))).encode(), mtime=0)


def decode_traces(content: bytes) -> dict[str, Any]:
    """The traces of `encode_traces`."""
    return json.loads(gzip.decompress(content))


def same_traces(a: Any, b: Any) -> bool:
    """Whether two traces are the same, number by number; NaN is the same as NaN."""
    return json.dumps(a) == json.dumps(b)


def pyarrow() -> tuple[Any, Any]:
    """The packages pyarrow and pyarrow.parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"results are stored with pyarrow: {how_to_install('bench')}") from None
    return pyarrow, pyarrow.parquet
