"""The command line: reads options, calls the library, prints for people or as JSON.

Whatever needs torch is imported inside the commands, so that help and usage errors come at once.
"""

from __future__ import annotations

import errno
import os
import textwrap
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aipo.errors import InputError
from aipo.terminal import BenchBar, RestoreBar, TrainingBar, complain, print_card, print_json, print_line, print_table

__all__ = ["app", "main"]

DEFAULT_PRIOR = "celeba64-realnvp-small"
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # nobody's mistake, and no bug


class Task(StrEnum):
    """The names of `aipo.tasks.TASKS`, which cannot be imported here."""

    denoise = "denoise"
    inpaint = "inpaint"
    superres = "superres"
    deblur = "deblur"
    colorize = "colorize"
    sense = "sense"


class Fit(StrEnum):
    crop = "crop"
    resize = "resize"
    align = "align"


class SolverName(StrEnum):
    path = "path"
    quick = "quick"
    paper = "paper"
    decayed = "decayed"


class Model(StrEnum):
    realnvp_small = "realnvp-small"
    realnvp = "realnvp"
    glow = "glow"
    tarflow = "tarflow"


class _Group(TyperGroup):
    """Turns bad input and Ctrl-C into one line; every other exception is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt as interrupt:
            complain(f"interrupted; {str(interrupt) or 'every file that was written is complete'}")
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno not in STORAGE_ERRORS:
                raise
            complain(f"cannot write: {error.strerror}; what was finished is in place, make room and run it again")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    help="Restore images by MAP estimation with exact normalizing-flow priors of 64x64 aligned faces.",
    epilog="Start with: aipo demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
priors_app = typer.Typer(epilog="Example: aipo priors show celeba64-realnvp-small")
app.add_typer(priors_app, name="priors")
bench_app = typer.Typer(
    help="The paper's tables and figures, with our priors: run, stop, resume, report.",
    epilog="Example: aipo bench run --out results, then aipo bench report results",
    no_args_is_help=True,
)
app.add_typer(bench_app, name="bench")

PriorOption = Annotated[
    str, typer.Option("--prior", metavar="NAME|FILE", help="An embedded prior, or your own .safetensors file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def main() -> None:
    # Before torch is imported. By default its threads spin for long while they wait, which makes everything three times
    # slower where other programs want the same cores; not to spin at all costs a quarter where none does.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    app(prog_name="aipo")


def _version(wanted: bool) -> None:
    if wanted:
        from aipo import __version__

        print(f"aipo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options of `aipo` itself."""


@app.command(epilog="Example: aipo demo --out aipo-demo")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results; made if needed.")] = Path(
        "aipo-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="INTEGER", help="Of all that is random.")] = 0,
    prior: PriorOption = DEFAULT_PRIOR,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See what it does: corrupt and restore four sample pictures in three ways, in about a minute.

    Writes the pictures and a report.html that shows them all. Nothing is downloaded.
    """
    from aipo.demo import run_demo, table
    from aipo.zoo import load_prior

    start = time.perf_counter()
    records = run_demo(load_prior(prior), prior, out, seed, progress=not (as_json or quiet))
    report = out / "report.html"
    if as_json:
        print_json({"report": str(report), "results": records})
    elif not quiet:
        print_table(*table(records))
        print_line(f"Done in {time.perf_counter() - start:.1f} s. Open {report}")
    _exit_if_failed([(f"{record['task']} {record['image']}", record["status"]) for record in records])


@app.command(epilog="Example: aipo restore noisy.png --task denoise --out restored")
def restore(
    pictures: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER",
            readable=False,  # not typer's business: our own line says it better
            help="Corrupted pictures: PNG, JPEG, WebP, TIFF, BMP or .npy, 8 or 16 bits, colour or grey; for sense, "
            ".npy vectors. Of a folder all pictures in it.",
        ),
    ],
    task: Annotated[Task, typer.Option(help="What happened to the pictures.")],
    out: Annotated[Path, typer.Option(metavar="DIR", readable=False, help="Folder for the results; made if needed.")],
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the noise for pixels in 0..1.",
            show_default="estimated to denoise, 0.1 for sense, 0.01 for superres, else 0.02",
        ),
    ] = None,
    fit: Annotated[
        Fit | None,
        typer.Option(
            help="For pictures of another size than the prior's. crop: the middle, pixel by pixel. resize: the middle "
            "square, scaled. align: the largest face, and the result is put back into the picture.",
            show_default="such pictures are refused",
        ),
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(readable=False, help="To inpaint: white pixels are kept, black ones are missing.")
    ] = None,
    mask_color: Annotated[
        str | None,
        typer.Option(
            metavar="RRGGBB|NAME",
            help="To inpaint: the colour in which what is missing is painted.",
            show_default="transparent pixels are missing",
        ),
    ] = None,
    factor: Annotated[
        int | None, typer.Option(help="For superres: enlarge 2 or 4 times.", show_default="from the picture's size")
    ] = None,
    blur: Annotated[float | None, typer.Option(help="To deblur: width of a Gaussian blur, in pixels.")] = None,
    kernel: Annotated[
        Path | None, typer.Option(readable=False, help="To deblur: or the kernel, a .npy array or a grey picture.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="For sense: seed of a random matrix.")] = None,
    matrix: Annotated[
        Path | None, typer.Option(readable=False, help="For sense: or the matrix, a .npy array (m, n).")
    ] = None,
    lam: Annotated[
        str,
        typer.Option(
            metavar="auto|NUMBER",
            help="Weight of the prior. auto chooses it for each picture; a rule may be named: discrepancy, sure, "
            "held-out, l-curve.",
        ),
    ] = "auto",
    prior: PriorOption = DEFAULT_PRIOR,
    solver: Annotated[
        SolverName,
        typer.Option(
            help="path: all weights in at most 120 gradient evaluations. The others need a number for --lam. "
            "quick: the published algorithm, shortened to 150. paper: its own settings, 500 to 3,000. "
            "decayed: plain Adam, 251."
        ),
    ] = SolverName.path,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what is done to each picture.")] = False,
) -> None:
    """Restore corrupted pictures: remove noise or blur, fill in, enlarge, colour.

    Writes NAME.restored.png, NAME.strip.png (the restorations over lam) and
    NAME.json for each picture, and one report.html; with --fit align
    NAME.restored.png is the whole picture, and NAME.face.png what was restored.

    Grey pictures count as R = G = B, 16-bit colour is read with 8 bits, and
    transparent pixels can only be inpainted. What was done is in NAME.json.

    A picture that cannot be used stops no other: it is named at the end, and
    the exit code is 1. After an interrupt the same command goes on with what is
    missing. Nothing but earlier results is ever overwritten.
    """
    from aipo.restore import REPORT, Outcome, Settings, prepare, run, table

    settings = Settings(
        task=task.value,
        prior=prior,
        sigma=sigma,
        lam=lam,
        solver=solver.value,
        fit=fit.value if fit else None,
        mask=mask,
        mask_color=mask_color,
        factor=factor,
        kernel=kernel,
        blur=blur,
        matrix=matrix,
        seed=seed,
    )
    job = prepare(pictures, out, settings)
    outcome, wanted = Outcome(), len(job.listing.pictures)
    try:
        with RestoreBar(show=not (as_json or quiet), verbose=verbose and not quiet) as bar:
            for path in job.listing.skipped:
                bar.say(f"{path}: skipped, not a picture")
            run(job, bar, outcome)
    except KeyboardInterrupt:
        done = f"{outcome.done} of {wanted} pictures are restored"
        raise KeyboardInterrupt(f"{done}; the same command goes on with the others") from None
    report = out / REPORT
    if not outcome.records:
        _complain_of(outcome.failed)
        raise typer.Exit(2)
    if as_json:
        failed = [{"picture": str(path), "error": reason} for path, reason in outcome.failed]
        skipped = [str(path) for path in job.listing.skipped]
        print_json({"report": str(report), "pictures": outcome.records, "failed": failed, "skipped": skipped})
    elif not quiet:
        header, rows = table(outcome.records)
        print_table(header[:4] + header[7:], [row[:4] + row[7:] for row in rows])
        if any(record["sigma_from"] == "estimated" for record in outcome.records):
            print_line("sigma was estimated from each picture; give --sigma if you know it.")
        if job.listing.skipped:
            print_line(f"Files in the folders that are no pictures were skipped: {len(job.listing.skipped)}.")
        if outcome.resumed:
            print_line(f"Already there from an earlier run: {outcome.resumed}.")
        total = len(outcome.records) + len(outcome.failed)
        print_line(f"Restored {outcome.done} of {total} pictures in {outcome.seconds:.1f} s; see {report}")
    _complain_of(outcome.failed)
    _exit_if_failed([(record["picture"], record["status"]) for record in outcome.records])
    if outcome.failed:
        raise typer.Exit(1)


@app.command(epilog="Example: aipo corrupt photo.png --task inpaint --fraction 0.25 --fit align --out corrupted")
def corrupt(
    pictures: Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER", readable=False, help="Clean pictures.")],
    task: Annotated[Task, typer.Option(help="What to do to them.")],
    out: Annotated[Path, typer.Option(metavar="DIR", readable=False, help="Folder for the results; made if needed.")],
    sigma: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Standard deviation of the noise that is added, for pixels in 0..1.",
            show_default="0.1 for denoise and sense, 0.01 for superres, else 0.02",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, metavar="INTEGER", help="Of all that is random.")] = 0,
    fraction: Annotated[float, typer.Option(help="For inpaint: share of the picture that is missing.")] = 0.25,
    block: Annotated[int, typer.Option(help="For inpaint: in blocks of so many pixels.")] = 4,
    mask: Annotated[
        Path | None, typer.Option(readable=False, help="For inpaint: or a mask, black where pixels shall be missing.")
    ] = None,
    factor: Annotated[int, typer.Option(help="For superres: make it 2 or 4 times smaller.")] = 2,
    blur: Annotated[float, typer.Option(help="For deblur: width of a Gaussian blur, in pixels.")] = 1.5,
    kernel: Annotated[
        Path | None, typer.Option(readable=False, help="For deblur: or a kernel, a .npy array or a grey picture.")
    ] = None,
    measurements: Annotated[int, typer.Option(min=1, help="For sense: how many.")] = 2000,
    fit: Annotated[Fit | None, typer.Option(help="Cut a square first, as restore does.")] = None,
    size: Annotated[int, typer.Option(min=8, max=1024, help="With --fit: its side in pixels.")] = 64,
    floats: Annotated[
        bool, typer.Option("--npy", help="Write .npy files: nothing rounded to 8 bits or cut off at 0 and 1.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make corrupted pictures from clean ones, to try `aipo restore` on, and print the command that restores them.

    Writes NAME.TASK.png, or .npy vectors for sense, and the mask to inpaint. The same seed gives the same files.
    """
    from aipo.corrupt import Corruption
    from aipo.corrupt import corrupt as run_corrupt

    how = Corruption(
        task=task.value,
        sigma=sigma,
        seed=seed,
        mask=mask,
        fraction=fraction,
        block=block,
        factor=factor,
        kernel=kernel,
        blur=blur,
        measurements=measurements,
        fit=fit.value if fit else None,
        size=size,
        floats=floats,
    )
    written = run_corrupt(pictures, out, how)
    if as_json:
        print_json(written)
    elif not quiet:
        for path in written["files"]:
            print_line(path)
        print_line(f"Restore with:\n{written['restore']}")


@app.command(epilog="Example: aipo train photos --model realnvp-small --minutes 30 --out my-prior.safetensors")
def train(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of pictures, or a .npy or .npz array.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The prior, a .safetensors file; its card goes beside it.")],
    model: Annotated[Model, typer.Option(help="What kind of flow, and how large.")] = Model.realnvp_small,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time, schedule finished.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or stop after so many steps.")] = None,
    size: Annotated[int, typer.Option(min=16, help="Side of the images in pixels.")] = 64,
    mosaics: Annotated[
        bool,
        typer.Option("--mosaics", help="The pictures are sheets of tiles, each an image."),
    ] = False,
    bits: Annotated[int, typer.Option(min=1, max=8, help="Bits per value that the prior models.")] = 5,
    val: Annotated[
        Path | None, typer.Option(help="Validation images.", show_default="every 50th training image")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.001; tarflow 0.0005")] = None,
    ema: Annotated[float, typer.Option(min=0, max=1, help="Decay of the averaged weights, per step.")] = 0.999,
    noise: Annotated[
        float, typer.Option(min=0, help="Gaussian noise on the images (sigma, 0..1): a smoother prior.")
    ] = 0.0,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of the networks' matrices.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    every: Annotated[float, typer.Option(min=1, help="Seconds between validations and checkpoints.")] = 60.0,
    data: Annotated[str, typer.Option(help="For the card: what the images are.")] = "",
    licence: Annotated[str, typer.Option(help="For the card: the terms they came under.")] = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a prior of your own on a folder of images.

    Uses a GPU if there is one, and several under torchrun. If it is stopped, the same command goes on where it was.
    Besides the prior it writes a sheet of samples and the loss curve.
    """
    import torch

    from aipo.fit import fit
    from aipo.training import Settings

    settings = Settings(
        bits=bits,
        batch=batch,
        steps=steps,
        minutes=minutes,
        lr=lr or (5e-4 if model is Model.tarflow else 1e-3),
        ema=ema,
        noise=noise,
        weight_decay=weight_decay,
        seed=seed,
        # On a CPU compiling takes longer than a short training gains by it.
        compile=torch.cuda.is_available(),
    )
    with TrainingBar(show=not (as_json or quiet)) as bar:
        card = fit(
            images,
            out,
            model.value,
            settings,
            size=size,
            mosaics=mosaics,
            validation=val,
            data=data,
            licence=licence,
            every=every,
            report=bar.report,
            tick=bar.tick,
        )
    if not card["metrics"]:
        return  # one of several processes, but not the first, which has written everything
    if as_json:
        print_json(card)
    elif not quiet:
        bits_train, bits_val = (card["metrics"][f"bits_per_dim_{split}"] for split in ("train", "val"))
        print_line(f"{out}: {bits_val} bits/dim on validation images, {bits_train} on training images")


@app.command("app", epilog="Example: aipo app --port 8000")
def web_app(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in, without any password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="INTEGER", help="0 takes any that is free.")] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    prior: PriorOption = DEFAULT_PRIOR,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds after which a restoration is stopped.")] = 120.0,
) -> None:
    """Restore pictures in the browser: paint what is missing, watch the restoration grow, choose lam by eye.

    Needs the extra `app`. Everything is computed on this machine, and nothing is downloaded.
    """
    from aipo.web.server import serve

    serve(host, port, prior, time_limit, browser, lambda address: print_line(f"Open {address} (Ctrl-C ends it)"))


@priors_app.callback(invoke_without_command=True)
def priors(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the embedded priors, or show the card of one."""
    if ctx.invoked_subcommand:
        if as_json:
            raise InputError(f"--json belongs after {ctx.invoked_subcommand}")
        return
    from aipo.zoo import load_prior, prior_names

    rows = [_prior_row(name, load_prior(name).card) for name in prior_names()]
    if as_json:
        print_json(rows)
    elif rows:
        header = ["name", "model", "params", "size", "image", "bits/dim", "licence"]
        print_table(header, [_prior_cells(row) for row in rows], wide=6)
    else:
        print("No prior is embedded in this installation; train one, or give a file with --prior.")


@priors_app.command(epilog="Example: aipo priors show celeba64-realnvp-small")
def show(
    prior: Annotated[str, typer.Argument(metavar="NAME|FILE", help="An embedded prior, or a .safetensors file.")],
    as_json: JsonOption = False,
) -> None:
    """Print the card of a prior: what it is, what it was trained on, how good it is, and its licence."""
    from aipo.zoo import load_prior

    card = load_prior(prior).card
    if as_json:
        print_json(card)
    else:
        print_card(card)


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

    chosen = PROTOCOLS[_one_of("protocol", protocol, PROTOCOLS)]
    given = {name: path for name, path in (("test", test), ("ood", ood), ("fairface", fairface)) if path}
    priors = tuple(prior or chosen.priors)
    absent = [name for name in chosen.methods if not METHODS[name].available] if not method else []
    if absent and not (as_json or quiet):
        print_line(f"Left out for want of a package: {', '.join(absent)}; pip install 'aipo[classical]' brings them.")
    size = load_prior(priors[0]).image_shape[1]
    plan = Plan(
        pictures={name: read_pictures(path, size, mosaics) for name, path in given.items()},
        priors=priors,
        tasks=tuple(_one_of("task", name, TASKS) for name in task or TASKS),
        methods=tuple(_one_of("method", name, METHODS) for name in method or chosen.methods if name not in absent),
        splits=tuple(_one_of("split", name, chosen.splits) for name in split or chosen.splits),
        lambdas=tuple(sorted(set(lam or LAMBDAS))),
        precision=_one_of("precision", precision, ("exact", "fast")),  # type: ignore[arg-type]
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


@bench_app.command("report", epilog="Example: aipo bench report results")
def bench_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `aipo bench run --out` wrote.")],
    setup: Annotated[str | None, typer.Option(help="Which settings, if the folder has several.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the paper's tables beside ours, as Markdown, LaTeX, CSV and one HTML page, from the results in DIR."""
    from aipo.bench.summary import write_summary

    files = write_summary(folder, setup)
    if as_json:
        print_json({"files": [str(file) for file in files]})
    elif not quiet:
        print_line(f"Wrote {', '.join(file.name for file in files)} in {folder}")


def _one_of(what: str, name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise InputError(f"unknown {what} {name}; choose from {', '.join(known)}")
    return name


def _complain_of(failed: list[tuple[Path, str]]) -> None:
    for _, reason in failed:
        complain(reason)


def _exit_if_failed(statuses: list[tuple[str, str]]) -> None:
    failed = [(name, status) for name, status in statuses if status != "done"]
    for name, status in failed:
        complain(f"{name}: not restored, the solver stopped with: {status}")
    if failed:
        raise typer.Exit(1)


def _prior_row(name: str, card: dict[str, Any]) -> dict[str, Any]:
    import aipo.zoo

    return {
        "name": name,
        "architecture": card["architecture"],
        "parameters": card.get("parameters"),
        "bytes": (Path(aipo.zoo.__file__).parent / f"{name}.safetensors").stat().st_size,
        "image_shape": card["config"]["image_shape"],
        "bits_per_dim_val": card["metrics"].get("bits_per_dim_val"),
        "licence": card["licence"],
    }


def _prior_cells(row: dict[str, Any]) -> list[str]:
    parameters, bits = row["parameters"], row["bits_per_dim_val"]
    return [
        row["name"],
        row["architecture"],
        "-" if parameters is None else f"{parameters / 1e6:.2f} M",
        f"{row['bytes'] / 1e6:.1f} MB",
        "x".join(map(str, row["image_shape"][1:])),
        "-" if bits is None else f"{bits:.3f}",
        textwrap.shorten(row["licence"], 32, placeholder="..."),
    ]
