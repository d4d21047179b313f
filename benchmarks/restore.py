"""Photographs restored by `aipo.anneal`, by splitting with FFDNet and by classical methods, from the same measurements.

    python benchmarks/restore.py --images DIR [--prior photo-small] [--peers DIR] [--tasks ...] [--limit 20]
        [--center 256] [--name NAME]
    python benchmarks/restore.py --images DIR --crops 16 ...     crops of that many large photographs: for tuning

A table is printed, and the run is kept under NAME in results/restore.json: the PSNR of the clipped result for each
picture, task and method, and the seconds it took.

- `anneal 20` and `anneal 8`: ours, with so many evaluations of the prior.
- `FFDNet 20` and `FFDNet 8`: half-quadratic splitting with that denoiser and DPIR's schedule, levels from 49/255 to
  that of the noise and weight 0.23, from the same start as ours.
- `TV`: total variation, by a primal-dual method; its weight for each task was chosen on crops of held-back training
  photographs.
- The classical method of each task: biharmonic filling, Wiener's filter, bicubic and bilinear interpolation.

References: K. Zhang et al., "Plug-and-play image restoration with deep denoiser prior" (DPIR), 2021; A. Chambolle,
T. Pock, "A first-order primal-dual algorithm for convex problems with applications to imaging", 2011.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from denoise import Denoiser, hardware, load_peers
from results import RESULTS, save_run
from torch import Tensor

import aipo
from aipo.images import open_image
from aipo.images.metrics import psnr
from aipo.operators import Blur, Denoising, Inpainting, LinearOperator, SuperResolution
from aipo.restore.whole import filled

Classical = Callable[[LinearOperator, Tensor, float], Tensor]
Restorer = Callable[["Measured"], Tensor]


def collaborative(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    import bm3d

    return image(bm3d.bm3d_rgb(array(y), sigma_psd=sigma))


def biharmonic(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    from skimage.restoration import inpaint_biharmonic

    missing = operator.mask[0].numpy() == 0  # type: ignore[attr-defined]
    return image(inpaint_biharmonic(array(y), missing, channel_axis=-1, split_into_regions=True))


def bicubic(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    return F.interpolate(y, operator.image_shape[1:], mode="bicubic")


def wiener(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    from skimage.restoration import unsupervised_wiener

    kernel = operator.kernel.numpy().astype(float)  # type: ignore[attr-defined]
    channels = [unsupervised_wiener(channel.double().numpy(), kernel, clip=False, rng=0)[0] for channel in y[0]]
    return image(np.stack(channels, axis=-1))


def bilinear(operator: LinearOperator, y: Tensor, sigma: float) -> Tensor:
    mask = operator.mask[None]  # type: ignore[attr-defined]
    weights = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(3, 1, 3, 3)
    near, known = (F.conv2d(F.pad(v, (1, 1, 1, 1), "reflect"), weights, groups=3) for v in (mask * y, mask))
    return torch.where(mask > 0, y, near / known)


@dataclass(frozen=True)
class Task:
    """What is measured, and who is a classical match for us there.

    Attributes:
        tv: weight of total variation.
    """

    title: str
    sigma: float
    operator: Callable[[tuple[int, int, int], int], LinearOperator]
    method: str
    classical: Classical
    tv: float


def random_pixels(shape: tuple[int, int, int], seed: int) -> LinearOperator:
    return Inpainting.random_blocks(shape, fraction=0.8, block=1, seed=seed)


def random_blocks(shape: tuple[int, int, int], seed: int) -> LinearOperator:
    return Inpainting.random_blocks(shape, fraction=0.25, block=4, seed=seed)


def gaussian_blur(shape: tuple[int, int, int], seed: int) -> LinearOperator:
    return Blur.gaussian(shape, 1.6)


def motion_blur(shape: tuple[int, int, int], seed: int) -> LinearOperator:
    return Blur.motion(shape, 15, 30.0)


TASKS = {
    "denoise-25": Task("Noise of 25/255", 25 / 255, lambda s, _: Denoising(s), "BM3D", collaborative, 0.1),
    "denoise-50": Task("Noise of 50/255", 50 / 255, lambda s, _: Denoising(s), "BM3D", collaborative, 0.2),
    "inpaint": Task("A quarter missing in 4x4 blocks", 0.01, random_blocks, "biharmonic", biharmonic, 0.005),
    "pixels": Task("80% of the pixels missing", 0.01, random_pixels, "biharmonic", biharmonic, 0.005),
    "gaussian": Task("Gaussian blur of width 1.6", 0.01, gaussian_blur, "Wiener", wiener, 0.001),
    "gaussian-noisy": Task("The same, more noise", 0.03, gaussian_blur, "Wiener", wiener, 0.005),
    "motion": Task("Motion blur of 15 pixels", 0.01, motion_blur, "Wiener", wiener, 0.001),
    "motion-noisy": Task("The same, more noise", 0.03, motion_blur, "Wiener", wiener, 0.005),
    "superres-2": Task("Twice the size", 0.01, lambda s, _: SuperResolution(s, 2), "bicubic", bicubic, 0.002),
    "superres-4": Task("Four times the size", 0.01, lambda s, _: SuperResolution(s, 4), "bicubic", bicubic, 0.002),
    "demosaic": Task("One color a pixel", 0.01, lambda s, _: Inpainting.bayer(s), "bilinear", bilinear, 0.005),
}


@dataclass(frozen=True)
class Measured:
    """One picture as a task shows it."""

    task: Task
    operator: LinearOperator
    y: Tensor

    @property
    def start(self) -> Tensor:
        """What one sees at first: known pixels and a smooth filling, the enlarged picture, the blurred one."""
        if isinstance(self.operator, Inpainting):
            return filled(self.y, self.operator.mask.expand_as(self.y) > 0)
        return bicubic(self.operator, self.y, self.task.sigma) if isinstance(self.operator, SuperResolution) else self.y


def by_annealing(prior: aipo.NoisePrior, evals: int) -> Restorer:
    def restore(m: Measured) -> Tensor:
        problem = aipo.MapProblem(prior, m.operator, aipo.Gaussian(m.task.sigma), m.y, "fast")
        return aipo.anneal(problem, evals=evals, x0=m.start).x

    return restore


def by_splitting(denoise: Denoiser, evals: int, first: float = 49 / 255, weight: float = 0.23) -> Restorer:
    def restore(m: Measured) -> Tensor:
        if isinstance(m.operator, Denoising):
            return denoise(m.y, m.task.sigma)
        x = m.start
        for s in np.geomspace(first, max(m.task.sigma, 1 / 255), evals).tolist():
            x = m.operator.prox_l2(x, m.y, torch.full_like(m.y[:, 0, 0, 0], s**2 / (weight * m.task.sigma**2)))
            x = denoise(x, s)
        return x

    return restore


def by_total_variation(m: Measured, iterations: int = 150) -> Tensor:
    """argmin |A x - y|^2 / 2 + weight * sum of |gradient|, the colors of a pixel together."""
    step = 8**-0.5
    gamma = torch.full_like(m.y[:, 0, 0, 0], step)
    x = ahead = m.start
    dual = torch.zeros(2, *x.shape)
    for _ in range(iterations):
        dual = dual + step * slopes(ahead)
        dual = dual / (dual.square().sum((0, 2), keepdim=True).sqrt() / m.task.tv).clamp(min=1)
        moved = m.operator.prox_l2(x + step * divergence(dual), m.y, gamma)
        x, ahead = moved, 2 * moved - x
    return x


def slopes(x: Tensor) -> Tensor:
    """Differences to the next pixel below and on the right (2, B, C, H, W), zero at the border."""
    return torch.stack([F.pad(x.diff(dim=2), (0, 0, 0, 1)), F.pad(x.diff(dim=3), (0, 1))])


def divergence(dual: Tensor) -> Tensor:
    """Minus the adjoint of `slopes`."""
    down, right = dual[0, :, :, :-1], dual[1, :, :, :, :-1]
    return F.pad(down, (0, 0, 1, 1)).diff(dim=2) + F.pad(right, (1, 1)).diff(dim=3)


def main() -> None:
    args = arguments()
    torch.set_grad_enabled(False)
    prior = aipo.load_prior(args.prior).to(args.device)
    methods: dict[str, Restorer] = {f"anneal {n}": by_annealing(prior, n) for n in (20, 8)}
    if args.peers:
        ffdnet = load_peers(args.peers, args.device)["FFDNet"]
        methods |= {f"FFDNet {n}": by_splitting(ffdnet, n) for n in (20, 8)}
    methods |= {"TV": by_total_variation, "classical": lambda m: m.task.classical(m.operator, m.y, m.task.sigma)}
    methods = {name: methods[name] for name in args.methods or methods}
    rows = []
    pictures = read(args)
    for key in args.tasks:
        for i, (name, truth) in enumerate(pictures.items()):
            measured = measure(TASKS[key], truth, i)
            for method, restore in methods.items():
                start = time.perf_counter()
                x = restore(measured)
                seconds = time.perf_counter() - start
                rows.append({
                    "picture": name,
                    "task": key,
                    "method": method,
                    "psnr": round(psnr(x.cpu().clamp(0, 1), truth).item(), 3),
                    "seconds": round(seconds, 3),
                })  # fmt: skip
        print_row(rows, key, list(methods))
    about = {"date": time.strftime("%Y-%m-%d"), "hardware": hardware(), "torch": torch.__version__}
    if args.name:
        about |= {
            "prior": prior.name,
            "sha256": prior.card["sha256"],
            "images": args.images.name,
            "center": args.center,
        }
        save_run(RESULTS / "restore.json", args.name, {**about, "rows": rows})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="only the first so many pictures")
    parser.add_argument("--crops", type=int, help="one middle square of so many pictures, spread over the folder")
    parser.add_argument("--center", type=int, default=256, help="side of the middle square; 0: whole pictures")
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--peers", type=Path, help="folder with FFDNet's weights, see benchmarks/denoise.py")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name")
    return parser.parse_args()


def read(args: argparse.Namespace) -> dict[str, Tensor]:
    """Pictures (1, 3, H, W), their sides multiples of 4."""
    files = sorted(p for p in args.images.iterdir() if p.suffix in (".png", ".webp", ".avif", ".jpg"))[: args.limit]
    if args.crops:
        files = files[:: max(1, len(files) // args.crops)][: args.crops]
    pictures = {}
    for path in files:
        x = open_image(path).x.expand(3, -1, -1)
        height, width = (min(n, args.center or n) // 4 * 4 for n in x.shape[1:])
        top, left = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
        pictures[path.stem] = x[None, :, top : top + height, left : left + width].contiguous()
    return pictures


def measure(task: Task, truth: Tensor, number: int) -> Measured:
    """A picture as a task shows it; what is random about it comes from the picture's number."""
    operator = task.operator((3, truth.shape[2], truth.shape[3]), number)
    return Measured(task, operator, operator.measure(truth, aipo.Gaussian(task.sigma), seed=1000 + number))


def print_row(rows: list[dict], task: str, methods: list[str]) -> None:
    parts = []
    for method in methods:
        of = [r for r in rows if (r["task"], r["method"]) == (task, method)]
        psnr_mean, seconds = (sum(r[key] for r in of) / len(of) for key in ("psnr", "seconds"))
        parts.append(f"{method} {psnr_mean:.2f} ({seconds:.1f} s)")
    print(f"{task:15} " + "  ".join(parts), flush=True)


def array(x: Tensor) -> np.ndarray:
    return x[0].permute(1, 2, 0).double().numpy()


def image(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x).permute(2, 0, 1)[None].float()


if __name__ == "__main__":
    main()
