"""What a file of results is about, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["IDENTITY", "Cell", "Setup", "file_safe"]

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
