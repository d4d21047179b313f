"""CBSD68 as deepinv's benchmark measures it, with our solver file in it, against our own way to the same numbers.

    python benchmarks/deepinv_task/cbsd68.py --images DIR [--prior photo-small] [--sigma 0.1] [--count 68]

Needs the environment of `make test-deepinv`. Every picture is resized to 256x256, as there.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import deepinv
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, Resize, ToTensor

import aipo

SIDE = 256


class Pictures(Dataset):
    """The pictures of a folder, resized."""

    def __init__(self, folder, count):
        self.files = sorted(p for p in Path(folder).iterdir() if p.suffix in (".png", ".jpg", ".webp"))[:count]
        self.transform = Compose([Resize((SIDE, SIDE)), ToTensor()])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.transform(Image.open(self.files[i]).convert("RGB"))


def solver_of(prior):
    """Our solver file, loaded as benchopt does; prior is a name or a prior."""
    spec = importlib.util.spec_from_file_location("aipo_anneal", Path(__file__).with_name("aipo_anneal.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    solver = module.Solver()
    solver.prior = prior
    return solver


def through_deepinv(prior, pictures, sigma):
    """The mean PSNR that the benchmark's objective reports."""
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(sigma))
    solver = solver_of(prior)
    solver.set_objective(train_dataset=pictures, physics=physics)
    solver.run(None)
    torch.manual_seed(0)
    metrics = [deepinv.loss.metric.PSNR()]
    loader = DataLoader(pictures)
    model = solver.get_result()["model"]
    return deepinv.test(model, loader, physics, metrics=metrics, online_measurements=True, verbose=False)["PSNR"]


def our_own(prior, pictures, sigma):
    """The mean PSNR of one estimate, with noise drawn from a seed of our own."""
    known = aipo.load_prior(prior) if isinstance(prior, str) else prior
    values = []
    for i in range(len(pictures)):
        x = pictures[i][None]
        y = aipo.operators.Denoising(tuple(x.shape[1:])).measure(x, aipo.Gaussian(sigma), seed=i)
        values.append(aipo.metrics.psnr(known.denoise(y, sigma), x).item())
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True)
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--sigma", type=float, default=0.1)
    parser.add_argument("--count", type=int, default=68)
    options = parser.parse_args()
    pictures = Pictures(options.images, options.count)
    theirs = through_deepinv(options.prior, pictures, options.sigma)
    ours = our_own(options.prior, pictures, options.sigma)
    print(json.dumps({"images": len(pictures), "deepinv": round(theirs, 3), "ours": round(ours, 3)}))


if __name__ == "__main__":
    main()
