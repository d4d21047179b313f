"""`aipo bench run`, `aipo bench report` and `aipo bench pack`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aipo.cli.common import DeviceOption, JsonOption, QuietOption, RayOption, one_of, spread_over
from aipo.cli.terminal import BenchBar, complain, print_json, print_line
from aipo.errors import InputError, how_to_install

if TYPE_CHECKING:
    from aipo.evaluation.image_set import ImageSet
    from aipo.evaluation.plan import Plan
    from aipo.evaluation.protocol import Protocol
    from aipo.evaluation.runner import Spread, Tally

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="The paper's tables and figures with our priors: run, stop, resume, report, pack.",
    epilog="Example: aipo bench run --out runs/bench, then aipo bench report runs/bench",
    no_args_is_help=True,
)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What `aipo bench run --out` wrote.")]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results. A run goes on where it stopped.")]
ProtocolOption = Annotated[
    str, typer.Option(help="paper: constant steps, equal evaluations. fair: tuned baselines and the path solver.")
]
TestOption = Annotated[
    Path | None,
    typer.Option(
        help="Test images: a folder, a file, an array, or a folder with CelebA's img_align_celeba in it.",
        show_default="drawn from the prior",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that share the chunks.", show_default="1: more would falsify `seconds`"),
]
OodOption = Annotated[
    Path | None, typer.Option(help="Images that are not like the training images.", show_default="the sample pictures")
]


@bench_app.command("run", epilog="Example: aipo bench run --out runs/bench --prior celeba64-realnvp-small --subset 2")
def bench_run(
    out: OutOption,
    protocol: ProtocolOption = "paper",
    prior: Annotated[list[str] | None, typer.Option(metavar="NAME|FILE", help="Only these priors.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only these: denoise, ncs4000, ncs2000, inpaint.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods of the protocol.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only these: test, ood, fairface.")] = None,
    lam: Annotated[list[float] | None, typer.Option(help="Weights of the prior.", show_default="the paper's")] = None,
    test: TestOption = None,
    ood: OodOption = None,
    fairface: Annotated[Path | None, typer.Option(help="Images of a third split.", show_default="left out")] = None,
    mosaics: Annotated[bool, typer.Option("--mosaics", help="Image files are sheets of tiles.")] = False,
    subset: Annotated[int | None, typer.Option(min=1, help="Images of each split.", show_default="all")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes after which nothing new begins.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="How many images are solved together.")] = 50,
    keep: Annotated[int, typer.Option(min=0, help="Keep the restorations of this many images of each split.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Keep losses over evaluations, for a figure.")] = False,
    device: DeviceOption = "auto",
    precision: Annotated[str, typer.Option(help="exact, or fast on a GPU.")] = "exact",
    seed: Annotated[
        int, typer.Option(min=0, max=2**20, metavar="INTEGER", help="Seed of everything that is random.")
    ] = 0,
    jobs: JobsOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure everything in a protocol, and keep one row per image and weight in DIR.

    Without images of your own it runs on faces drawn from the prior itself, the astronaut and the cat. You may stop it
    at any moment: the same command goes on with what is missing.
    """
    from aipo.evaluation.plan import Plan
    from aipo.evaluation.protocol import LAMBDAS, PROTOCOLS

    chosen = PROTOCOLS[one_of("protocol", protocol, PROTOCOLS)]
    priors = tuple(dict.fromkeys(prior or chosen.priors))
    plan = Plan(
        image_sets=_image_sets(chosen, {"test": test, "ood": ood, "fairface": fairface}, priors[0], mosaics),
        priors=priors,
        tasks=_tasks(task),
        methods=_methods(chosen, method, silent=as_json or quiet),
        splits=tuple(one_of("split", name, chosen.splits) for name in dict.fromkeys(split or chosen.splits)),
        lambdas=tuple(sorted(set(lam or LAMBDAS))),
        precision=one_of("precision", precision, ("exact", "fast")),  # type: ignore[arg-type]
        device=device,
        seed=seed,
        chunk=chunk,
        subset=subset,
        minutes=budget,
        keep=keep,
        trace=trace,
    )
    tally = _run(plan, out, not (as_json or quiet), spread_over(jobs, ray, 1, plan.device))
    _print(tally, out, keep > 0 or trace, as_json, quiet)
    for reason in tally.failed:
        complain(reason)
    if tally.failed:
        raise typer.Exit(1)


def _image_sets(protocol: Protocol, given: dict[str, Path | None], prior: str, mosaics: bool) -> dict[str, ImageSet]:
    from aipo.evaluation.image_set import read_image_set
    from aipo.priors.zoo import load_flow_prior

    for split, path in given.items():
        if path and split not in protocol.splits:
            raise InputError(f"--{split}: the protocol {protocol.name} has no such split; choose another --protocol")
    size = load_flow_prior(prior).image_shape[1]
    return {split: read_image_set(path, size, mosaics) for split, path in given.items() if path}


def _tasks(wanted: list[str] | None) -> tuple[str, ...]:
    from aipo.evaluation.protocol import EXPERIMENTS

    return tuple(one_of("task", name, EXPERIMENTS) for name in dict.fromkeys(wanted or EXPERIMENTS))


def _methods(protocol: Protocol, wanted: list[str] | None, silent: bool) -> tuple[str, ...]:
    """Those that were asked for, or all of the protocol whose packages are installed."""
    from aipo.evaluation.methods import METHODS

    if wanted:
        return tuple(one_of("method", name, METHODS) for name in dict.fromkeys(wanted))
    missing = [name for name in protocol.methods if not METHODS[name].available]
    if missing and not silent:
        print_line(
            f"Left out, because their packages are missing: {', '.join(missing)}. {how_to_install('classical')}."
        )
    return tuple(name for name in protocol.methods if name not in missing)


def _run(plan: Plan, out: Path, show: bool, spread: Spread | None) -> Tally:
    from aipo.evaluation.runner import run
    from aipo.evaluation.store import Store

    with BenchBar(show) as bar:

        def report(tally: Tally, cell: str, share: float) -> None:
            bar.report(tally.total, tally.present + tally.written, cell, share)

        return run(plan, Store(out), report, spread)


def _print(tally: Tally, out: Path, kept: bool, as_json: bool, quiet: bool) -> None:
    if as_json:
        counts = {"total": tally.total, "written": tally.written, "left": tally.left}
        print_json({"folder": str(out), **counts, "failed": tally.failed})
    elif not quiet:
        more = f"; {tally.left} are left, run the same command again" if tally.left else ""
        print_line(f"{out}: {tally.written} results written, {tally.present} were there{more}")
        if kept and tally.present:
            print_line("Images and traces are kept only of what was solved now, not of what was there.")


@bench_app.command("report", epilog="Example: aipo bench report runs/bench")
def bench_report(
    folder: FolderArgument,
    setup: Annotated[str | None, typer.Option(help="Which settings, if the folder has several.")] = None,
    paper: Annotated[bool, typer.Option(help="The paper's numbers, of CelebA's test images, beside ours.")] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write tables and figures like the paper's (Markdown, LaTeX, CSV, PNG) and one HTML page, from the rows in DIR."""
    from aipo.evaluation.analysis.summary import write_summary

    files = write_summary(folder, setup, paper)
    if as_json:
        print_json({"files": [str(file) for file in files]})
    elif not quiet:
        print_line(f"Wrote {', '.join(file.name for file in files)} in {folder}")


@bench_app.command("pack", epilog="Example: aipo bench pack runs/bench --remove")
def bench_pack(
    folder: FolderArgument,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete the many small files, once the packed ones are checked.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Gather all rows of DIR in one file, rows.parquet, and all traces in another, traces.json.gz, to keep or publish.

    Nothing is lost: `aipo bench report` makes the same tables, and `aipo bench run` goes on in a packed folder.
    """
    from aipo.evaluation.store import Store

    packed = Store(folder).pack(remove)
    if as_json:
        print_json({"folder": str(folder), "cells": packed.cells, "traces": packed.traces, "removed": packed.removed})
    elif not quiet:
        gone = f"; {packed.removed} small files deleted" if remove else ""
        print_line(f"{folder}: {packed.cells} cells and {packed.traces} traces packed{gone}")
