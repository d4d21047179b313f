"""The report of a run. It is made from what was written, so that pictures of an earlier run are in it too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from aipo.curves import Curve
from aipo.errors import InputError
from aipo.images import open_picture
from aipo.report import Picture, Section, write_report
from aipo.restoring.outputs import REPORT
from aipo.restoring.settings import Settings

__all__ = ["rounded", "table", "write_page"]

LARGEST = 768  # pixels along a side of a photograph in the report; the file beside it has them all

EXPLANATION = (
    "The loss L = D + lam P adds how badly a picture explains the measured one (D) and how unlikely it is under the "
    "prior (P), in nats. chi2 is the mean squared residual in units of sigma squared: about 1 for the true picture, "
    "somewhat less for a good restoration, which always fits a little of the noise, much less if it still follows the "
    "noise, and more if it has lost detail. The seconds are those of all pictures that were solved together."
)
PATH_EXPLANATION = (
    "\n\nBelow each picture it is restored with a growing weight lam of the prior: too little leaves the noise, too "
    "much loses detail. The marked one was chosen without knowing the true picture."
)
RULE_EXPLANATION = {
    "discrepancy": " Its chi2 is the one that is expected of a good restoration.",
    "sure": " It has the smallest estimated error (Stein's unbiased risk estimate).",
    "held-out": " It predicts best the measurements that were left out of the fit.",
    "l-curve": " It lies at the corner of the curve of P against the residual.",
}
SIGMA_FROM = {"given": "", "estimated": ", estimated from the picture", "assumed": ", assumed"}


def write_page(
    out: Path,
    records: Sequence[dict[str, Any]],
    failed: Sequence[tuple[Path, str]],
    settings: Settings,
    command: str,
) -> None:
    """Write the report of all records, and of what could not be read."""
    done = sum(record["status"] == "done" for record in records)
    intro = f"{settings.about.title}: {done} of {len(records) + len(failed)} pictures restored."
    rules = {record["rule"] for record in records if record["path"] is not None}
    intro += "".join(PATH_EXPLANATION + RULE_EXPLANATION[rule] for rule in sorted(rules))
    sections = [Section("Not restored", text="\n\n".join(reason for _, reason in failed))] if failed else []
    sections += [_section(record) for record in records]
    sections.append(Section("Numbers", text=EXPLANATION, table=table(records)))
    shown = {key.replace("_", " "): value for key, value in settings.record.items() if value is not None}
    write_report(out / REPORT, "Restored pictures", intro, sections, shown, command)


def table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people."""
    header = ["picture", "status", "sigma", "lam", "loss", "D", "P", "chi2", "evaluations", "seconds"]
    digits = {"sigma": 3, "lam": 2, "loss": 0, "D": 0, "P": 0, "chi2": 3}
    rows = [
        [Path(r["picture"]).name, r["status"]]
        + [rounded(r[name], places) for name, places in digits.items()]
        + [str(r["evaluations"]), rounded(r["seconds"], 1)]
        for r in records
    ]
    return header, rows


def rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _section(record: dict[str, Any]) -> Section:
    """One picture: before and after, how it was fitted, and its restorations over lam."""
    name = Path(record["picture"]).name
    facts = f"sigma {rounded(record['sigma'], 3)}{SIGMA_FROM[record['sigma_from']]}."
    facts += "".join(f" {note[0].upper()}{note[1:]}." for note in record["notes"])
    tiles = _tiles(record)
    measured = Picture(f"{name}, as measured", tiles[0])
    if record["status"] != "done":
        return Section(name, text=f"Not restored: {record['status']}. {facts}", rows=[[measured]])
    note = f"lam {rounded(record['lam'], 2)}, chi2 {rounded(record['chi2'], 3)}"
    chosen = next(i for i, tile in enumerate(record["tiles"]) if tile["chosen"])
    sliders = [(measured, Picture(f"{name}, restored", tiles[chosen + 1], note))]
    whole = _whole(record) if record["face"] else None
    if whole:
        before, after = whole
        sliders.append((Picture("the whole picture", before), Picture("with the restored face", after)))
    if record["path"] is None:
        return Section(name, text=facts, sliders=sliders)
    strip = [
        Picture(
            f"lam {tile['lam']:.2g}" + (", chosen" if tile["chosen"] else ""),
            image,
            f"chi2 {rounded(tile['chi2'], 2)}",
            marked=tile["chosen"],
        )
        for tile, image in zip(record["tiles"], tiles[1:], strict=True)
    ]
    return Section(name, text=facts, sliders=sliders, strips=[strip], curves=_curves(record))


def _curves(record: dict[str, Any]) -> list[Curve]:
    lam = [point["lam"] for point in record["path"]]
    level = (record["target_chi2"], "expected") if record["target_chi2"] is not None else None
    return [
        Curve("chi2", lam, _values(record, "chi2"), (record["lam"], record["chi2"]), level),
        Curve("loss L = D + lam P, nats", lam, _values(record, "loss"), (record["lam"], record["loss"])),
    ]


def _values(record: dict[str, Any], name: str) -> list[float]:
    return [math.nan if point[name] is None else point[name] for point in record["path"]]


def _tiles(record: dict[str, Any]) -> list[Tensor]:
    """The measurement, then the restorations over lam, from the strip."""
    strip = open_picture(record["strip"]).x.expand(3, -1, -1)
    return list(strip.split(strip.shape[2] // (len(record["tiles"]) + 1), dim=2))


def _whole(record: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The photograph before and after, small enough for a page; None if it is no longer there."""
    try:
        pictures = [
            open_picture(path, noisy=True).x.expand(3, -1, -1) for path in (record["picture"], record["restored"])
        ]
    except InputError:
        return None
    scale = min(1.0, LARGEST / max(pictures[0].shape[1:]))
    size = [max(1, round(side * scale)) for side in pictures[0].shape[1:]]
    before, after = (F.interpolate(x[None], size, mode="bilinear", antialias=True)[0] for x in pictures)
    return before, after
