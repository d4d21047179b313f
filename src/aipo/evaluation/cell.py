"""What a file of results is about, the name that follows from it, and whether such a file is what we wrote.

Files may be damaged, edited or somebody else's. Every check raises `ValueError` with what is wrong. The store knows
which file it is, and what to do about it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from aipo.evaluation.methods import METHODS
from aipo.evaluation.protocol import EXPERIMENTS, PROTOCOLS

__all__ = [
    "IDENTITY",
    "Cell",
    "Setup",
    "check_cell",
    "check_columns",
    "check_images",
    "check_points",
    "check_trace",
    "file_safe",
]

FORMAT = 1
# What rows, images and traces of the same solves have in common.
IDENTITY = ("task", "prior", "split", "method", "settings", "prior_sha256", "fingerprint")
LONGEST_PRIOR = 80  # characters of a prior's name in the name of a file


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
    def chunk_name(self) -> str:
        """Which images, with which prior, in which experiment."""
        return f"{file_safe(self.prior)}.{self.task}.{self.split}.{self.start:04}-{self.stop:04}"

    def name(self, setup: Setup) -> str:
        return f"{self.chunk_name}.{self.method}.{_hash([asdict(self), asdict(setup)])}"


def file_safe(prior: str) -> str:
    """A prior's name as part of a file's: its card may say anything, a path or a novel included."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", prior)[:LONGEST_PRIOR]


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


Table = Any  # pyarrow.Table; pyarrow is optional

CELL_FIELDS = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(Cell)}
# What a report needs of every row.
TEXTS = ("task", "prior", "split", "method", "settings", "setup", "prior_sha256", "status", "date")
WHOLE_NUMBERS = ("image", "evals")
NUMBERS = ("lam", "loss", "psnr")
ANYTHING = ("precision", "seed", "device", "torch", "aipo", "commit")
KNOWN: dict[str, Collection[str]] = {
    "task": EXPERIMENTS,
    "method": METHODS,
    "split": {split for protocol in PROTOCOLS.values() for split in protocol.splits},
}


def check_cell(table: Table) -> None:
    """A table says which cell it is, and has the same in its rows."""
    about = {key: _document(table, key) for key in ("cell", "setup")}
    _check_fields(about["cell"], CELL_FIELDS)
    for name in ("prior", "task", "split", "method", "settings"):
        found = table[name].unique().to_pylist() if name in table.column_names else []
        if found != [about["cell"][name]]:
            raise ValueError(f"its rows are not of the {name} {_short(about['cell'][name])}")


def check_columns(table: Table) -> None:
    """A report can be made of the rows of a table."""
    import pyarrow.types as kinds

    for names, fits in (
        (TEXTS, kinds.is_string),
        (WHOLE_NUMBERS, kinds.is_integer),
        (NUMBERS, lambda kind: kinds.is_floating(kind) or kinds.is_integer(kind)),
        (ANYTHING, lambda kind: True),
    ):
        for name in names:
            if name not in table.column_names or not fits(table.schema.field(name).type) or table[name].null_count:
                raise ValueError(f"the column {name} is missing or incomplete")
    for name, known in KNOWN.items():
        for value in table[name].unique().to_pylist():
            _check_known(name, value, known)
    lam = np.asarray(table["lam"], dtype=np.float64)
    if not (np.isfinite(lam) & (lam >= 0)).all():
        raise ValueError("lam is not always a finite number that is at least 0")


def check_trace(trace: object) -> None:
    """A trace says which cell it belongs to."""
    if not isinstance(trace, dict):
        raise ValueError("it is not a trace")
    _check_fields(trace, CELL_FIELDS | {"setup": str, "lambdas": list, "trace": list})


def check_points(trace: Mapping[str, Any]) -> None:
    """A trace can be drawn: each point is a number of evaluations, and a loss for each lam."""
    check_trace(trace)
    for name, known in KNOWN.items():
        _check_known(name, trace[name], known)
    if not trace["lambdas"] or not all(map(_is_number, trace["lambdas"])):
        raise ValueError(f"lambdas is {_short(trace['lambdas'])}")
    for point in trace["trace"]:
        whole = isinstance(point, list) and len(point) == 1 + len(trace["lambdas"])
        if not whole or not all(map(_is_number, point)) or not point[0] >= 0:
            raise ValueError(f"a point is {_short(point)}")


def check_images(about: object, arrays: Mapping[str, np.ndarray]) -> None:
    """Kept images say which cell they belong to, and have the shapes that this needs."""
    if not isinstance(about, dict):
        raise ValueError("nothing says which pictures these are")
    _check_fields(about, CELL_FIELDS | {"setup": str, "lambdas": list})
    for name, known in KNOWN.items():
        _check_known(name, about[name], known)
    shapes = {name: arrays[name].shape for name in ("truth", "observed", "restored") if name in arrays}
    if len(shapes) < 3 or any(array.dtype != np.uint8 for array in arrays.values()):
        raise ValueError("some of the pictures are missing")
    whole = len(shapes["truth"]) == 4 and shapes["truth"][-1] == 3 and math.prod(shapes["truth"][1:]) > 0
    if not whole or shapes["observed"] != shapes["truth"]:
        raise ValueError(f"pictures have the shapes {shapes['truth']} and {shapes['observed']}")
    if shapes["restored"] != (len(about["lambdas"]), *shapes["truth"]):
        raise ValueError(f"restorations have the shape {shapes['restored']}")


def _document(table: Table, key: str) -> dict[str, Any]:
    try:
        document = json.loads((table.schema.metadata or {})[key.encode()])
    except (KeyError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"nothing says which {key} it is")
    return document


def _check_fields(document: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        value = document.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is {_short(value)}")


def _check_known(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"the {name} {_short(value)} is unknown")


def _is_number(value: object) -> bool:
    """NaN and infinity included, but no integer that would be neither and yet too large."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
