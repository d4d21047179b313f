"""Priors on disk: what was saved comes back, what is suspicious is refused in one line; the embedded ones are sound."""

import json
import pickle

import pytest
import torch

import aipo
from aipo import samples
from aipo.errors import InputError
from aipo.flows import RealNVP
from aipo.flows.presets import PRESETS
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.priors.zoo import prior_names

SHAPE = (3, 8, 8)
CARD = {"name": "tiny", "bits": 5, "data": "noise", "license": "none", "metrics": {"bits_per_dim_val": 4.2}}


@pytest.fixture
def saved(tmp_path):
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[4, 4])
    path = tmp_path / "tiny.safetensors"
    save_prior_files(flow, CARD, path)
    return path


def edit_card(path, **changes):
    card = json.loads(path.with_suffix(".json").read_text()) | changes
    path.with_suffix(".json").write_text(json.dumps({k: v for k, v in card.items() if v is not None}))


def test_a_prior_that_does_not_move_keeps_what_was_made_for_it(saved):
    prior = aipo.load_prior(saved)
    engine, surrogate = prior.engine(), prior.surrogate
    for target in ("cpu", torch.float32):
        assert prior.to(target) is prior
        assert prior.engine() is engine
        assert prior.surrogate is surrogate
    assert prior.to(torch.float64).engine() is not engine
    assert prior.surrogate.mean.dtype == torch.float64


def test_round_trip(saved):
    prior = aipo.load_prior(saved)
    assert prior.name == "tiny"
    assert prior.bits == 5
    assert prior.image_shape == SHAPE
    assert prior.card["metrics"] == CARD["metrics"]
    assert not any(p.requires_grad for p in prior.flow.parameters())
    assert not prior.flow.training
    assert prior.sample(2).shape == (2, *SHAPE)


def refused(path, *words):
    with pytest.raises(InputError) as caught:
        aipo.load_prior(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_wrong_hash(saved):
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    message = refused(saved, "SHA-256", str(saved))
    assert "truncated" not in message


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    refused(saved, "truncated", str(saved))


def test_card_of_another_architecture(saved):
    card = json.loads(saved.with_suffix(".json").read_text())
    edit_card(saved, config={**card["config"], "hidden": [4, 5]})
    refused(saved, "does not fit its weights")


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"unknown": 1}},
        {"config": {"image_shape": [3, 8, 8], "couplings": [2, 2], "hidden": [4]}},
    ],
)
def test_card_of_no_flow(saved, changes):
    edit_card(saved, **changes)
    refused(saved, "no flow we know")


def test_card_of_an_unknown_architecture(saved):
    edit_card(saved, architecture="diffusion")
    refused(saved, "architecture is 'diffusion'", "realnvp")


def test_a_card_in_the_first_spelling(saved):
    file = saved.with_suffix(".json")
    file.write_text(file.read_text().replace('"license"', '"licence"'))
    assert aipo.load_prior(saved).card["license"] == "none"


@pytest.mark.parametrize("key", ["sha256", "bits", "offset", "license", "architecture"])
def test_card_that_lacks_something(saved, key):
    edit_card(saved, **{key: None})
    refused(saved, "lacks", key)


def test_offset_that_does_not_fit_the_bits(saved):
    edit_card(saved, bits=8)
    refused(saved, "offset")


def test_card_of_the_future(saved):
    edit_card(saved, format=99)
    refused(saved, "format")


def test_card_that_is_not_json(saved):
    saved.with_suffix(".json").write_text("{")
    refused(saved, "JSON")


def test_missing_card(saved):
    saved.with_suffix(".json").unlink()
    refused(saved, "cannot read", ".json")


def test_weights_with_nan(tmp_path):
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[4, 4])
    with torch.no_grad():
        flow.levels[0][0][0].shift[0] = torch.nan
    path = tmp_path / "nan.safetensors"
    save_prior_files(flow, CARD, path)
    refused(path, "NaN")


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("suffix", [".pt", ".pkl", ".pth", ".safetensors"])
def test_a_pickle_is_refused_unopened(saved, tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    saved.with_suffix(".json").rename(path.with_suffix(".json"))
    refused(path, str(path))


def test_unknown_name():
    message = refused("no-such-prior", "unknown prior no-such-prior")
    for name in aipo.prior_names():
        assert name in message


def test_saving_needs_a_complete_card_and_a_safetensors_name(tmp_path):
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[4, 4])
    with pytest.raises(InputError, match="lacks data"):
        save_prior_files(flow, {"name": "x", "bits": 5, "license": "", "metrics": {}}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="safetensors"):
        save_prior_files(flow, CARD, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [n for n in aipo.prior_names() if n.startswith("celeba64")])
def test_embedded_priors_load_and_are_honest(name):
    prior = load_prior_files(aipo.zoo._FOLDER / f"{name}.safetensors")
    assert prior.name == name
    face = aipo.samples.load("astronaut")[None]
    noise = torch.rand(1, *prior.image_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # A face costs far fewer bits than noise, and no more than a few bits per dimension.
        assert prior.bits_per_dim(face).item() < 2.5
        assert prior.bits_per_dim(noise).item() > 4
        mean = prior.flow.decode(torch.zeros(1, prior.flow.num_dims))
    assert ((mean > -0.05) & (mean < 1.05)).all()


MB = 1_000_000
LIMITS = {"realnvp-small": 2 * MB, "realnvp": 16 * MB, "glow": 24 * MB, "tarflow": 32 * MB}


@pytest.fixture(scope="module", params=LIMITS)
def prior(request):
    return aipo.load_prior(f"celeba64-{request.param}")


def test_names_and_sizes():
    from aipo import zoo

    assert prior_names() == sorted(["photo-small", *(f"celeba64-{model}" for model in LIMITS)])
    sizes = {path.stem: path.stat().st_size for path in zoo._FOLDER.glob("*.safetensors")}
    assert all(sizes[f"celeba64-{model}"] <= limit for model, limit in LIMITS.items())
    assert sizes["photo-small"] <= 4 * MB
    assert sum(sizes.values()) < 68 * MB


def test_the_prior_of_photographs_removes_noise_and_measures_it():
    prior, x = aipo.load_prior("photo-small"), aipo.samples.photograph()[None, :, :96, :128]
    noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert prior.estimate_sigma(noisy).item() == pytest.approx(0.1, rel=0.06)
    gain = aipo.metrics.psnr(prior.denoise(noisy, 0.1).clamp(0, 1), x) - aipo.metrics.psnr(noisy.clamp(0, 1), x)
    assert gain.item() > 7


def test_the_card_of_photographs_allows_all_uses_and_names_the_authors():
    card = aipo.load_prior("photo-small").card
    assert "commercial" in card["license"]
    assert "Non-commercial" not in card["license"]
    assert sum(len(group["photographs"]) for group in card["credits"]) == 356
    assert card["training"]["command"].startswith("aipo train")
    assert {"psnr_15", "psnr_25", "psnr_50"} <= card["metrics"].keys()


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


def test_smooth_noise_is_removed_by_adding_white_noise():
    """As the flow is told of more white noise than there is, its plain estimate of a nearly clean image is poor."""
    prior, x = aipo.load_prior("photo-small"), aipo.samples.photograph()[None, :, :96, :128]
    white = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    noisy = x + 0.03 * torch.nn.functional.avg_pool2d(white, 3, 1, 1)
    plain, smooth = (
        aipo.metrics.psnr(f(noisy, 0.04).clamp(0, 1), x).item() for f in (prior.denoise, prior.denoise_smooth)
    )
    assert smooth > plain + 0.5
    assert torch.equal(prior.denoise_smooth(noisy, 0.04), prior.denoise_smooth(noisy, 0.04))
