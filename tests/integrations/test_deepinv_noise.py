"""deepinv's noise models as ours: what they draw follows the density that we give it; and back."""

import pytest
import scipy.stats
import torch

import aipo
from aipo.errors import InputError
from aipo.noise import as_generator

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")

from deepinv.physics import noise as theirs  # noqa: E402

from aipo.integrations.deepinv import as_noise_model, noise_of  # noqa: E402
from aipo.integrations.deepinv.noise import FisherTippett, LogPoisson, PhotonCounts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
LEVEL = 0.4
CONTINUOUS = {
    "gaussian": theirs.GaussianNoise(0.1),
    "laplace": theirs.LaplaceNoise(0.1),
    "poisson-gaussian": theirs.PoissonGaussianNoise(0.02, 0.05),
    "rician": theirs.RicianNoise(0.2),
    "gamma": theirs.GammaNoise(4.0),
    "fisher-tippett": theirs.FisherTippettNoise(4.0),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_what_they_draw_follows_our_density(name):
    torch.manual_seed(0)
    drawn = CONTINUOUS[name](torch.full((1, 20_000), LEVEL)).flatten().double().numpy()
    noise = noise_of(CONTINUOUS[name])
    y = torch.linspace(-3, 4, 20_001, dtype=torch.float64)[:, None] + 1e-6
    density = noise.log_prob(y, torch.full_like(y, LEVEL)).exp()
    if name in ("rician", "gamma"):
        density = torch.where(y[:, 0] > 0, density, 0)
    distribution = torch.cumulative_trapezoid(density, y[:, 0])
    assert distribution[-1].item() == pytest.approx(1, abs=1e-3)

    def cdf(v):
        i = torch.searchsorted(y[1:, 0].contiguous(), torch.as_tensor(v)).clamp(max=len(distribution) - 1)
        return distribution[i].numpy()

    assert scipy.stats.kstest(drawn, cdf).pvalue > 1e-3
    ours = noise.sample(torch.full((1, 20_000), LEVEL, dtype=torch.float64), as_generator(0)).flatten().numpy()
    assert scipy.stats.ks_2samp(drawn, ours).pvalue > 1e-3


@pytest.mark.parametrize("normalize", [True, False])
def test_photon_counts(normalize):
    torch.manual_seed(0)
    y = theirs.PoissonNoise(0.05, normalize=normalize)(torch.full((1, 1000), LEVEL)).double()
    noise = noise_of(theirs.PoissonNoise(0.05, normalize=normalize))
    assert isinstance(noise, aipo.Poisson if normalize else PhotonCounts)
    counts = y / 0.05 if normalize else y
    expected = scipy.stats.poisson.logpmf(counts.round().numpy(), LEVEL / 0.05).sum()
    assert noise.log_prob(y, torch.full_like(y, LEVEL)).item() == pytest.approx(expected, rel=1e-5)


def test_counted_x_rays():
    model = theirs.LogPoissonNoise(N0=200.0, mu=0.5)
    torch.manual_seed(0)
    y = model(torch.full((1, 1000), LEVEL)).double()
    noise = noise_of(model)
    assert isinstance(noise, LogPoisson)
    counts = 200 * (-0.5 * y).exp()
    expected = scipy.stats.poisson.logpmf(counts.round().numpy(), 200 * torch.tensor(-0.5 * LEVEL).exp().item()).sum()
    fx = torch.full_like(y, LEVEL)
    assert noise.log_prob(y, fx).item() == pytest.approx(expected, rel=1e-5)
    assert noise.variance(y).item() == pytest.approx(y.var().item(), rel=0.1)
    assert noise.sample(fx, as_generator(0)).var().item() == pytest.approx(y.var().item(), rel=0.1)
    assert noise.weights(y, fx)[0, 0].item() == pytest.approx(1 / y.var().item(), rel=0.1)


def test_fisher_tippett_has_its_moments():
    e = FisherTippett(4.0).draw(torch.Size([1, 100_000]), as_generator(0))
    assert e.var().item() == pytest.approx(FisherTippett(4.0).variance(e).item(), rel=0.03)


def test_levels_of_each_image():
    noise = noise_of(theirs.GaussianNoise(torch.tensor([0.1, 0.2])), batch=2)
    assert noise.sigma.tolist() == pytest.approx([0.1, 0.2])
    with pytest.raises(InputError, match=r"^sigma of the noise model has 2 values for 3 images; .*$"):
        noise_of(theirs.GaussianNoise(torch.tensor([0.1, 0.2])), batch=3)
    with pytest.raises(InputError, match=r"^gain of the noise model differs between images .*$"):
        noise_of(theirs.PoissonNoise(torch.tensor([0.1, 0.2])), batch=2)


@pytest.mark.parametrize("model", [theirs.UniformNoise(0.1), theirs.SaltPepperNoise()], ids=lambda m: type(m).__name__)
def test_noise_without_a_density_is_named(model):
    with pytest.raises(InputError, match=rf"^{type(model).__name__} has no density .*$"):
        noise_of(model)


def test_ours_as_theirs():
    noise = aipo.Gaussian(0.1)
    model = as_noise_model(noise)
    x = torch.zeros(1, 1000)
    assert isinstance(model, theirs.NoiseModel)
    assert noise_of(model) is noise
    assert model.sigma.item() == pytest.approx(0.1)
    torch.manual_seed(0)
    y = model(x)
    assert not torch.equal(y, model(x))
    torch.manual_seed(0)
    assert torch.equal(y, model(x))
    seeded = type(model)(noise, rng=torch.Generator())
    assert torch.equal(seeded(x, seed=3), seeded(x, seed=3))
