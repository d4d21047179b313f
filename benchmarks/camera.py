"""Real camera noise: pairs of photographs, one shot and the mean of many, denoised with nothing else to say.

    python benchmarks/camera.py --pairs DIR --half tune --priors photo-small photo
    python benchmarks/camera.py --pairs DIR --half final --priors photo --save
    python benchmarks/camera.py --pairs DIR --half tune --peers DIR        FFDNet instead of a prior of ours

DIR holds `NAME_real.JPG` and `NAME_mean.JPG` (PolyU real-world noisy images). Pairs of one scene have names that differ
in their last number. Every other scene is for tuning, the rest for the final number.

Per prior: PSNR of the noisy pictures, of what `aipo restore` does by itself, of `denoise_smooth` with the best level of
a grid for all pictures and for each picture, and of BM3D with the level that scikit-image estimates.

Reference: J. Xu et al., "Real-world noisy image denoising: a new benchmark", 2018, https://arxiv.org/abs/1804.02603
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from denoise import bm3d, hardware, load_peers, psnr
from results import RESULTS, save_run
from torch import Tensor

import aipo
from aipo.choose.sigma import automatic_sigma
from aipo.images import open_image

GRID = [0.01 * 2 ** (k / 2) for k in range(1, 7)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--half", choices=["tune", "final"], default="tune")
    parser.add_argument("--priors", nargs="*", default=["photo-small"])
    parser.add_argument("--peers", type=Path, help="folder with the peers' weights")
    parser.add_argument("--levels", type=float, nargs="*", default=GRID)
    parser.add_argument("--limit", type=int, help="only the first so many pairs")
    parser.add_argument("--no-bm3d", action="store_true")
    parser.add_argument("--save", action="store_true", help="to results/camera.json")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    names = half(args.pairs, args.half)[: args.limit]
    pairs = {name: [read(args.pairs / f"{name}_{kind}.JPG") for kind in ("real", "mean")] for name in names}
    print(f"{len(pairs)} pairs, noisy {mean(psnr(y, x) for y, x in pairs.values()):.2f} dB")
    if not args.no_bm3d:
        print(
            f"BM3D, sigma by scikit-image: {mean(psnr(bm3d(y, wavelet_sigma(y)), x) for y, x in pairs.values()):.2f} dB"
        )
    for name in ["FFDNet"] if args.peers else args.priors:
        if args.peers:
            rows = curves(pairs, load_peers(args.peers)[name], args.levels)
        else:
            prior = aipo.load_prior(name)
            rows = curves(pairs, prior.denoise_smooth, args.levels, prior)
        report(name, rows, args.levels)
        if args.save:
            about = {"date": date.today().isoformat(), "hardware": hardware(), "half": args.half, "grid": args.levels}
            save_run(RESULTS / "camera.json", f"{Path(name).stem}-{args.half}", {**about, "rows": rows})


def half(folder: Path, which: str) -> list[str]:
    """The pairs of every other scene."""
    names = sorted(path.name.removesuffix("_real.JPG") for path in folder.glob("*_real.JPG"))
    scenes = sorted({name.rsplit("_", 1)[0] for name in names})
    wanted = set(scenes[0 if which == "tune" else 1 :: 2])
    return [name for name in names if name.rsplit("_", 1)[0] in wanted]


def read(path: Path) -> Tensor:
    return open_image(path).x.expand(3, -1, -1)[None].contiguous()


def wavelet_sigma(y: Tensor) -> float:
    from skimage.restoration import estimate_sigma

    return max(1e-3, float(estimate_sigma(y[0].permute(1, 2, 0).numpy(), average_sigmas=True, channel_axis=-1)))


def curves(
    pairs: dict[str, list[Tensor]],
    denoise: Callable[[Tensor, float], Tensor],
    levels: list[float],
    prior: aipo.NoisePrior | None = None,
) -> list[dict[str, Any]]:
    """PSNR of every picture at each of the levels, and of what a prior does by itself."""
    rows = []
    for name, (y, x) in pairs.items():
        row: dict[str, Any] = {"image": name, "noisy": psnr(y, x), "psnr": [psnr(denoise(y, s), x) for s in levels]}
        if prior:
            row["sigma"], row["white"], _ = automatic_sigma(prior, y)
            row["automatic"] = psnr((prior.denoise if row["white"] else prior.denoise_smooth)(y, row["sigma"]), x)
        rows.append(row)
    return rows


def report(name: str, rows: list[dict[str, Any]], levels: list[float]) -> None:
    for k, level in enumerate(levels):
        print(f"{name}: {level:.3f} for all {mean(row['psnr'][k] for row in rows):.2f} dB")
    if levels:
        print(f"{name}: best level for each {mean(max(row['psnr']) for row in rows):.2f} dB")
    if "automatic" in rows[0]:
        gain = min(row["automatic"] - row["noisy"] for row in rows)
        print(f"{name}: automatic {mean(row['automatic'] for row in rows):.2f} dB, smallest gain {gain:+.2f} dB")


def mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
