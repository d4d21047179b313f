"""Images per second of training, the plain way against `Trainer`'s fast mode: same model, same batch, same run.

For a flow of one size the plain way is eager float32. For a noise flow, which needs the gradient of a gradient, it is
autograd asked twice, with networks in bfloat16, captured as a CUDA graph: what one would write without a gradient by
hand. Photographs are random numbers here: speed does not depend on what they show.

python benchmarks/train_speed.py [--seconds 15] [--models realnvp glow tarflow photo] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from datetime import date
from pathlib import Path

import torch
from results import save
from torch import Tensor

from aipo.flows import NoiseFlow
from aipo.flows.presets import NOISE_PRESETS, make_flow
from aipo.training.objectives import Denoising
from aipo.training.settings import Settings
from aipo.training.trainer import Trainer

BATCHES = {64: 128, 192: 16}  # crops of photographs in a step, by their side
FACES = 256


class AskedTwice(Denoising):
    """The same loss with autograd for both gradients."""

    def forward(self, x: Tensor, y: Tensor, s: Tensor, gray: Tensor) -> Tensor:
        y = y.detach().requires_grad_()
        log_prob = self.flow.log_prob(y, s)
        (score,) = torch.autograd.grad(log_prob.sum(), y, create_graph=True)
        return self.losses(x, y, s, gray, log_prob, score)


def images_per_second(model: str, side: int, batch: int, seconds: float, fast: bool, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    images = torch.randint(256, (1024, 3, side, side), dtype=torch.uint8)
    flow = make_flow(model, (3, side, side))
    noise_flow = isinstance(flow, NoiseFlow)
    # A noise flow's plain way has half precision and a graph, too: the difference is how its gradient is written.
    settings = Settings(
        steps=10**6,
        batch=batch,
        optimizer="muon" if noise_flow else "adam",
        half=fast or noise_flow,
        compile=fast or noise_flow,
    )
    objective = (Denoising if fast else AskedTwice)(flow) if isinstance(flow, NoiseFlow) else None
    start = time.monotonic()
    trainer = Trainer(flow, images, settings, device, fast=fast or noise_flow, objective=objective)
    for _ in range(3):
        trainer.step()
    synchronize(device)
    warm, steps = time.monotonic(), 0
    while time.monotonic() - warm < seconds:
        trainer.step()
        steps += 1
    synchronize(device)
    return {
        "images_per_second": steps * batch / (time.monotonic() - warm),
        "start_up_seconds": warm - start,
        "tflops": steps * batch / (time.monotonic() - warm) * operations(flow, side) / 1e12 if noise_flow else 0.0,
    }


def operations(flow: NoiseFlow, side: int) -> float:
    """Floating-point operations of the convolutions in a step, for one image.

    The gradient in y is a forward and a backward pass; differentiating it takes two more of each convolution: six in
    all, of two operations for each weight and position.
    """
    total = 0
    for i, level in enumerate(flow.levels):
        kernels = sum(p.numel() for p in level.parameters() if p.ndim == 4)
        total += 12 * kernels * (side >> (i + 1)) ** 2
    return total


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--models", nargs="+", default=["realnvp", "glow", "tarflow", "photo"])
    parser.add_argument("--json", type=Path, help="where to keep the numbers, e.g. results/train_speed.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for model in args.models:
        for side, batch in BATCHES.items() if model in NOISE_PRESETS else [(64, FACES)]:
            plain = images_per_second(model, side, batch, args.seconds, False, device)
            fast = images_per_second(model, side, batch, args.seconds, True, device)
            ratio = fast["images_per_second"] / plain["images_per_second"]
            rows.append({"model": model, "side": side, "batch": batch, "plain": plain, "fast": fast, "ratio": ratio})
            print(
                f"{model:12} {side:3} px  plain {plain['images_per_second']:8.0f} img/s   "
                f"fast {fast['images_per_second']:8.0f} img/s   {ratio:.2f}x   "
                f"(start-up {fast['start_up_seconds']:.0f} s, {fast['tflops']:.0f} TFLOP/s)",
                flush=True,
            )
    if args.json:
        about = {"torch": torch.__version__, "date": date.today().isoformat()}
        about["hardware"] = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        save(args.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
