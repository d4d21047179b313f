"""From a folder of images to a prior on disk: load, train, evaluate what was written, draw its samples."""

from __future__ import annotations

import dataclasses
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically
from aipo.flows import NoiseFlow
from aipo.flows.presets import NOISE_PRESETS, PRESETS, make_flow
from aipo.images import tile, write_image
from aipo.priors import NoisePrior, Prior, load_prior, load_prior_files, save_prior_files
from aipo.priors.estimate_errors import measure_errors
from aipo.priors.likelihood import bits_per_dim, dequantize
from aipo.priors.surrogate import measure_surrogate
from aipo.training.dataset import Source, Stack, load_images
from aipo.training.distributed import start_distributed, stop_distributed
from aipo.training.objectives import Denoising
from aipo.training.photos import Photos, hold_out, list_photos, read_crops_if_possible
from aipo.training.settings import Settings
from aipo.training.trainer import Trainer

__all__ = ["Data", "fit"]

HELD_OUT = 40  # photographs, of a folder that has eight times as many
VALIDATION_CROPS, VALIDATION_SIDE = 2, 128  # of each of them
CARD_SIDE = 64  # of the crops from which a card's numbers come
ERROR_CROPS = 32  # with which the errors of the estimate are measured
TEMPERATURES = (0.5, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class Data:
    """What to train on.

    Attributes:
        images: a folder of pictures, a picture, or a .npy or .npz array.
        size: side of the images; for a model of photographs, of the crops.
        mosaics: whether pictures are sheets of tiles of that size.
        validation: where validation images come from; by default some are held out.
        about, license: for the card.
    """

    images: str | Path
    size: int = 64
    mosaics: bool = False
    validation: str | Path | None = None
    about: str = ""
    license: str = ""


def fit(
    data: Data,
    out: str | Path,
    model: str,
    settings: Settings,
    *,
    start: str | Path | None = None,
    every: float = 60.0,
    report: Callable[[dict[str, float]], None] | None = None,
    tick: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Train `model` (a preset) and write a prior: `out` (.safetensors) and its card; returns the card.

    Beside them go `.samples.png` and `.curve.png`. A run that was killed continues from its checkpoint,
    `.checkpoint.safetensors`.

    Arguments:
        start: a prior of the same model to begin with, by name or file: fine-tuning.
        report: gets one row of history every so many seconds.
        tick: gets the share of the budget spent after every step.
    """
    out = Path(out)
    if model not in PRESETS and model not in NOISE_PRESETS:
        raise InputError(f"unknown model {model}; choose one of {', '.join([*PRESETS, *NOISE_PRESETS])}")
    if out.suffix != ".safetensors":
        raise InputError(f"the output must end in .safetensors, got {out}")
    ensure_folder(out.parent)
    device = start_distributed()
    photos = model.startswith("photo")
    source, held_out = _photos(data, settings, device) if photos else _stack(data, device)
    flow = make_flow(model, (3, data.size, data.size), settings.seed)
    objective = None
    if isinstance(flow, NoiseFlow):
        objective = Denoising(flow, settings.score_weight, turn=photos)
    trainer = Trainer(flow, source, settings, device, objective=objective)
    if start is not None:
        trainer.begin_with(load_prior(start).flow)
    checkpoint = out.with_suffix(".checkpoint.safetensors")
    if checkpoint.exists():
        trainer.resume(checkpoint)
    trainer.run(held_out, every, report, checkpoint, tick)

    card = {
        "name": out.stem,
        "bits": 0 if isinstance(flow, NoiseFlow) else settings.bits,
        "data": data.about or f"{len(source)} {'photographs' if photos else 'images'}",
        "license": data.license or "that of the training images",
        "metrics": {},
        "training": _facts(trainer, source, data, start, device),
    }
    if trainer.rank == 0:
        images = source.batch(0, max(len(held_out), 64), torch.Generator(device).manual_seed(0))
        card = _finish(trainer, card, out, images, held_out)
    stop_distributed()
    return card


def _photos(data: Data, settings: Settings, device: torch.device) -> tuple[Photos, Tensor]:
    """Photographs for training, and crops of others for validation."""
    if data.mosaics:
        raise InputError("a model of photographs takes photographs as they are, no mosaics")
    unreadable: list[Path] = []
    files = list_photos(data.images, data.size, unreadable)
    if data.validation is None:
        files, held = hold_out(files, min(HELD_OUT, len(files) // 8 + 1), settings.seed)
        if not files:
            raise InputError(f"{data.images}: training needs at least 2 photographs")
    else:
        held = list_photos(data.validation, VALIDATION_SIDE, unreadable)
    side = min(VALIDATION_SIDE, data.size)
    generator = torch.Generator().manual_seed(settings.seed)
    crops = torch.cat([read_crops_if_possible(path, side, VALIDATION_CROPS, generator, unreadable) for path in held])
    if not len(crops):
        raise InputError(f"none of the photographs for validation can be read: {', '.join(map(str, held[:5]))}")
    return Photos(files, data.size, settings.batch, settings.seed, device, unreadable), crops


def _stack(data: Data, device: torch.device) -> tuple[Stack, Tensor]:
    """Images of one size for training, and others for validation."""
    images = load_images(data.images, data.size, mosaics=data.mosaics)
    if data.validation is not None:
        return Stack(images, device), load_images(data.validation, data.size, mosaics=data.mosaics)
    if len(images) < 100:
        raise InputError(f"training needs at least 100 images, found {len(images)}")
    held = torch.zeros(len(images), dtype=torch.bool)
    held[::50] = True
    return Stack(images[~held], device), images[held]


def _facts(
    trainer: Trainer, source: Source, data: Data, start: str | Path | None, device: torch.device
) -> dict[str, Any]:
    """What the card says about the training."""
    progress = trainer.progress
    return {
        **dataclasses.asdict(trainer.settings),
        "images": len(source),  # type: ignore[arg-type]
        "size": data.size,
        **({} if start is None else {"started_from": str(start)}),
        **({"unreadable": sorted(p.name for p in source.unreadable)[:100]} if isinstance(source, Photos) else {}),
        "steps_taken": progress.step,
        "minutes_taken": round(progress.seconds / 60, 2),
        "skipped_steps": progress.skipped,
        "hardware": _hardware(device),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "history": progress.history,
    }


def _finish(trainer: Trainer, card: dict[str, Any], out: Path, images: Tensor, held_out: Tensor) -> dict[str, Any]:
    """Measure the prior as it will be used: rounded to float16 on disk, read back, in float32."""
    save_prior_files(trainer.averaged().cpu(), card, out)
    prior = load_prior_files(out).to(trainer.device)
    describe = _describe_noise_prior if isinstance(prior, NoisePrior) else _describe_prior
    more, samples = describe(prior, card, images, held_out)  # type: ignore[arg-type]
    card = save_prior_files(prior.flow, {**card, **more}, out)
    write_image(out.with_suffix(".samples.png"), samples)
    _draw_curve(card["training"]["history"], out.with_suffix(".curve.png"))
    return card


def _describe_prior(
    prior: Prior, card: dict[str, Any], images: Tensor, held_out: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """Metrics and surrogate; and a sheet: G(0) in the first row, then samples at several temperatures."""
    flow, device = prior.flow, images.device
    metrics = {
        "bits_per_dim_train": round(bits_per_dim(flow, images[: len(held_out)], card["bits"]).mean().item(), 4),
        "bits_per_dim_val": round(bits_per_dim(flow, held_out, card["bits"]).mean().item(), 4),
    }
    surrogate = measure_surrogate(prior.gradient, images.to(device).float() / 255)
    samples = torch.cat([flow.sample(16, t, seed=i) for i, t in enumerate(TEMPERATURES)])
    mean = flow.decode(torch.zeros(1, flow.num_dims, device=device))
    sheet = tile(torch.cat([mean.expand(16, -1, -1, -1), samples]).clamp(0, 1), 16)
    return {"metrics": metrics, "surrogate": surrogate}, sheet


@torch.no_grad()
def _describe_noise_prior(
    prior: NoisePrior, card: dict[str, Any], images: Tensor, held_out: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """Metrics, surrogate and errors; and a sheet of samples, one row for each temperature.

    `bits_per_dim_val` is an upper bound for noiseless 8-bit images: the density at the smallest level, of uniformly
    dequantized values.
    """
    smallest, device = prior.levels[0], images.device
    crops = held_out[..., : min(CARD_SIDE, held_out.shape[2]), : min(CARD_SIDE, held_out.shape[3])].to(device)
    noise = torch.rand(crops.shape, generator=torch.Generator().manual_seed(0)).to(device)
    nats = -prior.log_prob(dequantize(crops, 8, noise), smallest)
    metrics = {k: round(v, 4) for k, v in Denoising(prior.flow).validate(prior.flow, held_out).items()}
    metrics["nats_per_dim_25_val"] = metrics.pop("val")
    metrics["bits_per_dim_val"] = round(nats.mean().item() / crops[0].numel() / math.log(2) + 8, 4)
    cut = images[..., :CARD_SIDE, :CARD_SIDE].float() / 255
    noisy = cut + smallest * torch.randn(cut.shape, generator=torch.Generator().manual_seed(1)).to(cut)
    surrogate = measure_surrogate(prior.at(smallest).gradient, noisy)
    side = 4 * CARD_SIDE if card["training"]["size"] > CARD_SIDE else CARD_SIDE
    samples = [prior.sample((4, 3, side, side), None, t, seed=i) for i, t in enumerate(TEMPERATURES)]
    errors = measure_errors(prior.denoise, crops[:ERROR_CROPS].float() / 255, prior.levels)
    return {"metrics": metrics, "surrogate": surrogate, "errors": errors}, tile(torch.cat(samples).clamp(0, 1), 4)


def _draw_curve(history: list[dict[str, float]], path: Path) -> None:
    """The loss over time, without the first minutes' plunge that would flatten the rest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    minutes = [row["seconds"] / 60 for row in history]
    if "psnr_25" in history[-1]:
        axes.plot(minutes, [row["psnr_25"] for row in history], marker=".", label="validation (averaged weights)")
        last = history[-1]["psnr_25"]
        axes.set(xlabel="minutes", ylabel="PSNR at sigma 25/255, dB", ylim=(last - 2, last + 0.5))
    else:
        for key, label in (("train", "training (running mean)"), ("val", "validation (averaged weights)")):
            axes.plot(minutes, [row[key] for row in history], marker=".", label=label)
        last = history[-1]["val"]
        axes.set(xlabel="minutes", ylabel="bits per dimension", ylim=(last - 0.1, last + 0.5))
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
