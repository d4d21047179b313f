"""Images per second of training, plain eager float32 against `Trainer`'s fast mode, same model and batch, same run.

python benchmarks/train_speed.py [--seconds 15] [--batch 256] [--models realnvp glow tarflow] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from aipo.flows.presets import make_flow
from aipo.training import Settings, Trainer


def images_per_second(model: str, batch: int, seconds: float, fast: bool, device: str) -> dict[str, float]:
    images = torch.randint(256, (4096, 3, 64, 64), dtype=torch.uint8)
    settings = Settings(steps=10**6, batch=batch, half=fast, compile=fast)
    start = time.monotonic()
    trainer = Trainer(make_flow(model, (3, 64, 64)), images, settings, device, fast=fast)
    for _ in range(3):
        trainer.step()
    synchronise(device)
    warm = time.monotonic()
    steps = 0
    while time.monotonic() - warm < seconds:
        trainer.step()
        steps += 1
    synchronise(device)
    elapsed = time.monotonic() - warm
    return {"images_per_second": steps * batch / elapsed, "start_up_seconds": warm - start}


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--models", nargs="+", default=["realnvp", "glow", "tarflow"])
    parser.add_argument("--json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for model in args.models:
        eager = images_per_second(model, args.batch, args.seconds, False, device)
        fast = images_per_second(model, args.batch, args.seconds, True, device)
        ratio = fast["images_per_second"] / eager["images_per_second"]
        rows.append({"model": model, "eager": eager, "fast": fast, "ratio": ratio})
        print(
            f"{model:14} eager {eager['images_per_second']:8.0f} img/s   fast {fast['images_per_second']:8.0f} img/s   "
            f"{ratio:.2f}x   (start-up {fast['start_up_seconds']:.0f} s)",
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "batch": args.batch, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
