"""`aipo bench run` and `aipo bench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import JsonOption, QuietOption, one_of
from aipo.errors import InputError, how_to_install
from aipo.terminal import BenchBar, print_json, print_line

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="The paper's tables and figures, with our priors: run, stop, resume, report.",
    epilog="Example: aipo bench run --out results, then aipo bench report results",
    no_args_is_help=True,
)


@bench_app.command("run", epilog="Example: aipo bench run --out results --prior celeba64-realnvp-small --subset 2")
def bench_run(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results; a run goes on where it stopped.")],
    protocol: Annotated[
        str, typer.Option(help="paper: constant steps, equal evaluations. fair: tuned baselines and the path solver.")
    ] = "paper",
    prior: Annotated[list[str] | None, typer.Option(metavar="NAME|FILE", help="Only these priors.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only these: denoise, ncs4000, ncs2000, inpaint.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods of the protocol.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only these: test, ood, fairface.")] = None,
    lam: Annotated[list[float] | None, typer.Option(help="Weights of the prior.", show_default="the paper's")] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Test images: a folder, a file, an array, or a folder with CelebA's img_align_celeba in it.",
            show_default="drawn from the prior",
        ),
    ] = None,
    ood: Annotated[
        Path | None, typer.Option(help="Images out of the distribution.", show_default="the sample pictures")
    ] = None,
    fairface: Annotated[Path | None, typer.Option(help="Images of a third split.", show_default="left out")] = None,
    mosaics: Annotated[bool, typer.Option("--mosaics", help="Picture files are sheets of tiles.")] = False,
    subset: Annotated[int | None, typer.Option(min=1, help="Only so many images of each split.")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes after which nothing new is begun.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Images that are solved together.")] = 50,
    keep: Annotated[int, typer.Option(min=0, help="Keep the pictures of the first so many images of each split.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Keep losses over evaluations, for a figure.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")] = None,
    precision: Annotated[str, typer.Option(help="exact, or fast on a GPU.")] = "exact",
    seed: Annotated[int, typer.Option(min=0, max=2**20, metavar="INTEGER", help="Of all that is random.")] = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure every cell of a protocol, and keep one row per image and weight in DIR.

    Without pictures of your own it runs on faces drawn from the prior itself, the astronaut and the cat. It may be
    stopped at any moment: the same command goes on with what is missing.
    """
    import torch

    from aipo.bench.methods import METHODS
    from aipo.bench.pictures import read_pictures
    from aipo.bench.protocol import LAMBDAS, PROTOCOLS, TASKS
    from aipo.bench.runner import Plan, Tally, run
    from aipo.bench.store import Store
    from aipo.zoo import load_prior

    chosen = PROTOCOLS[one_of("protocol", protocol, PROTOCOLS)]
    given = {name: path for name, path in (("test", test), ("ood", ood), ("fairface", fairface)) if path}
    for name in given:
        if name not in chosen.splits:
            raise InputError(f"--{name} is given, but the protocol {chosen.name} has no such split: see --protocol")
    priors = tuple(dict.fromkeys(prior or chosen.priors))
    absent = [name for name in chosen.methods if not METHODS[name].available] if not method else []
    if absent and not (as_json or quiet):
        print_line(f"Left out for want of a package: {', '.join(absent)}: {how_to_install('classical')}.")
    size = load_prior(priors[0]).image_shape[1]
    plan = Plan(
        pictures={name: read_pictures(path, size, mosaics) for name, path in given.items()},
        priors=priors,
        tasks=tuple(one_of("task", name, TASKS) for name in dict.fromkeys(task or TASKS)),
        methods=tuple(
            one_of("method", name, METHODS) for name in dict.fromkeys(method or chosen.methods) if name not in absent
        ),
        splits=tuple(one_of("split", name, chosen.splits) for name in dict.fromkeys(split or chosen.splits)),
        lambdas=tuple(sorted(set(lam or LAMBDAS))),
        precision=one_of("precision", precision, ("exact", "fast")),  # type: ignore[arg-type]
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        seed=seed,
        chunk=chunk,
        subset=subset,
        minutes=budget,
        keep=keep,
        trace=trace,
    )
    with BenchBar(show=not (as_json or quiet)) as bar:

        def report(tally: Tally, cell: str, share: float) -> None:
            bar.report(tally.total, tally.present + tally.written, cell, share)

        tally = run(plan, Store(out), report)
    if as_json:
        print_json({"folder": str(out), "total": tally.total, "written": tally.written, "left": tally.left})
    elif not quiet:
        more = f"; {tally.left} are left, run the same command again" if tally.left else ""
        print_line(f"{out}: {tally.written} results written, {tally.present} were there{more}")
        if (keep or trace) and tally.present:
            print_line("Pictures and traces are kept of what was solved now, not of what was there.")


@bench_app.command("report", epilog="Example: aipo bench report results")
def bench_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `aipo bench run --out` wrote.")],
    setup: Annotated[str | None, typer.Option(help="Which settings, if the folder has several.")] = None,
    paper: Annotated[bool, typer.Option(help="The paper's numbers, of CelebA's test images, beside ours.")] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write tables and figures like the paper's (Markdown, LaTeX, CSV, PNG) and one HTML page, from the rows in DIR."""
    from aipo.bench.summary import write_summary

    files = write_summary(folder, setup, paper)
    if as_json:
        print_json({"files": [str(file) for file in files]})
    elif not quiet:
        print_line(f"Wrote {', '.join(file.name for file in files)} in {folder}")
