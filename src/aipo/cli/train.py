"""`aipo train`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aipo.cli.common import JsonOption, QuietOption
from aipo.terminal import TrainingBar, print_json, print_line

__all__ = ["train"]


class Model(StrEnum):
    realnvp_small = "realnvp-small"
    realnvp = "realnvp"
    glow = "glow"
    tarflow = "tarflow"


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
