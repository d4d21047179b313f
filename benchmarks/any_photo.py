"""Any photograph: 30 pictures of ten kinds through every task of `aipo restore`, then speed, memory and a portrait.

    python benchmarks/any_photo.py --files [--save]                what becomes of the files
    python benchmarks/any_photo.py --numbers [--prior NAME] [--save]   1 and 12 megapixels, and the astronaut

The pictures are scikit-image's and drawn ones. `--files` asks whether each run ends with a file of the same kind and
size, or with a reason. That does not depend on what the prior has learned, so a small one before its training does it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from denoise import bm3d, hardware, psnr
from PIL import Image, ImageCms, ImageDraw
from results import RESULTS, save_run
from skimage import data
from torch.nn import functional as F
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.images.faces import find_faces
from aipo.images.photograph import read_photograph
from aipo.images.png16 import encode_png16
from aipo.images.windows import place_window
from aipo.priors.files import save_prior_files
from aipo.restore.faces import with_small_faces
from aipo.restore.operators import mosaic_mask

TASKS = ("denoise", "inpaint", "superres", "deblur", "demosaic", "colorize")
SIDE = 320  # of the ordinary pictures: what is asked does not depend on it
LARGE = 4_000_000  # pixels; larger pictures are denoised and inpainted only, the others take hours on a CPU
Draw = tuple[str, Callable[[], Image.Image]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--save", action="store_true", help="to results/any_photo.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, wanted, measure in (("files", args.files, files), ("numbers", args.numbers, numbers)):
            if wanted:
                found = measure(Path(folder), args.prior)
                about = {"date": date.today().isoformat(), "hardware": hardware(), "torch": torch.__version__}
                if args.save:
                    save_run(RESULTS / "any_photo.json", name, {**about, **found})


# --- the pictures ---


def ordinary(image: np.ndarray | Image.Image) -> Image.Image:
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.thumbnail((SIDE, SIDE))
    return picture


def landscape(width: int, height: int, seed: int) -> Image.Image:
    """Hills under a sky: sums of waves."""
    draw, across = np.random.default_rng(seed), np.linspace(0, 1, width)
    pixels = np.linspace((0.4, 0.6, 0.95), (0.9, 0.9, 0.85), height)[:, None].repeat(width, 1)
    for k in range(4):
        waves = sum(draw.normal() / n * np.sin(n * 9 * across + draw.uniform(0, 6)) for n in range(1, 12))
        below = np.arange(height)[:, None] > height * (0.4 + 0.15 * k + 0.04 * waves)
        pixels[below] = draw.uniform(0.1, 0.6, 3)
    return Image.fromarray((255 * (pixels + 0.02 * draw.normal(size=pixels.shape)).clip(0, 1)).astype(np.uint8))


def group(columns: int) -> Image.Image:
    faces = aipo.load_prior("celeba64-realnvp-small").sample(2 * columns, temperature=0.7, seed=columns)
    sheet = aipo.images.tile(list(faces.clamp(0, 1)), columns, gap=8)
    return Image.fromarray((255 * sheet).round().byte().permute(1, 2, 0).numpy())


def screenshot(seed: int) -> Image.Image:
    picture, draw = Image.new("RGBA", (SIDE, 200), "white"), np.random.default_rng(seed)
    pen = ImageDraw.Draw(picture)
    for k in range(8):
        x, y = draw.integers(0, 240), draw.integers(0, 160)
        pen.rectangle((x, y, x + 70, y + 24), fill=tuple(draw.integers(0, 255, 3)), outline="black")
        pen.text((x + 4, y + 6), f"Button {k}", fill="white")
    picture.putalpha(Image.new("L", picture.size, 255 if seed else 200))
    return picture


def enlarged(image: np.ndarray, width: int, height: int) -> Image.Image:
    return Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)


KINDS: dict[str, list[Draw]] = {
    "landscape": [(".jpg", lambda: ordinary(data.rocket())), (".webp", lambda: ordinary(landscape(480, 320, 0)))],
    "portrait": [(".jpg", lambda: ordinary(data.astronaut())), (".png", lambda: ordinary(data.chelsea()))],
    "group": [(ending, lambda n=n: group(n)) for n, ending in enumerate((".jpg", ".png", ".tif"), start=2)],
    "text": [(".png", lambda: ordinary(data.page())), (".bmp", lambda: ordinary(data.text()))],
    "screenshot": [(ending, lambda n=n: screenshot(n)) for n, ending in enumerate((".png", ".webp", ".tif"))],
    "gray": [(".jpg", lambda: ordinary(data.camera())), (".png", lambda: ordinary(data.moon()))],
    "16 bit": [(".png", lambda: ordinary(data.coffee())), (".tif", lambda: ordinary(data.coins()))],
    "12 MP": [(".jpg", lambda: enlarged(data.coffee(), 4000, 3000)), (".png", lambda: landscape(4000, 3000, 1))],
    "40x30": [(".png", lambda: enlarged(data.coffee(), 40, 30)), (".bmp", lambda: enlarged(data.rocket(), 40, 30))],
    "panorama": [(".jpg", lambda: landscape(8000, 600, 2)), (".webp", lambda: landscape(8000, 600, 3))],
}
KINDS["landscape"].append((".avif", lambda: ordinary(data.hubble_deep_field())))
KINDS["portrait"].append((".tif", lambda: ordinary(data.astronaut()[:270, 90:360])))
KINDS["text"].append((".jpg", lambda: ordinary(data.page()).convert("CMYK")))
KINDS["gray"].append((".webp", lambda: ordinary(data.coins())))
KINDS["16 bit"].append((".png", lambda: ordinary(data.moon())))
KINDS["12 MP"].append((".jpg", lambda: enlarged(data.retina(), 3464, 3464)))
KINDS["40x30"].append((".jpg", lambda: enlarged(data.astronaut(), 30, 40)))
KINDS["panorama"].append((".jpg", lambda: enlarged(data.camera(), 8000, 600)))


def write(picture: Image.Image, path: Path, deep: bool) -> None:
    """With the camera's name, held upright, and with a color profile, as far as the format has them."""
    pixels = np.asarray(picture)
    if deep and path.suffix == ".png":
        content = (pixels.astype(np.uint16) * 257).reshape(*pixels.shape[:2], -1)
        path.write_bytes(encode_png16(content, None, None))
        return
    if deep:
        picture = Image.fromarray(pixels.astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "AIPO", 6  # the camera, and: turn by 90 degrees
    kept: dict[str, Any] = {} if path.suffix == ".bmp" else {"exif": exif}
    if picture.mode in ("RGB", "RGBA") and kept:
        kept["icc_profile"] = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture.save(path, **kept)


# --- what becomes of the files ---


def files(folder: Path, _: str) -> dict[str, Any]:
    prior = folder / "untrained.safetensors"
    flow = aipo.flows.NoiseFlow(couplings=[1, 1], hidden=[4, 4], blocks=[1, 1])
    flow.initialize(aipo.samples.photograph()[None])
    card = {"name": "untrained", "bits": 0, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow.requires_grad_(False), card, prior)
    rows = []
    for kind, pictures in KINDS.items():
        for number, (ending, draw) in enumerate(pictures):
            path = folder / f"{kind.replace(' ', '-')}-{number}{ending}"
            write(draw(), path, deep=kind == "16 bit")
            for task in TASKS:
                rows.append({"kind": kind, "picture": path.name, "task": task, **one(path, task, prior, folder)})
                print(*rows[-1].values(), sep="  ", flush=True)
    good = sum(row["outcome"] in ("restored", "asked") for row in rows)
    print(f"{len(rows)} runs: {good} ended as they should")
    return {"rows": rows, "good": good}


def one(path: Path, task: str, prior: Path, folder: Path) -> dict[str, str]:
    """What becomes of a picture: restored, asked (with the question), left out, or what was lost."""
    photo = read_photograph(path)
    height, width = photo.x.shape[1:]
    if height * width > LARGE and task not in ("denoise", "inpaint", "colorize"):
        return {"outcome": "left out", "why": "too large for this benchmark"}
    options = {"superres": ["--factor=2"], "deblur": ["--blur=1.2"]}.get(task, [])
    if task == "inpaint":
        mask = np.full((height, width), 255, np.uint8)
        mask[10:14, 8:22] = 0
        Image.fromarray(mask).save(folder / "mask.png")
        options = [f"--mask={folder / 'mask.png'}"]
    if task == "demosaic" and len(photo.x) == 3:
        path = path.with_name(f"{path.stem}-mosaic.png")
        mosaic = (photo.x * mosaic_mask((3, height, width), "rggb")).sum(0)
        Image.fromarray((255 * mosaic).round().byte().numpy()).save(path)
    # Colorization is a face prior's task, which is the default.
    model = [] if task == "colorize" else [f"--prior={prior}"]
    out = folder / "out"
    command = ["restore", str(path), f"--task={task}", *options, *model, f"--out={out}", "--json"]
    outcome = CliRunner().invoke(app, command)
    if outcome.exit_code:
        lines = outcome.stderr.strip().splitlines()
        helps = len(lines) == 1 and (": " in lines[0])
        return {"outcome": "asked" if helps else "failed", "why": lines[-1].split(": ", 2)[-1] if lines else "-"}
    (record,) = json.loads(outcome.stdout)["pictures"]
    lost = differences(path, Path(record["restored"]), 2 if task == "superres" else 1, colored=task == "demosaic")
    return {"outcome": "lost" if lost else "restored", "why": ", ".join(lost) or Path(record["restored"]).suffix}


def differences(before: Path, after: Path, factor: int, colored: bool) -> list[str]:
    """What a restored file has not kept of the one it was made from."""
    try:
        one, other = read_photograph(before), read_photograph(after)
    except aipo.InputError as error:
        return [str(error)]
    size = tuple(factor * side for side in one.x.shape[1:])
    checks = {
        "size": tuple(other.x.shape[1:]) == size,
        "format": before.suffix == after.suffix,
        "colors": len(other.x) == (3 if colored else len(one.x)),
        "bits": one.bits == other.bits or (before.suffix == ".tif" and colored),
        "transparency": (one.alpha is None) == (other.alpha is None),
        "exif": one.kept.get("exif") == other.kept.get("exif"),
        "profile": one.kept.get("icc_profile") == other.kept.get("icc_profile"),
    }
    return [name for name, kept in checks.items() if not kept]


# --- speed, memory, a portrait ---


def numbers(folder: Path, name: str) -> dict[str, Any]:
    prior = aipo.load_prior(name)
    found: dict[str, Any] = {"prior": Path(name).stem, "prior_sha256": prior.card["sha256"]}
    for label, measure in {
        "portrait": lambda: portrait(prior),
        "megapixel, CPU seconds": lambda: megapixel(prior),
        "12 MP, peak GB": lambda: peak_gigabytes(folder, name),
        "small faces": lambda: small_faces(prior),
    }.items():
        found[label] = measure()
        print(label, json.dumps(found[label]), flush=True)
    return found


@torch.no_grad()
def megapixel(prior: aipo.NoisePrior) -> dict[str, float]:
    """CPU seconds of one megapixel, by ours (the second run) and by BM3D."""
    x = torch.from_numpy(np.array(enlarged(data.retina(), 1024, 1024))).permute(2, 0, 1)[None] / 255
    y = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    spent = {}
    for label, denoise in {"warm-up": prior.denoise, "ours": prior.denoise, "BM3D": bm3d}.items():
        start = time.process_time()
        denoise(y, 0.1)
        spent[label] = time.process_time() - start
    return {"ours": spent["ours"], "BM3D": spent["BM3D"], "ratio": spent["BM3D"] / spent["ours"]}


@torch.no_grad()
def portrait(prior: aipo.NoisePrior) -> dict[str, dict[str, float]]:
    """PSNR of the astronaut at sigma 0.1, whole and of the face."""
    x = torch.from_numpy(data.astronaut().copy()).permute(2, 0, 1)[None] / 255
    x0, y0, x1, y1 = map(int, find_faces(x[0])[0].box)
    y = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    estimates = {"noisy": y, "BM3D": bm3d(y, 0.1), "ours": prior.denoise(y, 0.1), "spin 4": prior.denoise(y, 0.1, 4)}
    face = (..., slice(y0, y1), slice(x0, x1))
    return {k: {"whole": psnr(v, x), "face": psnr(v[face], x[face])} for k, v in estimates.items()}


@torch.no_grad()
def small_faces(prior: aipo.NoisePrior) -> list[dict[str, float]]:
    """PSNR of the astronaut's face, made smaller, by the prior of photographs alone and with that of faces."""
    whole = torch.from_numpy(data.astronaut().copy()).permute(2, 0, 1)[None] / 255
    faces, rows = aipo.load_prior("celeba64-realnvp-small"), []
    size = place_window(whole[0], (64, 64), "align").scale
    for scale in (1.0, 1.6):
        x = F.interpolate(whole, scale_factor=scale / size, mode="bicubic", antialias=True)[0].clamp(0, 1)
        face = place_window(x, (64, 64), "align").paste(0 * x, torch.ones(3, 64, 64)) > 0.5
        for sigma in (0.05, 0.1, 0.2):
            y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
            alone = prior.denoise(y[None], sigma)[0].clamp(0, 1)
            both, _ = with_small_faces(alone, y, sigma, prior, faces)
            found = {
                name: psnr(v[face].view(1, 1, 1, -1), x[face].view(1, 1, 1, -1))
                for name, v in (("alone", alone), ("with faces", both))
            }
            rows.append({"scale": scale, "sigma": sigma, **found})
    return rows


def peak_gigabytes(folder: Path, name: str) -> float:
    """Of a process that denoises 12 megapixels from file to file, report included."""
    enlarged(data.coffee(), 4000, 3000).save(folder / "large.jpg")
    command = ["restore", folder / "large.jpg", "--task=denoise", f"--prior={name}", "--quiet"]
    subprocess.run([sys.executable, "-m", "aipo", *map(str, command), f"--out={folder / 'large'}"], check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
