"""The embedded priors: they load without a network, and behave on and off the data."""

import pytest
import torch

import aipo
from aipo import samples
from aipo.flows.presets import PRESETS
from aipo.priors.zoo import prior_names

MB = 1_000_000
LIMITS = {"realnvp-small": 2 * MB, "realnvp": 16 * MB, "glow": 24 * MB, "tarflow": 32 * MB}


@pytest.fixture(scope="module", params=LIMITS)
def prior(request):
    return aipo.load_prior(f"celeba64-{request.param}")


def test_names_and_sizes():
    from aipo import zoo

    assert prior_names() == sorted(f"celeba64-{model}" for model in LIMITS)
    sizes = {path.stem: path.stat().st_size for path in zoo._FOLDER.glob("*.safetensors")}
    assert all(sizes[f"celeba64-{model}"] <= limit for model, limit in LIMITS.items())
    assert sum(sizes.values()) < 64 * MB


def test_architecture_is_the_preset(prior):
    flow, config = PRESETS[prior.name.removeprefix("celeba64-")]
    assert isinstance(prior.flow, flow)
    assert prior.flow.config.items() >= {**config, "image_shape": [3, 64, 64], "seed": 0}.items()


def test_the_card_says_what_one_must_know(prior):
    metrics = prior.card["metrics"]
    assert {f"bits_per_dim_{s}" for s in ("train", "val", "test", "fairface", "paintings")} <= metrics.keys()
    assert {f"psnr_{task}" for task in ("denoise", "inpaint", "ncs2000")} <= metrics.keys()
    assert "Non-commercial" in prior.card["license"]
    assert prior.card["training"]["command"].startswith("aipo train")


def test_a_real_face_is_more_probable_than_a_cat(prior):
    """And both cost about what the card says of validation faces."""
    face, cat = (prior.bits_per_dim(samples.load(name)[None]).item() for name in ("astronaut", "cat"))
    assert face < cat
    assert abs(face - prior.card["metrics"]["bits_per_dim_val"]) < 0.6


def test_the_center_is_a_plausible_face(prior):
    """G(0) lies in the box, is about symmetric as the flipped data are, and brighter in the face than around it."""
    center = prior.flow.decode(torch.zeros(1, prior.flow.num_dims))
    assert ((center > 0) & (center < 1)).float().mean() > 0.99
    assert (center - center.flip(-1)).square().mean().sqrt() < 0.15
    nose, corner = center[..., 24:40, 24:40].mean(), center[..., :8, :8].mean()
    assert nose > corner + 0.05


def test_finite_far_off_the_data(prior):
    noise = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for image in (noise, torch.zeros_like(noise), 10 * noise):
        x = image.clone().requires_grad_()
        P = prior.P(x)
        (gradient,) = torch.autograd.grad(P.sum(), x)
        assert P.isfinite().all()
        assert gradient.isfinite().all()


def test_encoding_inverts_decoding(prior):
    """In float64, as the stored weights are given: an embedded prior is a bijection, not nearly one."""
    flow = aipo.load_prior(prior.name).flow.double()
    x = samples.load("astronaut")[None].double()
    torch.testing.assert_close(flow.decode(flow.encode(x)), x, atol=1e-6, rtol=0)
