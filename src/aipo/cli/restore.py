"""`aipo restore`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import DEFAULT_PRIOR, Fit, JsonOption, PriorOption, QuietOption, Task, exit_if_failed
from aipo.terminal import RestoreBar, complain, print_json, print_line, print_table

__all__ = ["restore"]


class SolverName(StrEnum):
    path = "path"
    quick = "quick"
    paper = "paper"
    decayed = "decayed"


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
            help="path: all weights in at most 60 gradients, a single one in 120. The others need a number for --lam. "
            "quick: the published algorithm, shortened to 150. paper: its own settings, 500 to 1,600. "
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
    exit_if_failed([(record["picture"], record["status"]) for record in outcome.records])
    if outcome.failed:
        raise typer.Exit(1)


def _complain_of(failed: list[tuple[Path, str]]) -> None:
    for _, reason in failed:
        complain(reason)
