"""A noise prior denoises by Tweedie's formula and measures noise by likelihood, for any size, image by image."""

import math

import pytest
import torch

from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.priors import NoisePrior, Prior, most_likely, noise_prior
from aipo.priors.files import load_prior_files, save_prior_files
from small_problem import build_flow, build_noise_flow, smooth_images

VARIANCE = 0.04


@pytest.fixture
def gaussian():
    """Before training a noise flow is a Gaussian: x ~ N(0.5, VARIANCE) in every value, with closed forms for all."""
    flow = NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8).double().requires_grad_(False)
    flow.variances.fill_(VARIANCE)
    return NoisePrior(flow)


@pytest.fixture
def prior():
    return NoisePrior(build_noise_flow(levels=2, dtype=torch.float32, scale=0.03))


def draw(*shape, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 + VARIANCE**0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, x + sigma * torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(2, 3, 8, 12), (1, 1, 7, 5), (1, 3, 1, 9)], ids=str)
@pytest.mark.parametrize("spin", [1, 4])
def test_denoising_a_gaussian_is_shrinkage(gaussian, shape, spin):
    _, y = draw(*shape, sigma=0.1)
    # Of a gray image the brightness has that variance, which is three times as large as that of its values.
    variance = VARIANCE / (3 if shape[1] == 1 else 1)
    expected = 0.5 + variance / (variance + 0.01) * (y - 0.5)
    torch.testing.assert_close(gaussian.denoise(y, 0.1, spin=spin), expected)


def test_every_image_has_its_own_sigma(gaussian):
    _, y = draw(3, 3, 8, 8, sigma=0.1)
    sigma = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)
    expected = 0.5 + VARIANCE / (VARIANCE + sigma.square().view(-1, 1, 1, 1)) * (y - 0.5)
    torch.testing.assert_close(gaussian.denoise(y, sigma), expected)


def test_denoising_is_the_gradient_of_the_density(prior, monkeypatch):
    monkeypatch.setattr(noise_prior, "MOST_TAKEN", math.inf)  # random weights take away more than noise
    y = smooth_images(2, 16) + 0.1 * torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    y.requires_grad_()
    (score,) = torch.autograd.grad(prior.log_prob(y, 0.1).sum(), y)
    torch.testing.assert_close(prior.denoise(y.detach(), 0.1), y.detach() + 0.01 * score, rtol=1e-4, atol=1e-4)


def test_a_wild_flow_takes_away_no_more_than_noise():
    prior = NoisePrior(build_noise_flow(dtype=torch.float32, scale=0.15))
    y = smooth_images(2, 48) + 0.1 * torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    _, gradient = prior.gradient(y, 0.1)
    assert (0.1 * gradient).square().mean() > 10  # unbounded it would take away much more
    taken = (y - prior.denoise(y, 0.1)) / 0.1
    assert taken.square().mean((1, 2, 3)).max() < 4


@pytest.mark.parametrize(
    ("sigma", "variance"),
    [(0.004, 0.0), (0.006, 0.0), (0.006, 1e-5), (0.02, 1e-4), (0.1, 0.0), (0.1, 1e-3), (0.28, VARIANCE), (0.4, 0.0)],
)
def test_sigma_is_the_maximum_of_the_likelihood(gaussian, sigma, variance, monkeypatch):
    gaussian.flow.variances.fill_(variance)
    generator = torch.Generator().manual_seed(3)
    y = 0.5 + (variance + sigma**2) ** 0.5 * torch.randn(1, 3, 64, 64, generator=generator, dtype=torch.float64)
    # With all variance known, the most likely sigma is a moment; where noise is weak beside it, it may leave the range.
    low, high = gaussian.levels
    expected = min(max((y - 0.5).square().mean().item() - variance, low**2), high**2) ** 0.5
    calls = []
    log_prob = NoiseFlow.log_prob

    def counted(self, y, s):
        calls.append(s)
        return log_prob(self, y, s)

    monkeypatch.setattr(NoiseFlow, "log_prob", counted)
    found = gaussian.estimate_sigma(y)
    assert found.shape == (1,)
    assert len(calls) <= 8
    assert found.item() == pytest.approx(expected, rel=0.02)


def test_sigma_is_found_by_default(gaussian):
    _, y = draw(2, 3, 48, 48, sigma=0.2)
    sigma = gaussian.estimate_sigma(y)
    torch.testing.assert_close(gaussian.denoise(y), gaussian.denoise(y, sigma))


def test_of_a_large_image_some_tiles_are_measured(gaussian, monkeypatch):
    monkeypatch.setattr(most_likely, "MOST_PIXELS", 32 * 32 * 2)
    monkeypatch.setattr(most_likely, "TILE", 32)
    parts = most_likely._representative(torch.zeros(1, 3, 320, 96))
    assert 1 <= sum(p[0, 0].numel() for p in parts) <= 2 * 32 * 32
    _, y = draw(1, 3, 160, 96, sigma=0.2)
    assert gaussian.estimate_sigma(y).item() == pytest.approx(0.2, rel=0.1)


def test_tiles_change_nothing_far_from_their_borders(prior, monkeypatch):
    y = smooth_images(1, 128) + 0.1 * torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    whole = prior.denoise(y, 0.1)
    monkeypatch.setattr(noise_prior, "TILE", 32)
    # One level sees 4 couplings of 6 convolutions, the next one 2 of 4 at half the resolution: 48 + 32 pixels.
    monkeypatch.setattr(noise_prior, "MARGIN", 80)
    torch.testing.assert_close(prior.denoise(y, 0.1), whole, rtol=1e-4, atol=1e-5)


def test_a_result_does_not_depend_on_its_batch(prior):
    y = smooth_images(3, 16)
    together = prior.denoise(y, torch.tensor([0.05, 0.1, 0.05]))
    alone = torch.cat([prior.denoise(y[i : i + 1], s) for i, s in enumerate((0.05, 0.1, 0.05))])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    values, gradients = prior.gradient(y, torch.tensor([0.05, 0.1, 0.05]))
    torch.testing.assert_close(values[1:2], prior.gradient(y[1:2], 0.1)[0])
    torch.testing.assert_close(gradients[1:2], prior.gradient(y[1:2], 0.1)[1])


def test_a_level_is_a_prior(prior):
    level, x = prior.at(0.1), smooth_images(2, 16)
    torch.testing.assert_close(level.P(x), -prior.log_prob(x, 0.1))
    torch.testing.assert_close(level.engine()(x)[0], level.P(x), rtol=1e-5, atol=0.1)
    torch.testing.assert_close(x - 0.01 * level.gradient(x), prior.denoise(x, 0.1))
    assert level.name == "noise-flow at 0.1"


def test_new_weights_are_noticed(prior):
    x = smooth_images(1, 16)
    before = prior.gradient(x, 0.1)[0]
    next(prior.flow.levels[0].parameters()).add_(0.1)
    after = prior.gradient(x, 0.1)[0]
    torch.testing.assert_close(after, -prior.log_prob(x, 0.1), rtol=1e-5, atol=0.1)
    assert (after != before).all()


def test_only_the_last_levels_are_kept(prior):
    x = smooth_images(1, 8)
    for i in range(2 * noise_prior.KEPT_ENGINES):
        prior.gradient(x, 0.01 * (1 + i))
    assert len(prior._engines) == noise_prior.KEPT_ENGINES
    kept = prior.engine(0.01 * 2 * noise_prior.KEPT_ENGINES)
    assert prior.engine(0.01 * 2 * noise_prior.KEPT_ENGINES) is kept


def test_on_disk_and_back(prior, tmp_path):
    card = {"name": "mine", "bits": 0, "data": "none", "license": "none", "metrics": {}}
    save_prior_files(prior.flow, card, tmp_path / "mine.safetensors")
    loaded = load_prior_files(tmp_path / "mine.safetensors")
    assert isinstance(loaded, NoisePrior)
    assert (loaded.name, loaded.card["offset"], loaded.levels) == ("mine", 0.0, prior.levels)
    x = smooth_images(1, 16)
    torch.testing.assert_close(loaded.log_prob(x, 0.1), prior.log_prob(x, 0.1), rtol=0.02, atol=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y: p.denoise(y, 25.0), "0.005 to 0.3, where white is 1; got 25"),
        (lambda p, y: p.denoise(y, float("nan")), "got nan"),
        (lambda p, y: p.denoise(y, torch.tensor([0.1, 0.1, 0.1])), "one per image"),
        (lambda p, y: p.denoise(y, 0.1, spin=0), "spin must be 1 to 16"),
        (lambda p, y: p.denoise(y[0], 0.1), "takes images"),
        (lambda p, y: p.denoise(y[:, :2], 0.1), "takes images"),
        (lambda p, y: p.denoise(y[:0], 0.1), "takes images"),
        (lambda p, y: p.estimate_sigma(y.double()), "float32"),
        (lambda p, y: p.at(0.0), "got 0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(prior, call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(prior, smooth_images(2, 8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["denoise", "estimate_sigma", "at"])
def test_other_priors_refuse(method):
    with pytest.raises(InputError, match="noise level"):
        getattr(Prior(build_flow()), method)(0.1)
