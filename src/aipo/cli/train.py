"""`aipo train`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from aipo.cli.common import JsonOption, QuietOption
from aipo.cli.terminal import TrainingBar, complain, print_json, print_line

__all__ = ["train"]


class Model(StrEnum):
    photo = "photo"
    photo_small = "photo-small"
    face = "face"
    realnvp_small = "realnvp-small"
    realnvp = "realnvp"
    glow = "glow"
    tarflow = "tarflow"

    @property
    def noise_flow(self) -> bool:
        return self in (Model.photo, Model.photo_small, Model.face)

    @property
    def of_photographs(self) -> bool:
        return self in (Model.photo, Model.photo_small)


ModelOption = Annotated[
    Model,
    typer.Option(
        help="What kind of flow, and how large. photo and photo-small take photographs as they are and learn every "
        "noise level and size; face learns every noise level of images of one size; the others learn noiseless "
        "images of one size."
    ),
]
CropOption = Annotated[int, typer.Option(min=16, help="For photo and photo-small: side of the random crops in pixels.")]
SizeOption = Annotated[int, typer.Option(min=16, help="For the other models: side of the images in pixels.")]
MosaicsOption = Annotated[bool, typer.Option("--mosaics", help="The pictures are sheets of tiles, each an image.")]
StartOption = Annotated[
    str | None, typer.Option("--from", metavar="PRIOR", help="Begin with this prior, of the same model.")
]
ScoreWeightOption = Annotated[
    float, typer.Option(min=0, help="For photo and face: weight of the denoising error beside the likelihood.")
]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Images per step.", show_default="128; photo 16, face 64")]
NoiseOption = Annotated[
    float, typer.Option(min=0, help="Gaussian noise on noiseless images (sigma, 0..1): a smoother prior.")
]


def train(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of pictures, or a .npy or .npz array.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The prior, a .safetensors file; its card goes beside it.")],
    model: ModelOption = Model.realnvp_small,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time, schedule finished.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or stop after so many steps.")] = None,
    crop: CropOption = 192,
    size: SizeOption = 64,
    mosaics: MosaicsOption = False,
    start: StartOption = None,
    bits: Annotated[int, typer.Option(min=1, max=8, help="Bits per value that a model of noiseless images has.")] = 5,
    score_weight: ScoreWeightOption = 1.0,
    val: Annotated[Path | None, typer.Option(help="Validation images.", show_default="some training images")] = None,
    batch: BatchOption = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.001; tarflow 0.0005")] = None,
    ema: Annotated[float, typer.Option(min=0, max=1, help="Decay of the averaged weights, per step.")] = 0.999,
    noise: NoiseOption = 0.0,
    weight_decay: Annotated[float, typer.Option(min=0, help="Weight decay of the networks' matrices.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is random.")] = 0,
    every: Annotated[float, typer.Option(min=1, help="Seconds between validations and checkpoints.")] = 60.0,
    data: Annotated[str, typer.Option(help="For the card: what the images are.")] = "",
    license: Annotated[str, typer.Option(help="For the card: the terms they came under.")] = "",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a prior of your own on a folder of images.

    Uses a GPU if there is one, and several under torchrun. If it is stopped, the same command goes on where it was.
    Besides the prior it writes a sheet of samples and the learning curve. A damaged photograph costs no other: it is
    named at the end, and the exit code is 1.
    """
    import torch

    from aipo.training import Data, Settings, fit

    settings = Settings(
        bits=bits,
        batch=batch or {Model.photo: 16, Model.photo_small: 16, Model.face: 64}.get(model, 128),
        steps=steps,
        minutes=minutes,
        optimizer="muon" if model.noise_flow else "adam",
        lr=(5e-4 if model is Model.tarflow else 1e-3) if lr is None else lr,
        clip=10.0 if model.noise_flow else 1.0,
        warmup=200 if model.noise_flow else 500,
        ema=ema,
        noise=noise,
        score_weight=score_weight,
        weight_decay=weight_decay,
        seed=seed,
        # On a CPU compiling takes longer than a short training gains by it.
        compile=torch.cuda.is_available(),
    )
    images_of = Data(images, crop if model.of_photographs else size, mosaics, val, data, license)
    with TrainingBar(show=not (as_json or quiet)) as bar:
        card = fit(images_of, out, model.value, settings, start=start, every=every, report=bar.report, tick=bar.tick)
    if card["metrics"]:  # else this is one of several processes, but not the first, which has written everything
        _tell(card, out, as_json, quiet)


def _tell(card: dict[str, Any], out: Path, as_json: bool, quiet: bool) -> None:
    """What was trained, and which photographs were left out."""
    if as_json:
        print_json(card)
    elif not quiet:
        print_line(f"{out}: " + ", ".join(f"{name} {value}" for name, value in card["metrics"].items()))
    unreadable = card["training"].get("unreadable", [])
    for name in unreadable:
        complain(f"{name}: damaged, and was left out")
    if unreadable:
        raise typer.Exit(1)
