"""`aipo restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aipo.cli.common import (
    FITS,
    DeviceOption,
    JobsOption,
    JsonOption,
    OutOption,
    QuietOption,
    RayOption,
    by_value,
    choices,
    exit_if_failed,
    spread_over,
)
from aipo.cli.terminal import RestoreBar, complain, print_json, print_line, print_table
from aipo.restore.tasks import FACE_PRIOR, FACTORS, PATTERNS, PHOTO_PRIOR, TASKS

if TYPE_CHECKING:
    from aipo.restore.run import Job, Outcome, Spread

__all__ = ["restore"]

# Those of `aipo.restore.settings`, which needs torch and cannot be imported here.
SOLVERS = {
    "path": "all weights in at most 60 gradients, a single one in 120",
    "quick": "our short form of the published algorithm, 150 gradients",
    "paper": "the published algorithm, 500 to 1,600",
    "decayed": "plain Adam, 251",
}
SIGMA_DEFAULT = by_value({t.name: "estimated" if t.sigma is None else f"{t.sigma:g}" for t in TASKS.values()})
COLUMNS = ("picture", "status", "sigma", "lam", "chi2", "evaluations", "seconds")  # those that fit a terminal

Images = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGE|FOLDER",
        readable=False,  # not typer's business: our own line says it better
        help="Corrupted pictures: PNG, JPEG, WebP, TIFF, BMP, AVIF or .npy, 8 or 16 bits, color or gray; for sense, "
        ".npy vectors. A folder stands for all pictures in it.",
    ),
]
TaskOption = Annotated[str, typer.Option(help="What happened to the pictures.", **choices("task", TASKS))]
Sigma = Annotated[
    float | None,
    typer.Option(help="Standard deviation of the noise for pixels in 0..1.", show_default=SIGMA_DEFAULT),
]
TrustSigma = Annotated[bool, typer.Option("--trust-sigma", help="Use --sigma even if the picture contradicts it.")]
Fit = Annotated[
    str | None,
    typer.Option(
        help="For pictures that do not have the prior's size. "
        + " ".join(f"{name}: {what}." for name, what in FITS.items())
        + " The restored face is put back into the picture.",
        show_default="such pictures are refused",
        **choices("fit", FITS),
    ),
]
Mask = Annotated[
    Path | None, typer.Option(readable=False, help="For inpaint: white pixels are kept, black ones are missing.")
]
MaskColor = Annotated[
    str | None,
    typer.Option(
        metavar="RRGGBB|NAME",
        help="For inpaint: the color in which the missing pixels are painted.",
        show_default="transparent pixels are missing",
    ),
]
Factor = Annotated[
    int | None,
    typer.Option(
        help=f"For superres: enlarge {' or '.join(map(str, FACTORS))} times.",
        show_default="from the picture's size; 2 for a whole photograph",
    ),
]
Blur = Annotated[float | None, typer.Option(help="For deblur: width of a Gaussian blur, in pixels.")]
Motion = Annotated[
    str | None, typer.Option(metavar="LENGTH,ANGLE", help="For deblur: or a straight motion, in pixels and degrees.")
]
Kernel = Annotated[
    Path | None, typer.Option(readable=False, help="For deblur: or the kernel, a .npy array or a gray picture.")
]
Pattern = Annotated[
    str | None,
    typer.Option(
        help="For demosaic: colors of the upper left 2x2 pixels, row by row.",
        show_default=PATTERNS[0],
        **choices("pattern", PATTERNS),
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="png|jpg|...", help="For whole photographs: format of the results.", show_default="that of each picture"
    ),
]
Quality = Annotated[int | None, typer.Option(help="Of JPEG, WebP and AVIF results, 1 to 100.", show_default="95")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Do also what looks like a mistake.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="For whole photographs: show also what a classical method makes of them.")
]
Faces = Annotated[
    str | None,
    typer.Option(
        metavar="auto",
        help=f"For whole photographs, denoise: improve small faces by {FACE_PRIOR}, where that is measurably better.",
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="For sense: seed of a random matrix.")]
Matrix = Annotated[Path | None, typer.Option(readable=False, help="For sense: or the matrix, a .npy array (m, n).")]
Lam = Annotated[
    str,
    typer.Option(
        metavar="auto|NUMBER",
        help="Weight of the prior. auto chooses it for each picture; or name a rule: discrepancy, sure, held-out, "
        "l-curve.",
    ),
]
Solver = Annotated[
    str,
    typer.Option(
        help=" ".join(f"{name}: {what}." for name, what in SOLVERS.items()) + " All but path need a number for --lam.",
        **choices("solver", SOLVERS),
    ),
]
PriorOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="An embedded prior, or your own .safetensors file.",
        show_default=f"{PHOTO_PRIOR} for whole photographs, if it is embedded; {FACE_PRIOR} for 64x64 faces, that is "
        f"with --fit, --lam or --solver, and for {' and '.join(t.name for t in TASKS.values() if not t.whole)}",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say what is done to each picture.")]


def restore(
    images: Images,
    task: TaskOption,
    out: OutOption,
    sigma: Sigma = None,
    trust_sigma: TrustSigma = False,
    fit: Fit = None,
    mask: Mask = None,
    mask_color: MaskColor = None,
    factor: Factor = None,
    blur: Blur = None,
    motion: Motion = None,
    kernel: Kernel = None,
    pattern: Pattern = None,
    seed: Seed = None,
    matrix: Matrix = None,
    lam: Lam = "auto",
    prior: PriorOption = None,
    solver: Solver = "path",
    format: Format = None,
    quality: Quality = None,
    anyway: Anyway = False,
    compare: Compare = False,
    faces: Faces = None,
    device: DeviceOption = "auto",
    jobs: JobsOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: Verbose = False,
) -> None:
    """Restore corrupted pictures: remove noise or blur, fill in, enlarge, color.

    Writes NAME.restored.png and NAME.json for each picture, and one
    report.html. A photograph is restored whole, at its own size, and written in
    its own format. A prior for faces restores 64x64 pixels, or with --fit align
    the largest face in a photograph.

    A picture that cannot be used does not stop the others: it is named at the
    end, and the exit code is 1. After an interrupt, run the same command again
    to finish the rest. Nothing but earlier results is ever overwritten.
    """
    given = locals()  # the options of the settings have their names
    from dataclasses import fields

    from aipo.integrations.spread import fitting_processes
    from aipo.restore.run import Outcome, prepare
    from aipo.restore.settings import Settings, default_prior

    given["prior"] = prior or default_prior(task, fit, lam, solver)
    settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
    job, outcome = prepare(images, out, settings), Outcome()
    spread = spread_over(jobs, ray, fitting_processes(len(job.listing.images)), device)
    with RestoreBar(show=not (as_json or quiet), verbose=verbose and not quiet) as bar:
        _run(job, bar, outcome, spread)
    if outcome.records and as_json:
        _print_json(job, outcome)
    elif outcome.records and not quiet:
        _print_table(job, outcome)
    _exit_if_failed(outcome)


def _exit_if_failed(outcome: Outcome) -> None:
    for _, reason in outcome.failed:
        complain(reason)
    if not outcome.records:
        raise typer.Exit(2)
    exit_if_failed([(record.picture, record.status) for record in outcome.records])
    if outcome.failed:
        raise typer.Exit(1)


def _run(job: Job, bar: RestoreBar, outcome: Outcome, spread: Spread | None) -> None:
    from aipo.restore.run import run

    for path in job.listing.skipped:
        bar.say(f"{path}: skipped, not a picture")
    try:
        run(job, bar, outcome, spread)
    except KeyboardInterrupt:
        done = f"{outcome.done} of {len(job.listing.images)} pictures are restored"
        raise KeyboardInterrupt(f"{done}; run the same command again for the others") from None


def _print_json(job: Job, outcome: Outcome) -> None:
    from aipo.restore.outputs import REPORT

    print_json(
        {
            "report": str(job.out / REPORT),
            "pictures": [record.to_json() for record in outcome.records],
            "failed": [{"picture": str(path), "error": reason} for path, reason in outcome.failed],
            "skipped": [str(path) for path in job.listing.skipped],
        }
    )


def _print_table(job: Job, outcome: Outcome) -> None:
    from aipo.restore.outputs import REPORT
    from aipo.restore.page import PHOTO_COLUMNS, table

    print_table(*table(outcome.records, PHOTO_COLUMNS if job.settings.whole else COLUMNS))
    if any(record.sigma_from == "estimated" for record in outcome.records):
        print_line("sigma was estimated from each picture; give --sigma if you know it.")
    if job.listing.skipped:
        print_line(f"Skipped files that are not pictures: {len(job.listing.skipped)}.")
    if outcome.resumed:
        print_line(f"Already there from an earlier run: {outcome.resumed}.")
    total = len(outcome.records) + len(outcome.failed)
    print_line(f"Restored {outcome.done} of {total} pictures in {outcome.seconds:.1f} s; see {job.out / REPORT}")
