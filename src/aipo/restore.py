"""Restore picture files: check what is asked for, then read, solve and write a few pictures at a time.

`prepare` refuses options that cannot be used before anything is solved or written. `run` does the rest; what is wrong
with one picture stops none of the others, and what is finished stays, whatever happens later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from aipo.choose import EVALS, Choice, Rule, choose_lambda
from aipo.errors import InputError
from aipo.files import ensure_folder
from aipo.images import open_picture, png_bytes, tile
from aipo.iterate import Result
from aipo.noise import Gaussian
from aipo.path import Path as LamPath
from aipo.problem import MapProblem
from aipo.restoring.inputs import Item, Listing, Reader, list_pictures
from aipo.restoring.outputs import REPORT, Outputs, check_targets
from aipo.restoring.page import rounded, table, write_page
from aipo.restoring.settings import LAM_RULES, SOLVERS, Settings

__all__ = [
    "LAM_RULES",
    "REPORT",
    "SOLVERS",
    "Job",
    "Outcome",
    "Settings",
    "Watcher",
    "numbers",
    "path_numbers",
    "prepare",
    "rounded",
    "run",
    "table",
]

CHUNK = 8  # pictures solved together; an interrupt costs at most these
STRIP_LENGTH = 9  # restorations over lam that are kept as pictures


class Watcher(Protocol):
    """Is told how a run gets on."""

    def begin(self, total: int) -> None:
        """So many pictures are to be solved."""

    def reached(self, pictures: float) -> None:
        """So many are done; a fraction for those under way."""

    def say(self, text: str) -> None:
        """Something about one picture or a few."""


@dataclass(frozen=True)
class Job:
    """What is to be done: files and folders as they were named, and the pictures found there."""

    arguments: Sequence[Path]
    out: Path
    settings: Settings
    listing: Listing

    @property
    def command(self) -> str:
        """The command line that does the same again."""
        return self.settings.command(self.arguments, self.out)


@dataclass
class Outcome:
    """What a run has done so far.

    Attributes:
        records: those in the JSON files, of all pictures that could be read, also those of an earlier run.
        failed: pictures and folders that could not be used, and why, in a line that names them.
        resumed: how many of the records an equal run before this one has written.
        seconds: what this run took.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return sum(record["status"] == "done" for record in self.records)


def prepare(arguments: Sequence[Path], out: Path, settings: Settings) -> Job:
    """Find the pictures, and check everything that concerns all of them.

    Arguments:
        arguments: picture files, and folders of them.
        out: where the results go: NAME.restored.png, NAME.strip.png and NAME.json for each picture, and report.html.

    Raises:
        InputError: something cannot be used; nothing has been written then.
    """
    others = [path for path in (settings.mask, settings.kernel, settings.matrix) if path]
    listing = list_pictures(arguments, others)
    check_targets(listing.pictures, out, others)
    settings.load()
    return Job(arguments, out, settings, listing)


def run(job: Job, watcher: Watcher, outcome: Outcome | None = None) -> Outcome:
    """Restore all pictures, a few at a time, and write their results and the report.

    A picture that could not be solved gets a record with its status, but no restoration. One that an equal run has
    restored already is left as it is. On an interrupt what is finished is in place, in `outcome` and in the report.
    """
    start = time.perf_counter()
    outcome = Outcome() if outcome is None else outcome
    outcome.failed += job.listing.failed
    known = {picture: Outputs(picture, job.out).finished(job.settings.record) for picture in job.listing.pictures}
    left = [picture for picture in job.listing.pictures if known[picture] is None]
    outcome.resumed = len(known) - len(left)
    reader = Reader(job.settings)
    watcher.begin(len(left))
    try:
        for first in range(0, len(left), CHUNK):
            items = _read(reader, left[first : first + CHUNK], outcome, watcher)
            if items:
                ensure_folder(job.out)
            finished = 0
            for group in _measured_alike(items):
                base = first + len(left[first : first + CHUNK]) - len(items) + finished
                for record in _restore(group, job, watcher, base, outcome):
                    known[Path(record["picture"])] = record
                finished += len(group)
            watcher.reached(min(first + CHUNK, len(left)))
    finally:
        # An interrupt comes by here too: the report shows what is finished.
        outcome.records = [record for record in known.values() if record is not None]
        outcome.seconds = time.perf_counter() - start
        if outcome.records:
            ensure_folder(job.out)
            write_page(job.out, outcome.records, outcome.failed, job.settings, job.command)
    return outcome


def _read(reader: Reader, pictures: Sequence[Path], outcome: Outcome, watcher: Watcher) -> list[Item]:
    items = []
    for picture in pictures:
        try:
            item = reader.read(picture)
        except InputError as error:
            outcome.failed.append((picture, str(error)))
            continue
        notes = "".join(f"; {note}" for note in item.notes)
        watcher.say(f"{picture}: sigma {item.sigma:.4f}, {item.sigma_from}{notes}")
        items.append(item)
    return items


def _measured_alike(items: Sequence[Item]) -> list[list[Item]]:
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(id(item.operator), []).append(item)
    return list(groups.values())


def _restore(
    items: Sequence[Item], job: Job, watcher: Watcher, base: int, outcome: Outcome
) -> Iterator[dict[str, Any]]:
    """Solve pictures that were measured alike together, write their files, and yield their records."""
    start = time.perf_counter()
    try:
        problem = _problem(items, job.settings)
        watcher.say(f"solving {len(items)} together: {problem.operator!r}, {problem.prior.name}")
        result, choice = _solve(problem, job.settings, lambda share: watcher.reached(base + share * len(items)))
    except InputError as error:
        if len(items) == 1:
            outcome.failed.append((items[0].path, f"{items[0].path}: {error}"))
            return
        for i, item in enumerate(items):  # perhaps not all of them are to blame
            yield from _restore([item], job, watcher, base + i, outcome)
        return
    seconds = round(time.perf_counter() - start, 3)
    paths = path_numbers(problem, choice.path) if choice else [[]] * len(items)
    for i, (item, values) in enumerate(zip(items, numbers(problem, result), strict=True)):
        target = choice.target[i].item() if choice else math.nan
        along = [(p["lam"], p["chi2"], x) for p, x in zip(paths[i], choice.path.x[i], strict=False)] if choice else []
        tiles, strip = _strip(item.view, values, result.x[i], along)
        record = {
            "picture": str(item.path),
            "picture_sha256": item.sha256,
            **values,
            "sigma": item.sigma,
            "sigma_from": item.sigma_from,
            "noise_gain": item.noise_gain,
            "rule": choice.rule if choice else "fixed",
            "target_chi2": _finite(target),
            "path": paths[i] or None,
            "tiles": tiles,
            "notes": list(item.notes),
            # The pictures were solved together, so the time is that of them all.
            "seconds": seconds,
            "batch": len(items),
            "settings": job.settings.record,
        }
        pictures = {"strip": strip}
        if values["status"] == "done":
            pictures |= _restored(item, result.x[i], job.settings)
        record = Outputs(item.path, job.out).write(pictures, record)
        watcher.say(
            f"{item.path}: {values['status']}, lam {rounded(values['lam'], 3)}, {values['evaluations']} evaluations"
        )
        yield record


def _problem(items: Sequence[Item], settings: Settings) -> MapProblem:
    sigmas = {item.sigma for item in items}
    noise = Gaussian(sigmas.pop() if len(sigmas) == 1 else torch.tensor([item.sigma for item in items]))
    return MapProblem(settings.loaded, items[0].operator, noise, torch.stack([item.y for item in items]))


def _solve(problem: MapProblem, settings: Settings, share: Callable[[float], None]) -> tuple[Result, Choice | None]:
    if isinstance(settings.lam, str):
        # Two of the rules follow a second path.
        follow = _Share(share, EVALS * (2 if settings.lam in ("sure", "held-out") else 1))
        choice = choose_lambda(problem, cast(Rule, settings.lam), callback=follow)
        return choice.result, choice
    solver = SOLVERS[settings.solver](settings.lam)
    result: Result | LamPath = solver.solve(problem, settings.lam, callback=_Share(share, solver.budget))
    return (result.at(settings.lam) if isinstance(result, LamPath) else result), None


class _Share:
    """Turns the states that a solver reports into the share of the work that is done."""

    def __init__(self, share: Callable[[float], None], total: int | Callable[[Any], int]):
        self.share, self.total = share, total
        self.before, self.last = 0.0, 0.0

    def __call__(self, state: Any) -> None:
        spent = state.evals.double().mean().item()
        if spent < self.last:  # another path has begun
            self.before += self.last
        self.last = spent
        if callable(self.total):
            # The budget is that of the whole solve, beginning where it is first seen.
            self.total = max(1, round(spent) + self.total(state))
        self.share(min(1.0, (self.before + spent) / self.total))


def _strip(
    view: Tensor, values: dict[str, Any], x: Tensor, along: Sequence[tuple[float, float | None, Tensor]]
) -> tuple[list[dict[str, Any]], bytes]:
    """The measurement and the restorations over lam, the chosen one among them, as one PNG; and what each one is."""
    along = along[:: max(1, math.ceil(len(along) / STRIP_LENGTH))] if along else []
    shown = [({"lam": lam, "chi2": chi2, "chosen": False}, image) for lam, chi2, image in along]
    if values["status"] == "done":
        where = sum(lam <= values["lam"] for lam, _, _ in along)
        shown.insert(where, ({"lam": values["lam"], "chi2": values["chi2"], "chosen": True}, x))
    images = [view, *(image for _, image in shown)]
    return [what for what, _ in shown], png_bytes(tile([image.cpu() for image in images], len(images), gap=0))


def _restored(item: Item, x: Tensor, settings: Settings) -> dict[str, bytes]:
    """The result as PNG: the part that was restored, and with --fit align the whole picture with that part in it.

    Of a picture that was inpainted only what was missing is replaced: the rest is known, and finer.
    """
    if settings.fit != "align" or item.window is None:
        return {"restored": png_bytes(x)}
    # Read again rather than kept: photographs are large, and eight of them wait here.
    whole = open_picture(item.path, noisy=True).x.expand(3, -1, -1)
    result = item.window.paste(whole, x.cpu().clamp(0, 1))
    if item.observed is not None:
        result = torch.where(item.observed, whole, result)
    return {"restored": png_bytes(result), "face": png_bytes(x)}


def path_numbers(problem: MapProblem, path: LamPath) -> list[list[dict[str, Any]]]:
    """For each image, what is known at each lam of its path, ready for JSON: None where a value is not finite."""
    columns = {
        "lam": path.lam,
        "chi2": path.chi2(problem),
        "loss": path.loss,
        "D": path.D,
        "P": path.P,
        "gap": path.gap,
    }
    solved = path.lam.isfinite().sum(1).tolist()
    return [
        [{name: _finite(column[i, j].item()) for name, column in columns.items()} for j in range(count)]
        for i, count in enumerate(solved)
    ]


@torch.no_grad()
def numbers(problem: MapProblem, result: Result) -> list[dict[str, Any]]:
    """What a result says about each image, ready for JSON: None where a value is not finite."""
    columns = {"loss": result.loss, "D": result.D, "P": result.P, "chi2": problem.chi2(result.x)}
    return [
        {
            "status": status,
            "lam": result.lam[i].item() if status == "done" else None,
            **{name: _finite(column[i].item()) for name, column in columns.items()},
            "evaluations": int(result.evals[i]),
        }
        for i, status in enumerate(result.status)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
