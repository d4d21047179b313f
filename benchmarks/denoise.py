"""White Gaussian noise on whole photographs: PSNR and time of our priors, BM3D, FFDNet and DnCNN, in one run.

    python benchmarks/denoise.py --images DIR --peers DIR [--priors photo-small photo] [--spin 4] [--center 500]
    python benchmarks/denoise.py --images DIR --sigma          how well sigma is estimated
    python benchmarks/denoise.py --images DIR --tiles          whole pictures against separate 64x64 tiles of them
    python benchmarks/denoise.py --speed --peers DIR           megapixels per second on this machine, one size

Noise is drawn per picture and level and is the same for all methods; it is not clipped. PSNR is of the clipped result,
averaged over pictures. Rows go to a JSON file, one per picture, level and method.

The weights of FFDNet and DnCNN come from a folder of the user's (their repositories state no license): one
`.safetensors` each, layer i as `i.weight` and `i.bias`, 3x3 convolutions with ReLU between them.

References: K. Zhang, W. Zuo, L. Zhang, "FFDNet", 2018; K. Zhang et al., "Beyond a Gaussian denoiser" (DnCNN), 2017;
Y. Mäkinen, L. Azzari, A. Foi, "Collaborative filtering of correlated noise" (the `bm3d` package), 2020.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import aipo
from aipo.images import open_image

Denoiser = Callable[[Tensor, float], Tensor]  # images (B, 3, H, W) and sigma -> images
LEVELS = (15, 25, 50)  # of 255
SIGMAS = (0.01, 0.03, 0.1, 0.2)
SPEED_SHAPE = (3, 321, 481)
GPU_SPEED_SHAPE = (8, 3, 1024, 1024)


def main() -> None:
    args = arguments()
    torch.set_grad_enabled(False)
    if args.speed:
        document = {"speed": speed(args)}
    else:
        pictures = read(args)
        if args.sigma:
            document = {"sigma": sigma_errors(pictures, args)}
        elif args.tiles:
            document = {"tiles": tiles_against_whole(pictures, args)}
        else:
            document = {"rows": denoise(pictures, args)}
    about = {"date": date.today().isoformat(), "hardware": hardware(), "torch": torch.__version__}
    if args.json:
        args.json.write_text(json.dumps({**about, "images": str(args.images and args.images.name), **document}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--limit", type=int, help="only the first so many pictures")
    parser.add_argument("--center", type=int, help="only the middle square of this side")
    parser.add_argument("--peers", type=Path, help="folder with the peers' weights")
    parser.add_argument("--priors", nargs="*", default=["photo-small", "photo"])
    parser.add_argument("--spin", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--no-bm3d", action="store_true")
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS), help="of the noise, of 255")
    parser.add_argument("--gray", action="store_true", help="brightness only; our priors alone")
    parser.add_argument("--sigma", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--device", default="cpu", help="of our priors and the peers; BM3D has the CPU only")
    parser.add_argument(
        "--with", dest="other", type=Path, help="JSON of another run on the same pictures: its methods join the table"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def read(args: argparse.Namespace) -> dict[str, Tensor]:
    pictures = {}
    for path in sorted(p for p in args.images.iterdir() if p.suffix in (".png", ".webp"))[: args.limit]:
        x = open_image(path).x.expand(3, -1, -1)
        if args.center:
            top, left = (x.shape[1] - args.center) // 2, (x.shape[2] - args.center) // 2
            x = x[:, top : top + args.center, left : left + args.center]
        if args.gray:
            x = x.mean(0, keepdim=True)
        pictures[path.stem] = x[None].contiguous()
    return pictures


def methods(args: argparse.Namespace) -> dict[str, Denoiser]:
    found: dict[str, Denoiser] = {} if args.no_bm3d or args.gray else {"BM3D": bm3d}
    if args.peers and not args.gray:
        found |= load_peers(args.peers, args.device)
    for name in args.priors:
        prior = aipo.load_prior(name).to(args.device)
        for spin in args.spin:
            label = Path(name).stem + (f" spin {spin}" if spin > 1 else "")
            found[label] = lambda y, sigma, prior=prior, spin=spin: prior.denoise(y, sigma, spin=spin)
    return found


def noisy(x: Tensor, number: int, sigma: float) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * number + round(255 * sigma))
    return x + sigma * torch.randn(x.shape, generator=generator)


def psnr(x: Tensor, truth: Tensor) -> float:
    return aipo.metrics.psnr(x.clamp(0, 1), truth).item()


def denoise(pictures: dict[str, Tensor], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    chosen = methods(args)
    for i, (name, x) in enumerate(pictures.items()):
        for level in args.levels:
            y = noisy(x, i, level / 255)
            for method, function in chosen.items():
                if method == "DnCNN" and level != 25:
                    continue
                there = y if method == "BM3D" else y.to(args.device)
                start = time.perf_counter()
                estimate = function(there, level / 255).cpu()
                seconds = time.perf_counter() - start
                row = {"image": name, "level": level, "method": method, "psnr": psnr(estimate, x), "seconds": seconds}
                rows.append(row)
    if args.other:
        rows += [r for r in json.loads(args.other.read_text())["rows"] if r["method"] not in chosen]
    for method in dict.fromkeys(r["method"] for r in rows):
        means = []
        for level in LEVELS:
            values = [r["psnr"] for r in rows if r["method"] == method and r["level"] == level]
            means.append(f"{sum(values) / len(values):6.2f}" if values else "     -")
        times = [r["seconds"] for r in rows if r["method"] == method]
        print(f"{method:24} {' / '.join(means)} dB   {sum(times) / len(times):7.3f} s", flush=True)
    return rows


def sigma_errors(pictures: dict[str, Tensor], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in args.priors:
        prior = aipo.load_prior(name).to(args.device)
        for sigma in SIGMAS:
            errors = []
            for i, (picture, x) in enumerate(pictures.items()):
                found = prior.estimate_sigma(noisy(x, i, sigma).to(args.device)).item()
                errors.append(abs(found / sigma - 1))
                rows.append({"prior": name, "image": picture, "sigma": sigma, "found": found})
            median, worst = sorted(errors)[len(errors) // 2], max(errors)
            print(f"{name:16} sigma {sigma:5}  median error {median:6.2%}  worst {worst:6.2%}", flush=True)
    return rows


def tiles_against_whole(pictures: dict[str, Tensor], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The four corners of 256x256 in the middle of each picture would differ little; whole pictures are compared."""
    rows = []
    for name in args.priors:
        prior = aipo.load_prior(name).to(args.device)
        for level in LEVELS:
            gains = []
            for i, (picture, x) in enumerate(pictures.items()):
                x = x[..., : x.shape[2] // 64 * 64, : x.shape[3] // 64 * 64]
                y = noisy(x, i, level / 255).to(args.device)
                whole = psnr(prior.denoise(y, level / 255).cpu(), x)
                apart = y.unfold(2, 64, 64).unfold(3, 64, 64).permute(0, 2, 3, 1, 4, 5)
                apart = torch.stack([prior.denoise(t[None], level / 255)[0] for t in apart.flatten(0, 2)])
                grid = (x.shape[2] // 64, x.shape[3] // 64)
                apart = apart.unflatten(0, grid).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)[None].cpu()
                tiles = psnr(apart, x)
                gains.append(whole - tiles)
                rows.append({"prior": name, "image": picture, "level": level, "whole": whole, "tiles": tiles})
            print(f"{name:16} {level:3}  whole pictures are better by {sum(gains) / len(gains):.3f} dB", flush=True)
    return rows


def speed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds for one evaluation, after a first one that prepares it; the median of five."""
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    shape = GPU_SPEED_SHAPE if cuda else (1, *SPEED_SHAPE)
    y = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device)
    chosen: dict[str, Any] = {}
    if args.peers:
        half = torch.float16 if cuda else torch.float32
        ffdnet = load_peers(args.peers, device, half)["FFDNet"]
        chosen["FFDNet"] = lambda: ffdnet(y.to(half), 0.1)
    for name in args.priors:
        prior = aipo.load_prior(name).to(device)
        chosen[name] = lambda prior=prior: prior.gradient(y, 0.1, "fast")
    if not cuda and not args.no_bm3d:
        chosen["BM3D"] = lambda: bm3d(y, 0.1)
    rows = []
    for name, function in chosen.items():
        times = []
        for _ in range(3 if name == "BM3D" else 8):
            start = time.perf_counter()
            function()
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        seconds = sorted(times[1:])[len(times[1:]) // 2]
        megapixels = y[:, 0].numel() / seconds / 1e6
        row = {"method": name, "shape": list(shape), "seconds": seconds, "megapixels_per_second": megapixels}
        if name in args.priors:
            row["tflops"] = 4 * work(aipo.load_prior(name).flow) * megapixels / 1e6
        rows.append(row)
        print(f"{name:14} {seconds:8.4f} s  {megapixels:8.2f} Mpx/s  {row.get('tflops', 0):7.2f} TFLOP/s", flush=True)
    return rows


def work(flow: aipo.flows.NoiseFlow) -> float:
    """Multiplications of a forward pass for one pixel; a gradient is two such passes."""
    return sum(
        p.numel() / 4 ** (i + 1) for i, level in enumerate(flow.levels) for p in level.parameters() if p.ndim == 4
    )


class Layers:
    """The convolutions of one file."""

    def __init__(self, path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32):
        tensors = load_file(path)
        count = 1 + max(int(name.split(".")[0]) for name in tensors)
        self.layers = [[tensors[f"{i}.{kind}"].to(device, dtype) for kind in ("weight", "bias")] for i in range(count)]

    def __call__(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(self.layers):
            x = F.conv2d(x, weight, bias, padding=1)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x


class FFDNet(Layers):
    def __call__(self, y: Tensor, sigma: float) -> Tensor:  # type: ignore[override]
        height, width = y.shape[2:]
        even = F.pad(y, (0, width % 2, 0, height % 2), mode="replicate")
        small = F.pixel_unshuffle(even, 2)
        level = torch.full_like(small[:, :1], sigma)
        return F.pixel_shuffle(super().__call__(torch.cat([small, level], dim=1)), 2)[..., :height, :width]


class DnCNN(Layers):
    """Trained for one sigma, 25/255; it ignores the one it is given."""

    def __call__(self, y: Tensor, sigma: float) -> Tensor:  # type: ignore[override]
        return y - super().__call__(y)


def load_peers(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Denoiser]:
    return {
        "FFDNet": FFDNet(folder / "ffdnet_color.safetensors", device, dtype),
        "DnCNN": DnCNN(folder / "dncnn_color_sigma25.safetensors", device, dtype),
    }


def bm3d(y: Tensor, sigma: float) -> Tensor:
    """CBM3D with the package's defaults."""
    import bm3d as package

    images = [package.bm3d_rgb(image.permute(1, 2, 0).double().numpy(), sigma) for image in y]
    return torch.stack([torch.from_numpy(image).permute(2, 0, 1).to(y) for image in images])


if __name__ == "__main__":
    main()
