"""Noise models: densities against torch.distributions, scipy and quadrature, sampling against exact moments."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import Normal
from torch.distributions import StudentT as TorchStudentT

from aipo.errors import InputError
from aipo.noise import AdditiveNoise, Gamma, Gaussian, Laplace, Poisson, PoissonGaussian, Rician, as_generator

MODELS = [(Gaussian, Normal, 1.0), (Laplace, TorchLaplace, math.sqrt(2))]
IDS = ["gaussian", "laplace"]


class StudentT(AdditiveNoise):
    """The example of the docstring of AdditiveNoise."""

    def __init__(self, nu: int, scale: float):
        self.nu, self.scale = nu, scale

    def log_density(self, e):
        return TorchStudentT(self.nu, 0.0, self.scale).log_prob(e).flatten(1).sum(1)

    def draw(self, shape, generator=None):
        normal = torch.randn(self.nu + 1, *shape, generator=generator)
        return self.scale * normal[0] / normal[1:].square().mean(0).sqrt()


@pytest.mark.parametrize(("model", "oracle", "_"), MODELS, ids=IDS)
@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (4, 7)])
@pytest.mark.parametrize("scale", [0.02, torch.tensor([0.02, 0.1, 0.5, 3.0], dtype=torch.float64)])
def test_log_prob_is_the_summed_density(model, oracle, _, shape, scale):
    e = 0.1 * torch.randn(shape, generator=as_generator(0), dtype=torch.float64)
    per_image = torch.as_tensor(scale, dtype=torch.float64).reshape(-1, *[1] * (e.ndim - 1))
    expected = oracle(0.0, per_image).log_prob(e).flatten(1).sum(1)
    torch.testing.assert_close(model(scale).log_density(e), expected, rtol=1e-12, atol=1e-10)
    fx = torch.rand(shape, generator=as_generator(1), dtype=torch.float64)
    torch.testing.assert_close(model(scale).log_prob(fx + e, fx), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("model", "_oracle", "_std"), MODELS, ids=IDS)
@given(scale=st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_density_integrates_to_one(model, _oracle, _std, scale):
    e = scale * torch.linspace(-40, 40, 8001, dtype=torch.float64)
    density = model(scale).log_density(e[:, None]).exp()
    assert torch.trapezoid(density, e).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("model", "_", "std"), MODELS, ids=IDS)
def test_sampling_moments(model, _, std):
    e = model(0.3).sample(torch.zeros(2, 100_000, dtype=torch.float64), as_generator(0))
    assert e.mean().item() == pytest.approx(0, abs=5 * 0.3 * std / math.sqrt(200_000))
    assert e.std().item() == pytest.approx(0.3 * std, rel=0.01)
    # E|e| tells the two apart: sigma sqrt(2/pi) for the Gaussian, scale for Laplace.
    assert e.abs().mean().item() == pytest.approx(0.3 * (math.sqrt(2 / math.pi) if std == 1 else 1), rel=0.01)


@pytest.mark.parametrize(("model", "_oracle", "_std"), MODELS, ids=IDS)
def test_sampling_is_reproducible_in_every_dtype(model, _oracle, _std):
    def draw(seed, dtype=torch.float32):
        return model(0.1).sample(torch.zeros(2, 3, 4, 4, dtype=dtype), as_generator(seed))

    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))
    assert draw(5).dtype == torch.float32
    assert torch.equal(draw(5), draw(5, torch.float64).float())


@pytest.mark.parametrize(("model", "_oracle", "_std"), MODELS, ids=IDS)
def test_one_scale_per_image(model, _oracle, _std):
    scales = torch.tensor([0.01, 10.0])
    zero = torch.zeros(2, 1000)
    e = model(scales).sample(zero, as_generator(0))
    torch.testing.assert_close(e, scales[:, None] * model(1.0).sample(zero, as_generator(0)))
    alone = torch.cat([model(scale.item()).log_density(e[i : i + 1]) for i, scale in enumerate(scales)])
    torch.testing.assert_close(model(scales).log_density(e), alone)


def test_gradient_in_float32():
    e = torch.randn(2, 3, 4, 4, generator=as_generator(0), requires_grad=True)
    Gaussian(torch.tensor([0.5, 2.0])).log_density(e).sum().backward()
    torch.testing.assert_close(e.grad, -e.detach() / torch.tensor([0.25, 4.0]).reshape(-1, 1, 1, 1))


def test_a_model_of_the_user():
    noise = StudentT(nu=4, scale=0.1)
    e = noise.sample(torch.zeros(2, 100_000), as_generator(0))
    assert e.std().item() == pytest.approx(0.1 * math.sqrt(4 / (4 - 2)), rel=0.1)
    grid = torch.linspace(-40, 40, 40_001, dtype=torch.float64)
    assert torch.trapezoid(noise.log_density(grid[:, None]).exp(), grid).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "much", None, torch.ones(2, 2), torch.zeros(3)])
@pytest.mark.parametrize(("model", "name"), [(Gaussian, "sigma"), (Laplace, "scale")])
def test_bad_scales_are_named(model, name, value):
    with pytest.raises(InputError, match=f"^{name} .*$"):
        model(value)


def test_bad_batches_and_seeds_are_named():
    with pytest.raises(InputError, match=r"^sigma holds 3 values for a batch of 2 images; .*$"):
        Gaussian(torch.ones(3)).log_density(torch.zeros(2, 5))
    with pytest.raises(InputError, match=r"^sigma holds 3 values for a batch of 2 images; .*$"):
        Gaussian(torch.ones(3)).sample(torch.zeros(2, 5))
    with pytest.raises(InputError, match=r"^seed is 'lucky'; .*$"):
        as_generator("lucky")


def test_attributes_and_repr():
    assert Gaussian(0.02).sigma == 0.02
    assert Laplace(torch.tensor(0.5)).scale == 0.5
    assert repr(Gaussian(0.02)) == "Gaussian(sigma=0.02)"
    assert repr(Laplace(torch.tensor([0.5, 0.25]))) == "Laplace(scale=[0.5, 0.25])"


@pytest.mark.parametrize("gain", [0.3, 0.01, 0.0005])
def test_poisson_is_that_of_scipy(gain):
    fx = torch.rand(4, 50, generator=as_generator(0), dtype=torch.float64) + 0.2
    y = Poisson(gain).sample(fx, as_generator(1))
    counts, means = (y / gain).round().numpy(), (fx / gain).numpy()
    expected = torch.from_numpy(scipy.stats.poisson.logpmf(counts, means)).sum(1)
    torch.testing.assert_close(Poisson(gain).log_prob(y, fx), expected, rtol=1e-9, atol=1e-8)


def test_poisson_goes_on_as_a_line_in_the_dark():
    noise, y = Poisson(0.1), torch.full((1, 1), 0.3, dtype=torch.float64)
    fx = torch.linspace(-0.5, 0.5, 1001, dtype=torch.float64)
    values = torch.stack([-noise.log_prob(y, v.view(1, 1)) for v in fx])[:, 0]
    assert values.isfinite().all()
    assert (values.diff().diff() > -1e-9).all()  # convex, so a solver always knows the way back


@pytest.mark.parametrize(("gain", "sigma"), [(0.1, 0.02), (0.1, 0.3), (0.01, 0.05), (0.001, 0.1), (0.002, 0.0005)])
def test_poisson_gaussian_is_the_whole_sum(gain, sigma):
    fx = torch.rand(3, 20, generator=as_generator(0), dtype=torch.float64)
    y = PoissonGaussian(gain, sigma).sample(fx, as_generator(1))
    k = np.arange(3000)
    poisson = scipy.stats.poisson.logpmf(k, (fx / gain).numpy()[..., None])
    terms = poisson + scipy.stats.norm.logpdf(y.numpy()[..., None], gain * k, sigma)
    expected = torch.from_numpy(scipy.special.logsumexp(terms, axis=-1)).sum(1)
    torch.testing.assert_close(PoissonGaussian(gain, sigma).log_prob(y, fx), expected, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("noise", [Poisson(0.02), PoissonGaussian(0.02, 0.05)], ids=repr)
def test_photon_noise_has_its_moments_and_a_gradient(noise):
    fx = torch.full((1, 200_000), 0.4, dtype=torch.float64)
    y = noise.sample(fx, as_generator(0))
    variance = 0.02 * 0.4 + getattr(noise, "sigma", 0) ** 2
    assert y.mean().item() == pytest.approx(0.4, abs=5 * math.sqrt(variance / 200_000))
    assert y.var().item() == pytest.approx(variance, rel=0.02)
    assert noise.variance(y).item() == pytest.approx(variance, rel=0.02)
    assert noise.weights(y, fx)[0, 0].item() == pytest.approx(1 / variance, rel=1e-6)
    x = torch.tensor([[-0.1, 0.0, 0.001, 0.3]], dtype=torch.float64, requires_grad=True)
    seen = torch.tensor([[0.0, 0.02, 0.1, 0.4]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: noise.log_prob(seen, v), x)
    dark = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    noise.log_prob(torch.zeros(1, 3, dtype=torch.float64), dark).sum().backward()
    assert dark.grad.isfinite().all()


def test_weights_stand_in_for_the_density():
    y, fx = torch.tensor([[0.5, 0.2]], dtype=torch.float64), torch.tensor([[0.1, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(Gaussian(0.1).weights(y, fx), torch.full_like(y, 100))
    torch.testing.assert_close(Laplace(0.1).weights(y, fx), 1 / (0.1 * (y - fx).abs()))
    with pytest.raises(InputError, match="gain"):
        Poisson(0)
    assert repr(Poisson(0.02)) == "Poisson(gain=0.02)"
    assert repr(PoissonGaussian(0.02, 0.1)) == "PoissonGaussian(gain=0.02, sigma=0.1)"


def positive_values(seed, shape=(3, 40)):
    return torch.rand(shape, generator=as_generator(seed), dtype=torch.float64) + 0.05


@pytest.mark.parametrize("looks", [0.7, 1, 4, 50])
def test_gamma_is_that_of_scipy(looks):
    fx = positive_values(0)
    y = Gamma(looks).sample(fx, as_generator(1))
    expected = torch.from_numpy(scipy.stats.gamma.logpdf(y.numpy(), looks, scale=fx.numpy() / looks)).sum(1)
    torch.testing.assert_close(Gamma(looks).log_prob(y, fx), expected, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 2.0])
def test_rician_is_that_of_scipy(sigma):
    fx = positive_values(0)
    y = Rician(sigma).sample(fx, as_generator(1))
    expected = torch.from_numpy(scipy.stats.rice.logpdf(y.numpy(), fx.numpy() / sigma, scale=sigma)).sum(1)
    torch.testing.assert_close(Rician(sigma).log_prob(y, fx), expected, rtol=1e-9, atol=1e-7)


def test_gamma_and_rician_are_drawn_with_their_moments():
    fx = torch.full((1, 200_000), 0.4, dtype=torch.float64)
    y = Gamma(5).sample(fx, as_generator(0))
    assert torch.equal(y, Gamma(5).sample(fx, as_generator(0)))
    assert not torch.equal(y, Gamma(5).sample(fx, as_generator(1)))
    assert y.mean().item() == pytest.approx(0.4, rel=0.01)
    assert y.var().item() == pytest.approx(0.4**2 / 5, rel=0.02)
    assert Gamma(5).variance(y).item() == pytest.approx(0.4**2 / 5, rel=0.02)
    assert Gamma(5).weights(y, fx)[0, 0].item() == pytest.approx(5 / 0.4**2)
    y = Rician(0.2).sample(fx, as_generator(0))
    assert torch.equal(y, Rician(0.2).sample(fx, as_generator(0)))
    mean, variance = scipy.stats.rice.stats(2, scale=0.2)
    assert y.mean().item() == pytest.approx(mean, rel=0.005)
    assert y.var().item() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("noise", [Gamma(3), Rician(0.1)], ids=repr)
def test_gamma_and_rician_have_gradients_everywhere(noise):
    x = torch.tensor([[-0.1, 0.0005, 0.02, 0.3]], dtype=torch.float64, requires_grad=True)
    seen = torch.tensor([[0.05, 0.02, 0.1, 0.4]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: noise.log_prob(seen, v), x)
    # What is not observed is 0 in both, and must count for nothing.
    dark = torch.zeros(1, 3, requires_grad=True)
    value = noise.log_prob(torch.zeros(1, 3), dark)
    value.sum().backward()
    assert value.isfinite().all()
    assert (dark.grad == 0).all()
    bright = torch.full((1, 1), 50.0, requires_grad=True)
    noise.log_prob(torch.full((1, 1), 50.0), bright).sum().backward()
    assert bright.grad.abs().item() < 1


def test_the_parabola_of_rician_lies_above_it():
    noise, y = Rician(0.1), torch.full((1, 1), 0.15, dtype=torch.float64)
    at = torch.tensor([[0.05]], dtype=torch.float64, requires_grad=True)
    value = -noise.log_prob(y, at)
    (slope,) = torch.autograd.grad(value.sum(), at)
    for fx in torch.linspace(-0.5, 0.5, 101, dtype=torch.float64):
        step = fx - at.detach()
        above = value + slope * step + noise.weights(y, at) * step.square() / 2
        assert above.item() >= -noise.log_prob(y, fx.view(1, 1)).item() - 1e-9


@pytest.mark.parametrize(("model", "name"), [(Gamma, "looks"), (Rician, "sigma")])
def test_bad_looks_and_sigma_are_named(model, name):
    with pytest.raises(InputError, match=f"^{name} is -1.0; .*$"):
        model(-1)
    assert repr(model(0.5)) == f"{model.__name__}({name}=0.5)"
