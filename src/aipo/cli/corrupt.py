"""`aipo corrupt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import Fit, JsonOption, QuietOption, Task
from aipo.terminal import print_json, print_line

__all__ = ["corrupt"]


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
