"""From a folder of images to a prior on disk: load, train, evaluate what was written, draw its samples."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aipo.dataset import load_images
from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically
from aipo.flows.presets import PRESETS, make_flow
from aipo.images import tile, write_image
from aipo.likelihood import bits_per_dim
from aipo.prior import Prior, load_prior_files, save_prior_files
from aipo.surrogate import measure_surrogate
from aipo.training import Settings, Trainer, start_distributed, stop_distributed

__all__ = ["fit"]


def fit(
    source: str | Path,
    out: str | Path,
    model: str,
    settings: Settings,
    *,
    size: int = 64,
    mosaics: bool = False,
    validation: str | Path | None = None,
    data: str = "",
    licence: str = "",
    every: float = 60.0,
    report: Callable[[dict[str, float]], None] | None = None,
    tick: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Train `model` (a preset) on the images at `source` and write a prior: `out` (.safetensors) and its card.

    Beside them go `.samples.png` (first row G(0), then samples at temperatures 0.5, 0.7, 0.85 and 1) and `.curve.png`
    (bits/dim over time). A run that was killed continues from its checkpoint, `.checkpoint.safetensors`. Without a
    `validation` source, every 50th training image is held out. `report` gets one row of history every so many
    seconds, `tick` the share of the budget spent after every step. See `load_images` for `source` and
    `mosaics`. Returns the card.
    """
    out = Path(out)
    if model not in PRESETS:
        raise InputError(f"unknown model {model}; choose one of {', '.join(PRESETS)}")
    if out.suffix != ".safetensors":
        raise InputError(f"the output must end in .safetensors, got {out}")
    ensure_folder(out.parent)
    device = start_distributed()
    images = load_images(source, size, mosaics=mosaics)
    if validation is None:
        images, held_out = _hold_out(images)
    else:
        held_out = load_images(validation, size, mosaics=mosaics)

    flow = make_flow(model, (images.shape[1], size, size), settings.seed)
    trainer = Trainer(flow, images, settings, device)
    checkpoint = out.with_suffix(".checkpoint.safetensors")
    if checkpoint.exists():
        trainer.resume(checkpoint)
    trainer.run(held_out, every, report, checkpoint, tick)

    card = {
        "name": out.stem,
        "bits": settings.bits,
        "data": data or f"{len(images)} images",
        "licence": licence or "that of the training images",
        "metrics": {},
        "training": {
            **dataclasses.asdict(settings),
            "images": len(images),
            "steps_taken": trainer.progress.step,
            "minutes_taken": round(trainer.progress.seconds / 60, 2),
            "skipped_steps": trainer.progress.skipped,
            "hardware": _hardware(device),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "history": trainer.progress.history,
        },
    }
    if trainer.rank == 0:
        card = _finish(trainer, card, out, images, held_out)
    stop_distributed()
    return card


def _finish(trainer: Trainer, card: dict[str, Any], out: Path, images: Tensor, held_out: Tensor) -> dict[str, Any]:
    """Measure the prior as it will be used: rounded to float16 on disk, read back, in float32."""
    flow = trainer.averaged().cpu()
    save_prior_files(flow, card, out)
    flow = load_prior_files(out).to(trainer.device).flow
    card["metrics"] = {
        "bits_per_dim_train": round(bits_per_dim(flow, images[: len(held_out)], card["bits"]).mean().item(), 4),
        "bits_per_dim_val": round(bits_per_dim(flow, held_out, card["bits"]).mean().item(), 4),
    }
    card["surrogate"] = measure_surrogate(Prior(flow, card["bits"]).gradient, _floats(images, trainer.device))
    card = save_prior_files(flow, card, out)
    samples = torch.cat([flow.sample(16, t, seed=i) for i, t in enumerate((0.5, 0.7, 0.85, 1.0))])
    mean = flow.decode(torch.zeros(1, flow.num_dims, device=trainer.device))
    write_image(
        out.with_suffix(".samples.png"),
        tile(torch.cat([mean.expand(16, -1, -1, -1), samples]).clamp(0, 1), 16),
    )
    _draw_curve(card["training"]["history"], out.with_suffix(".curve.png"))
    return card


def _floats(images: Tensor, device: torch.device) -> Tensor:
    return images[:4096].to(device).float() / 255


def _draw_curve(history: list[dict[str, float]], path: Path) -> None:
    """Bits/dim over time, without the first minutes' plunge that would flatten the rest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    minutes = [row["seconds"] / 60 for row in history]
    for key, label in (("train", "training (running mean)"), ("val", "validation (averaged weights)")):
        axes.plot(minutes, [row[key] for row in history], marker=".", label=label)
    last = history[-1]["val"]
    axes.set(xlabel="minutes", ylabel="bits per dimension", ylim=(last - 0.1, last + 0.5))
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _hold_out(images: Tensor) -> tuple[Tensor, Tensor]:
    if len(images) < 100:
        raise InputError(f"training needs at least 100 images, found {len(images)}")
    held = torch.zeros(len(images), dtype=torch.bool)
    held[::50] = True
    return images[~held], images[held]


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
