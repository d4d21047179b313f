"""Small faces in a photograph get better by the prior of faces, by as much as the picture itself can tell."""

import json

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import NoiseFlow
from aipo.images.metrics import psnr
from aipo.priors.files import save_prior_files
from aipo.restore.faces import blend_weight, with_small_faces

SIGMA = 0.1


@pytest.fixture(scope="module")
def photos():
    flow = NoiseFlow(couplings=[2, 2, 2], hidden=[4, 4, 4], blocks=[1, 1, 1])
    flow.initialize(torch.stack([aipo.samples.load(name) for name in ("astronaut", "cat")]))
    return aipo.NoisePrior(flow.requires_grad_(False), {"name": "gauss"})


def scene(name, around=48):
    """A sample picture with something around it, and the same with noise."""
    x = F.pad(aipo.samples.load(name)[None], (around,) * 4, "replicate")[0]
    return x, x + SIGMA * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shrink", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.5, 1.0, 4.0])
def test_the_weight_is_the_best_one_of_linear_estimates(shrink, share):
    """With p = y and f = (1 - shrink) y, the best estimate p + w (f - p) is Wiener's."""
    generator = torch.Generator().manual_seed(0)
    n = SIGMA * torch.randn(3, 64, 64, generator=generator)
    x = share * SIGMA * torch.randn(3, 64, 64, generator=generator)
    y = x + n
    weight = blend_weight(y, y, -shrink * y, -shrink * y.numel(), SIGMA)
    best = 1 / (1 + share**2) / shrink
    margin = 2 * SIGMA / (shrink * y.square().sum().sqrt().item())
    assert weight == pytest.approx(min(1, max(0, best - margin)), abs=0.02 / shrink)


def test_what_makes_it_worse_has_no_weight():
    y = SIGMA * torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert blend_weight(y, torch.zeros_like(y), 0.5 * y, 0.5 * y.numel(), SIGMA) == 0
    assert blend_weight(y, y, torch.zeros_like(y), 0.0, SIGMA) == 0


def test_a_small_face_gets_better(photos):
    x, y = scene("astronaut")
    p = photos.denoise(y[None], SIGMA)[0].clamp(0, 1)
    better, (note,) = with_small_faces(p, y, SIGMA, photos, aipo.load_prior("celeba64-realnvp-small"))
    face = (..., slice(48, -48), slice(48, -48))
    assert psnr(better[None][face], x[None][face]) > psnr(p[None][face], x[None][face]) + 1
    assert torch.equal(better[:, :16], p[:, :16]), "what is far from the face stays"
    assert "faces: 1, of them small: 1, improved by celeba64-realnvp-small: 1 (by the weight " in note


def test_where_there_is_no_face_or_no_white_noise_nothing_changes(photos):
    _, y = scene("cat")
    p = photos.denoise(y[None], SIGMA)[0]
    assert with_small_faces(p, y, SIGMA, photos, None) == (p, ())
    x, _ = scene("astronaut")
    smooth = F.avg_pool2d(torch.randn(1, *x.shape, generator=torch.Generator().manual_seed(0)), 3, 1, 1)[0]
    same, (note,) = with_small_faces(x, x + 0.3 * smooth, SIGMA, photos, None)
    assert same is x
    assert "not white" in note


def test_from_the_command_line(tmp_path, photos):
    _, y = scene("cat")
    Image.fromarray((y.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    card = {"name": "gauss", "bits": 0, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(photos.flow, card, tmp_path / "gauss.safetensors")
    command = ["restore", tmp_path / "a.png", "--task=denoise", f"--prior={tmp_path / 'gauss.safetensors'}"]
    results = []
    for options in ([], ["--faces=auto"]):
        out = tmp_path / f"out{len(options)}"
        outcome = CliRunner().invoke(app, [*map(str, command), *options, f"--out={out}", "--json"])
        assert outcome.exit_code == 0, outcome.output
        assert json.loads(outcome.stdout)["pictures"][0]["settings"]["faces"] == ("auto" if options else None)
        results.append((out / "a.restored.png").read_bytes())
    assert results[0] == results[1]
