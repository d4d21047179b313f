"""`aipo corrupt`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import FITS, JsonOption, OutOption, QuietOption, by_value, choices
from aipo.cli.terminal import print_json, print_line
from aipo.restore.tasks import FACTORS, TASKS, Damage

__all__ = ["corrupt"]

SIGMA_DEFAULT = by_value({task.name: f"{task.added_sigma:g}" for task in TASKS.values()})

Images = Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER", readable=False, help="Clean pictures.")]
TaskOption = Annotated[str, typer.Option(help="What to do to them.", **choices("task", TASKS))]
Sigma = Annotated[
    float | None,
    typer.Option(
        min=0, help="Standard deviation of the noise that is added, for pixels in 0..1.", show_default=SIGMA_DEFAULT
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31, metavar="INTEGER", help="Seed of everything that is random.")]
Fraction = Annotated[float, typer.Option(help="For inpaint: share of the picture that goes missing.")]
Block = Annotated[int, typer.Option(help="For inpaint: side of the missing blocks, in pixels.")]
Mask = Annotated[
    Path | None, typer.Option(readable=False, help="For inpaint: or a mask, black where pixels go missing.")
]
Factor = Annotated[int, typer.Option(help=f"For superres: make it {' or '.join(map(str, FACTORS))} times smaller.")]
Blur = Annotated[float, typer.Option(help="For deblur: width of a Gaussian blur, in pixels.")]
Kernel = Annotated[
    Path | None, typer.Option(readable=False, help="For deblur: or a kernel, a .npy array or a gray picture.")
]
Measurements = Annotated[int, typer.Option(min=1, help="For sense: number of measurements.")]
Fit = Annotated[str | None, typer.Option(help="Cut a square first, as restore does.", **choices("fit", FITS))]
Size = Annotated[int, typer.Option(min=8, max=1024, help="With --fit: side of that square, in pixels.")]
Floats = Annotated[
    bool, typer.Option("--npy", help="Write .npy files: nothing rounded to 8 bits or cut off at 0 and 1.")
]


def corrupt(
    images: Images,
    task: TaskOption,
    out: OutOption,
    sigma: Sigma = None,
    seed: Seed = 0,
    fraction: Fraction = Damage.fraction,
    block: Block = Damage.block,
    mask: Mask = None,
    factor: Factor = Damage.factor,
    blur: Blur = Damage.blur,
    kernel: Kernel = None,
    measurements: Measurements = Damage.measurements,
    fit: Fit = None,
    size: Size = 64,
    floats: Floats = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make corrupted pictures from clean ones, to try `aipo restore` on, and print the command that restores them.

    Writes NAME.TASK.png, or .npy vectors for sense, and the mask for inpaint. The same seed gives the same files.
    """
    from aipo.restore.corrupt import Corruption
    from aipo.restore.corrupt import corrupt as run_corrupt

    damage = Damage(fraction=fraction, block=block, factor=factor, blur=blur, measurements=measurements)
    how = Corruption(task, sigma, seed, damage, mask=mask, kernel=kernel, fit=fit, size=size, floats=floats)
    written = run_corrupt(images, out, how)
    if as_json:
        print_json(asdict(written))
    elif not quiet:
        for path in written.files:
            print_line(path)
        print_line("Restore with:")
        print_line(written.restore)
