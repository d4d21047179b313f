"""What is known about a restored image, as a type, and as JSON on disk (NAME.json).

A file on disk may be damaged, edited or somebody else's, so reading one checks every field's type.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from aipo.errors import InputError

__all__ = ["NOISE_LEVELS", "ImageResult", "PathPoint", "Record", "SigmaFrom", "Tile"]

NOISE_LEVELS = "noise levels"
LATER = ("classical",)  # fields that a file of an earlier version may lack

SigmaFrom = Literal["given", "estimated", "assumed", "corrected"]


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """What a solver says about one image. A number that is not finite is None.

    Attributes:
        status: "done", or why there is no restoration.
        lam: weight of the prior; None unless done.
        loss: L = D + lam * P at the restoration, in nats.
        D: minus the log-likelihood of the measurement.
        P: minus the log-density of the restoration under the prior.
        chi2: mean squared residual in units of sigma^2.
        evaluations: gradients of L that were computed.
    """

    status: str
    lam: float | None
    loss: float | None
    D: float | None
    P: float | None
    chi2: float | None
    evaluations: int

    @property
    def done(self) -> bool:
        return self.status == "done"

    def to_json(self) -> dict[str, Any]:
        """The fields by name, ready for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The inverse of `to_json`. Unknown keys are ignored.

        Raises:
            InputError: a field is missing, or has another type.
        """
        return _parse(cls, document, "the record")


@dataclass(frozen=True)
class PathPoint:
    """The restoration of an image at one lam of its path. A number that is not finite is None.

    Attributes:
        gap: estimate of how far the loss is above its minimum, in nats.
    """

    lam: float
    chi2: float | None
    loss: float | None
    D: float | None
    P: float | None
    gap: float | None


@dataclass(frozen=True)
class Tile:
    """One restoration in NAME.strip.png, and whether it is the chosen one."""

    lam: float
    chi2: float | None
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Record(ImageResult):
    """A picture that `aipo restore` has solved: the content of NAME.json.

    Attributes:
        picture: its file, as it was named.
        picture_sha256: of that file.
        sigma: noise of the measurement, for values in [0,1].
        sigma_from: whether sigma was given, estimated from the picture, assumed for the task, or given and corrected.
        noise_gain: the factor by which fitting the picture to the prior changed the noise; contained in sigma.
        rule: how lam was chosen; "fixed" if it was given, "noise levels" if a whole photograph was restored without.
        target_chi2: the chi2 that the rule "discrepancy" aims at; None for the others.
        path: what is known at each lam; None if lam was given.
        tiles: what NAME.strip.png, if there is one, shows after the measurement, from left to right.
        notes: what was changed, or should be known.
        seconds: wall time of all images that were solved together.
        batch: how many there were.
        settings: everything that decides what comes out, as in `Settings.record`.
        restored, face, strip, classical: the files that were written; None if there is none of that kind.
        files: their names and SHA-256.
    """

    picture: str
    picture_sha256: str
    sigma: float
    sigma_from: SigmaFrom
    noise_gain: float
    rule: str
    target_chi2: float | None
    path: tuple[PathPoint, ...] | None
    tiles: tuple[Tile, ...]
    notes: tuple[str, ...]
    seconds: float
    batch: int
    settings: dict[str, str | bool | float | None]
    restored: str | None = None
    face: str | None = None
    strip: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    classical: str | None = None  # which the first versions did not know

    def __post_init__(self) -> None:
        if self.rule == NOISE_LEVELS:
            return  # which needs no lam, and has no strip
        if sum(tile.chosen for tile in self.tiles) != self.done:
            raise InputError(f"the record's status is {self.status}, which its tiles contradict; the file is damaged")
        if self.done and (self.lam is None or (self.path is not None and self.lam <= 0)):
            raise InputError(f"the record's lam is {self.lam}, which cannot be right; the file is damaged")


def _parse(kind: Any, value: object, name: str) -> Any:
    """A value from JSON as the type `kind`; `InputError` if it is something else."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        return _parse_fields(kind, value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_parse(inner[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _parse(inner[1], item, f"{name} {key}") for key, item in value.items()}
    if origin is UnionType:
        for option in inner:
            with suppress(InputError):
                return _parse(option, value, name)
    if (value in inner) if origin is Literal else _is(kind, value):
        return value
    raise InputError(f"{name} is {value!r}, which cannot be right; the file is damaged")


def _is(kind: Any, value: object) -> bool:
    if kind is float:  # which JSON may write without a point, and with more digits than a float can hold
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return type(value) is kind


def _parse_fields(kind: Any, document: dict[str, object], name: str) -> Any:
    types, values = get_type_hints(kind), {}
    for f in fields(kind):
        if f.name not in document and f.name in LATER:
            continue
        if f.name not in document:
            raise InputError(f"{name} has no {f.name}; the file is damaged")
        values[f.name] = _parse(types[f.name], document[f.name], f.name)
    return kind(**values)
