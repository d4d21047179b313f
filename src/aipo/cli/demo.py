"""`aipo demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import DEFAULT_PRIOR, DeviceOption, JsonOption, OutOption, PriorOption, QuietOption, exit_if_failed
from aipo.cli.terminal import print_json, print_line, print_table
from aipo.restore.tasks import PHOTO_PRIOR

__all__ = ["demo"]


def demo(
    out: OutOption = Path("aipo-demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, metavar="INTEGER", help="Seed of everything that is random.")
    ] = 0,
    prior: PriorOption = DEFAULT_PRIOR,
    photo_prior: Annotated[
        str, typer.Option(metavar="PRIOR", help="Of photographs: a name or a .safetensors file.")
    ] = PHOTO_PRIOR,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See what it does: corrupt and restore a photograph and four faces in three ways, in about a minute.

    Writes the pictures and a report.html that shows them all. Nothing is downloaded.
    """
    from aipo.priors.prior import chosen_device
    from aipo.priors.zoo import load_flow_prior, load_noise_prior
    from aipo.restore.demo import run_demo, table

    start = time.perf_counter()
    where = chosen_device(device)
    faces, photographs = load_flow_prior(prior).to(where), load_noise_prior(photo_prior).to(where)
    records = run_demo(faces, prior, photographs, photo_prior, out, seed, not (as_json or quiet))
    report = out / "report.html"
    if as_json:
        print_json({"report": str(report), "results": [record.to_json() for record in records]})
    elif not quiet:
        print_table(*table(records))
        print_line(f"Done in {time.perf_counter() - start:.1f} s. Open {report}")
    exit_if_failed([(f"{record.task} {record.image}", record.status) for record in records])
