"""The report of a run. It is made from what was written, so images of an earlier run are in it too."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from aipo.choose.sigma import noise_curve
from aipo.errors import InputError
from aipo.images.photograph import read_photograph
from aipo.report.curves import Curve
from aipo.report.html import Figure, Section, write_report
from aipo.restore.classical import NAMES
from aipo.restore.outputs import REPORT
from aipo.restore.record import NOISE_LEVELS, Record
from aipo.restore.settings import Settings
from aipo.restore.strip import read_strip
from aipo.restore.tasks import TASKS

__all__ = ["COLUMNS", "PHOTO_COLUMNS", "rounded", "table", "write_page"]

LARGEST = 768  # pixels along a side of a photo in the report; the file beside it has them all
MOST_EARLIER = 20  # pictures of earlier runs that are shown again

EXPLANATION = (
    "The loss L = D + λ P adds how badly a picture explains the measurement (D) and how unlikely it is under the prior "
    "(P), in nats. λ, the weight of the prior, is called lam in the table. chi2 is the mean squared residual in units "
    "of sigma squared. It is about 1 for the true picture and a little less for a good restoration, which always fits "
    "some of the noise. Much less means that the restoration still follows the noise, more than 1 that it has lost "
    "detail. The seconds are those of all pictures that were solved together."
)
PHOTO_EXPLANATION = (
    "sigma is the noise that was found in a picture or assumed, for values in 0..1. The evaluations are those of the "
    "prior, for each pixel."
)
EARLIER = f"What other runs have restored in this folder; the latest {MOST_EARLIER} are shown below."
PHOTO_COLUMNS = ("picture", "status", "sigma", "evaluations", "seconds")
PATH_EXPLANATION = (
    "\n\nBelow each picture you see it restored with a growing weight λ of the prior. Too little leaves the noise, too "
    "much loses detail. The marked one was chosen without knowing the true picture."
)
RULE_EXPLANATION = {
    "discrepancy": " Its chi2 is what a good restoration should have.",
    "sure": " It has the smallest estimated error (Stein's unbiased risk estimate).",
    "held-out": " It predicts best the measurements that were kept out of the fit.",
    "l-curve": " It lies at the corner of the curve of P against the residual.",
}
SIGMA_FROM = {
    "given": "",
    "estimated": ", estimated from the picture",
    "assumed": ", assumed",
    "corrected": ", corrected",
}


def rounded(value: float | None, digits: int) -> str:
    """A number for people; "-" if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


COLUMNS: dict[str, Callable[[Record], str]] = {
    "picture": lambda record: Path(record.picture).name,
    "status": lambda record: record.status,
    "sigma": lambda record: rounded(record.sigma, 3),
    "lam": lambda record: rounded(record.lam, 2),
    "loss": lambda record: rounded(record.loss, 0),
    "D": lambda record: rounded(record.D, 0),
    "P": lambda record: rounded(record.P, 0),
    "chi2": lambda record: rounded(record.chi2, 3),
    "evaluations": lambda record: str(record.evaluations),
    "seconds": lambda record: rounded(record.seconds, 1),
}


def table(records: Sequence[Record], columns: Sequence[str] = tuple(COLUMNS)) -> tuple[list[str], list[list[str]]]:
    """Header and rows for people, with some of `COLUMNS`."""
    return list(columns), [[COLUMNS[name](record) for name in columns] for record in records]


def write_page(
    out: Path,
    records: Sequence[Record],
    failed: Sequence[tuple[Path, str]],
    settings: Settings,
    command: str,
    earlier: Sequence[Record] = (),
) -> None:
    """Write the report of all records, of what could not be read, and of what other runs have left in the folder."""
    done = sum(record.done for record in records)
    intro = f"{TASKS[settings.task].title}: {done} of {len(records) + len(failed)} pictures restored."
    rules = {record.rule for record in records if record.path is not None}
    intro += "".join(PATH_EXPLANATION + RULE_EXPLANATION.get(rule, "") for rule in sorted(rules))
    sections = [Section("Not restored", text="\n\n".join(reason for _, reason in failed))] if failed else []
    sections += [_section(record) for record in records]
    whole = all(record.rule == NOISE_LEVELS for record in records)
    numbers = table(records, PHOTO_COLUMNS) if whole else table(records)
    sections.append(Section("Numbers", text=PHOTO_EXPLANATION if whole else EXPLANATION, table=numbers))
    if earlier:
        sections.append(Section("Earlier in this folder", text=EARLIER, table=_earlier_table(earlier)))
        sections += [_section(record) for record in reversed(earlier[-MOST_EARLIER:])]
    shown = {key.replace("_", " "): value for key, value in settings.record.items() if value is not None}
    write_report(out / REPORT, "Restored pictures", intro, sections, shown, command)


def _section(record: Record) -> Section:
    """One picture: before and after, how it was fitted, and its restorations over lam."""
    name = Path(record.picture).name
    facts = f"sigma {rounded(record.sigma, 3)}{SIGMA_FROM[record.sigma_from]}."
    facts += "".join(f" {note[:1].upper()}{note[1:]}." for note in record.notes)
    if record.rule == NOISE_LEVELS:
        return _photograph(record, name, facts)
    measurement, restorations = read_strip(record)
    measured = Figure(f"{name}, as measured", measurement)
    if not record.done:
        return Section(name, text=f"Not restored: {record.status}. {facts}", rows=[[measured]])
    note = f"λ {rounded(record.lam, 2)}, chi2 {rounded(record.chi2, 3)}"
    restored = next(image for tile, image in restorations if tile.chosen)
    sliders = [(measured, Figure(f"{name}, restored", restored, note))]
    whole = _whole(record)
    if whole:
        before, after = whole
        sliders.append((Figure("the whole picture", before), Figure("with the restored face", after)))
    if record.path is None:
        return Section(name, text=facts, sliders=sliders)
    strip = [
        Figure(
            f"λ {tile.lam:.2g}" + (", chosen" if tile.chosen else ""),
            image,
            f"chi2 {rounded(tile.chi2, 2)}",
            marked=tile.chosen,
        )
        for tile, image in restorations
    ]
    return Section(name, text=facts, sliders=sliders, strips=[strip], curves=_curves(record))


def _curves(record: Record) -> list[Curve]:
    path = record.path or ()
    lam = [point.lam for point in path]
    level = (record.target_chi2, "expected") if record.target_chi2 is not None else None
    return [
        Curve("chi2", lam, _values([point.chi2 for point in path]), _chosen(record, record.chi2), level),
        Curve("loss L = D + λ P, nats", lam, _values([point.loss for point in path]), _chosen(record, record.loss)),
    ]


def _values(numbers: Sequence[float | None]) -> list[float]:
    return [math.nan if number is None else number for number in numbers]


def _chosen(record: Record, value: float | None) -> tuple[float, float] | None:
    return None if record.lam is None or value is None else (record.lam, value)


def _photograph(record: Record, name: str, facts: str) -> Section:
    """A whole photograph: before and after, what has changed, what a classical method makes of it, and its noise."""
    restored, before = _read(record.restored), _read(record.picture, record.picture_sha256)
    if restored is None:
        return Section(name, text=facts)
    task, curves = record.settings["task"], []
    after = Figure(f"{name}, restored", _for_page(restored, restored))
    if before is None:
        return Section(name, text=f"{facts} The picture itself is gone, or has changed.", rows=[[after]])
    if task == "denoise" and (curve := noise_curve(before)) is not None:
        facts += (
            f" Where the picture is flat, its noise has a standard deviation of {rounded(curve.level, 3)} and a "
            f"correlation of {rounded(curve.correlation, 2)} between neighboring pixels; white noise has 0."
        )
        level = (record.sigma, "removed as")
        curves.append(Curve("sigma in flat places", curve.brightness, curve.sigma, None, level, "brightness", False))
    shown = _for_page(before, restored)
    sliders = [(Figure(f"{name}, before", shown), after)]
    if task != "demosaic":  # whose picture at hand has no colors
        change = after.image - shown
        gain = _gain(change)
        sliders.append((after, Figure(f"the difference, {gain} times as strong", (0.5 + gain * change).clamp(0, 1))))
    other = _read(record.classical)
    if other is not None:
        sliders.append((Figure(f"for comparison: {NAMES[str(task)]}", _for_page(other, restored)), after))
    return Section(name, text=facts, sliders=sliders, curves=curves)


def _gain(change: Tensor) -> int:
    """By which a difference is best seen: a power of two, at most 32."""
    largest = change.abs().flatten().kthvalue(max(1, round(0.99 * change.numel()))).values.item()
    return 2 ** max(0, min(5, math.floor(math.log2(0.5 / max(largest, 1e-3)))))


def _whole(record: Record) -> tuple[Tensor, Tensor] | None:
    """The photo before and after, small enough for a page; None if only a part was kept, or the photo is gone."""
    if record.face is None:
        return None
    before, after = _read(record.picture), _read(record.restored)
    return None if before is None or after is None else (_for_page(before, after), _for_page(after, after))


def _read(path: str | None, sha256: str | None = None) -> Tensor | None:
    """A picture (3, H, W); None if there is none, or not the one with this hash."""
    try:
        if path is None or (sha256 and hashlib.sha256(Path(path).read_bytes()).hexdigest() != sha256):
            return None
        return read_photograph(path).x.expand(3, -1, -1).clamp(0, 1)
    except (InputError, OSError):
        return None


def _for_page(x: Tensor, like: Tensor) -> Tensor:
    """A picture at the size of another one (3, H, W), or smaller if that is too large for a page."""
    scale = min(1.0, LARGEST / max(like.shape[1:]))
    size = [max(1, round(side * scale)) for side in like.shape[1:]]
    return F.interpolate(x[None], size, mode="bilinear", antialias=True)[0]


def _earlier_table(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    header, rows = table(records, PHOTO_COLUMNS)
    tasks = [str(record.settings.get("task")) for record in records]
    return [*header, "task"], [[*row, task] for row, task in zip(rows, tasks, strict=True)]
