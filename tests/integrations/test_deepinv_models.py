"""Priors, denoisers and whole methods across the border, each with one reconstruction and its PSNR."""

import math

import pytest
import torch

import aipo
from aipo import operators
from aipo.errors import InputError
from aipo.images.metrics import psnr

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")

from deepinv.models.GSPnP import GSPnP  # noqa: E402
from deepinv.optim import ADMM, DPIR, GD, HQS, L2, PGD  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from aipo.integrations.deepinv import (  # noqa: E402
    AnnealReconstructor,
    DenoiserPrior,
    ExplicitPrior,
    FlowDenoiser,
    FlowPrior,
    LambdaReconstructor,
    as_physics,
    problem_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def x():
    return aipo.samples.load("astronaut")[None]


@pytest.fixture(scope="module")
def gaussian(x):
    """A noise prior that is a Gaussian: a flow that was not trained, with the spectrum of a picture."""
    flow = aipo.flows.NoiseFlow(couplings=[2, 2, 2], hidden=[8, 8, 8], blocks=[1, 1, 1])
    flow.initialize(x)
    return aipo.NoisePrior(flow.requires_grad_(False))


@pytest.fixture(scope="module")
def faces():
    return FlowPrior("celeba64-realnvp-small")


@pytest.fixture(scope="module")
def face(faces):
    return faces.prior.sample(1, temperature=0.7, seed=0)


@pytest.fixture(scope="module")
def holes():
    torch.manual_seed(0)
    return as_physics(operators.Inpainting.random_blocks(SHAPE, 0.25, 4, seed=0), aipo.Gaussian(0.05))


@pytest.fixture(scope="module")
def y(holes, face):
    torch.manual_seed(0)
    return holes(face)


def blurred(x):
    physics = as_physics(operators.Blur.gaussian(SHAPE, 1.0), aipo.Gaussian(0.03))
    torch.manual_seed(0)
    return physics, physics(x)


def test_a_flow_is_a_prior_with_value_and_gradient(faces, face):
    assert isinstance(faces, deepinv.optim.Prior)
    z = face.clone().requires_grad_()
    value = faces.fn(z)
    (slope,) = torch.autograd.grad(value.sum(), z)
    torch.testing.assert_close(value.detach(), faces.prior.P(face))
    torch.testing.assert_close(faces.grad(face), slope, rtol=1e-3, atol=1e-3 * slope.abs().max().item())
    assert faces.grad(z).requires_grad


def test_the_prox_of_a_gaussian_is_its_closed_form():
    prior = FlowPrior(aipo.flows.GaussianFlow((3, 8, 8)))  # N(0.5, 0.25^2) in each pixel
    x, gamma = torch.rand(2, 3, 8, 8), torch.tensor([0.01, 0.2])
    weight = (gamma / 0.25**2).view(-1, 1, 1, 1)
    torch.testing.assert_close(prior.prox(x, gamma=gamma), (x + weight * 0.5) / (1 + weight), rtol=0, atol=2e-3)


# Steps that each of them can take here, and the PSNR that it reached (start: 28 dB).
OPTIMIZERS = [
    (GD, {"stepsize": 1e-4, "max_iter": 60}),
    (PGD, {"stepsize": 2.5e-3, "max_iter": 8}),
    (HQS, {"stepsize": 1e-3, "max_iter": 10}),
    (ADMM, {"stepsize": 1e-3, "max_iter": 15}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_flow_in_their_optimizers(faces, face, holes, y, optimizer, options):
    data = L2(0.05)
    model = optimizer(data_fidelity=data, prior=faces, lambda_reg=0.5, custom_init=faces.custom_init, **options)
    found = model(y, holes)
    ours = aipo.follow_path(problem_of(y, holes, faces.prior), [0.5], evals=120).at(0.5)

    def loss(v):
        return (data(v, y, holes) + 0.5 * faces.fn(v)).item()

    # Down from the start, to not far above the minimum; and nowhere below it.
    start, least = loss(faces.start(y, holes)), loss(ours.x)
    assert least - 1 < loss(found) < least + 0.1 * (start - least)
    assert psnr(found, face).item() > 31.5


def test_a_flow_in_their_langevin_sampler(faces, face, holes, y):
    ula = deepinv.sampling.ULA(faces, L2(0.05), step_size=2e-5, max_iter=200, thinning=5, burnin_ratio=0.3)
    mean, variance = ula(y, holes, seed=1, x_init=faces.start(y, holes))
    assert psnr(mean, face).item() > 29
    missing = holes.operator.mask == 0
    assert variance[0][missing].mean() > variance[0][~missing].mean()


def test_a_noise_prior_is_a_denoiser(gaussian, x):
    denoiser = FlowDenoiser(gaussian)
    assert isinstance(denoiser, deepinv.models.Denoiser)
    noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    estimate = denoiser(noisy, 0.1)
    torch.testing.assert_close(estimate, gaussian.denoise(noisy, 0.1))
    for sigma in (torch.tensor(0.1), torch.tensor([0.1]), torch.full((1, 1, 1, 1), 0.1)):
        torch.testing.assert_close(denoiser(noisy, sigma), estimate)
    assert psnr(estimate, x).item() > psnr(noisy, x).item() + 6
    pair = denoiser(torch.cat([noisy, noisy]), torch.tensor([0.1, 0.02]))
    torch.testing.assert_close(pair[:1], estimate)
    torch.testing.assert_close(pair[1:], gaussian.denoise(noisy, 0.02))


def test_a_denoiser_below_and_above_its_levels(gaussian, x):
    denoiser, (low, high) = FlowDenoiser(gaussian), gaussian.levels
    assert torch.equal(denoiser(x, 0.0), x)
    torch.testing.assert_close(denoiser(x, low), gaussian.denoise(x, low))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    above = denoiser(x + 3 * high * noise, 3 * high)
    assert psnr(above, x).item() > psnr(torch.full_like(x, 0.5), x).item() + 2
    assert denoiser(x + 1000 * noise, 1000.0).std() < 0.2  # nothing is known: about the mean


def test_a_denoiser_is_differentiable(gaussian, x):
    denoiser, z = FlowDenoiser(gaussian), x.clone().requires_grad_()
    estimate = denoiser(z, 0.1)
    torch.testing.assert_close(estimate.detach(), denoiser(x, 0.1), rtol=0, atol=1e-3)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    (product,) = torch.autograd.grad((estimate * v).sum(), z)
    step = 1e-2 * v
    change = (denoiser(x + step, 0.1) - denoiser(x - step, 0.1)) / 2
    # The Jacobian of Tweedie's estimate is symmetric.
    assert ((product * step).sum() - (change * v).sum()).abs() < 0.02 * (change * v).sum().abs()


def test_a_denoiser_in_dpir_and_diffpir(gaussian, x):
    denoiser = FlowDenoiser(gaussian)
    physics, y = blurred(x)
    assert psnr(DPIR(0.03, denoiser)(y, physics), x).item() > psnr(y, x).item() + 0.5
    noisy = as_physics(operators.Denoising(SHAPE), aipo.Gaussian(0.1))
    torch.manual_seed(0)
    y = noisy(x)
    assert psnr(DPIR(0.1, denoiser)(y, noisy), x).item() > 27
    sampled = deepinv.sampling.DiffPIR(denoiser, L2(), sigma=0.1, max_iter=30)(y, noisy, seed=1)
    assert psnr(sampled, x).item() > psnr(y, x).item() + 3


def test_anneal_and_choose_lambda_are_models(gaussian, faces, face, x, holes, y):
    torch.manual_seed(0)
    annealed = AnnealReconstructor(gaussian)(holes(x), holes)
    assert psnr(annealed, x).item() > 24.5
    chosen = LambdaReconstructor(faces.prior)(y, holes)
    assert psnr(chosen, face).item() > 32
    direct = aipo.choose_lambda(problem_of(y, holes, faces.prior), trust_sigma=True)
    torch.testing.assert_close(chosen, direct.x)


PHYSICS = {
    "inpainting": lambda p: p.Inpainting(mask=0.7, img_size=SHAPE, pixelwise=True),
    "blur": lambda p: p.BlurFFT(filter=p.blur.gaussian_blur(sigma=(1.0, 1.0)), img_size=SHAPE),
    "downsampling": lambda p: p.Downsampling(img_size=SHAPE, factor=2, filter="gaussian"),
    "demosaicing": lambda p: p.Demosaicing(img_size=SHAPE),
    "sensing": lambda p: p.CompressedSensing(m=1500, img_size=SHAPE),
    "stacked": lambda p: p.stack(
        p.Demosaicing(img_size=SHAPE), p.BlurFFT(filter=torch.ones(1, 1, 3, 3) / 9, img_size=SHAPE)
    ),
}
# About half a dB below what was reached with this prior, which is a mere Gaussian.
REACHED = {"inpainting": 27, "blur": 22.5, "downsampling": 21.2, "demosaicing": 24, "sensing": 15, "stacked": 24}


@pytest.mark.parametrize("name", PHYSICS)
def test_their_physics_annealed(gaussian, x, name):
    torch.manual_seed(0)
    physics = PHYSICS[name](deepinv.physics)
    physics.set_noise_model(deepinv.physics.GaussianNoise(0.03))
    if name == "stacked":
        physics.physics_list[0].noise_model = physics.physics_list[1].noise_model = deepinv.physics.GaussianNoise(0.03)
    restored = AnnealReconstructor(gaussian, noise=aipo.Gaussian(0.03))(physics(x), physics)
    assert psnr(restored, x).item() > REACHED[name]


@pytest.mark.parametrize("name", ["tomography", "mri"])
def test_their_scanners_annealed(gaussian, x, name):
    """Gray images; the MRI physics takes them as complex ones."""
    gray = x.mean(1, keepdim=True)
    torch.manual_seed(0)
    if name == "mri":
        mask = (torch.rand(1, 1, 64, 64) < 0.4).float()
        mask[..., 28:36, 28:36] = 1
        physics = deepinv.physics.MRI(mask=mask, img_size=(2, 64, 64))
        given = torch.cat([gray, torch.zeros_like(gray)], 1)
    else:
        physics, given = deepinv.physics.Tomography(angles=60, img_width=64, normalize=True), gray
    physics.set_noise_model(deepinv.physics.GaussianNoise(0.02))
    restored = AnnealReconstructor(gaussian)(physics(given), physics)
    assert restored.shape == given.shape
    assert psnr(restored[:, :1], gray).item() > 21.8
    assert psnr(physics.A_dagger(physics(given))[:, :1], gray).item() < psnr(restored[:, :1], gray).item() - 1


def test_their_priors_in_follow_path(x):
    physics, y = blurred(x)
    tv = ExplicitPrior(deepinv.optim.prior.SmoothedTVPrior(eps=0.02), scale=10)
    result = aipo.follow_path(problem_of(y, physics, tv), [0.3, 1.0], evals=60).at(1.0)
    assert psnr(result.x, x).item() > psnr(y, x).item() + 2.5
    assert result.status == ["done"]


def test_a_gradient_step_denoiser_in_follow_path(x):
    """Not trained: a denoiser that is a blur, whose gradient step is a quadratic with a known minimum."""

    class Smooth(torch.nn.Module):
        def forward(self, x, sigma):
            return (x.roll(1, -1) + 2 * x + x.roll(-1, -1)) / 4

    prior = ExplicitPrior(GSPnP(Smooth()), level=0.05, scale=50.0)
    problem = aipo.MapProblem(prior, operators.Denoising(SHAPE), aipo.Gaussian(0.1), x)
    found = aipo.follow_path(problem, [1.0], evals=150).at(1.0).x
    angle = 2 * math.pi * torch.fft.fftfreq(64)
    share = 1 / (1 + 0.01 * 50 * ((1 - angle.cos()) / 2).square())
    torch.testing.assert_close(found, torch.fft.ifft(torch.fft.fft(x) * share).real, rtol=0, atol=5e-3)


def test_patchnr_in_follow_path():
    torch.manual_seed(0)
    patches = deepinv.optim.prior.PatchNR(patch_size=3, channels=1, num_layers=2, sub_net_size=16)
    prior = ExplicitPrior(deepinv.optim.PatchPrior(lambda p: patches.fn(p), patch_size=3), scale=100.0)
    x = aipo.samples.load("astronaut")[None].mean(1, keepdim=True)[..., :32, :32]
    problem = aipo.MapProblem(prior, operators.Denoising((1, 32, 32)), aipo.Gaussian(0.1), x)
    result = aipo.follow_path(problem, [0.5], evals=40).at(0.5)
    assert result.loss.item() < problem.loss(x, 0.5).item()
    gradient = problem.evaluate(result.x).gradient(torch.tensor([0.5]))
    assert gradient.norm() < 0.05 * problem.evaluate(x).gradient(torch.tensor([0.5])).norm()


def test_their_denoisers_in_anneal(x):
    physics, y = blurred(x)

    class Shrunk(deepinv.models.Denoiser):
        def forward(self, z, sigma, **kwargs):
            return deepinv.models.TVDenoiser(n_it_max=50)(z, sigma.view(-1, 1, 1, 1))  # it starts where it was before

    problem = problem_of(y, physics, DenoiserPrior(Shrunk()))
    result = aipo.anneal(problem)
    assert psnr(result.x, x).item() > psnr(y, x).item() + 1.5
    assert result.status == ["done"]
    assert result.P.isnan().all()
    torch.testing.assert_close(AnnealReconstructor(DenoiserPrior(Shrunk()))(y, physics), result.x)


def test_complex_measurements_have_the_noise_that_is_drawn():
    torch.manual_seed(0)
    physics = deepinv.physics.CompressedSensing(m=60, img_size=(1, 8, 8), dtype=torch.cfloat)
    physics.set_noise_model(deepinv.physics.GaussianNoise(0.1))
    image = torch.rand(50, 1, 8, 8)
    y = physics(image.to(torch.cfloat))
    problem = problem_of(y, physics, aipo.flows.GaussianFlow((1, 8, 8)))
    assert problem.y.shape == (50, 60, 2)
    assert problem.chi2(image).mean().item() == pytest.approx(1, abs=0.05)


def test_a_physics_with_a_mask_for_each_image(gaussian, x):
    both = torch.cat([x, x.flip(-1)])
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(2, *SHAPE, generator=generator) < 0.6).float()
    sigma = torch.tensor([0.02, 0.1])

    def physics(mask, sigma):
        return deepinv.physics.Inpainting(SHAPE, mask=mask, noise_model=deepinv.physics.GaussianNoise(sigma))

    torch.manual_seed(0)
    y = physics(masks, sigma)(both)
    model = AnnealReconstructor(gaussian)
    together = model(y, physics(masks, sigma))
    alone = [model(y[i : i + 1], physics(masks[i : i + 1], sigma[i : i + 1])) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_models_in_deepinv_test(gaussian, x):
    class Pictures(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return aipo.samples.load(["astronaut", "cat"][i])

    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(0.1))
    for model in (AnnealReconstructor(gaussian), deepinv.models.ArtifactRemoval(FlowDenoiser(gaussian))):
        torch.manual_seed(0)
        scores = deepinv.test(
            model, DataLoader(Pictures()), physics, metrics=[deepinv.loss.metric.PSNR()], online_measurements=True
        )
        assert scores["PSNR"] > 26


def test_what_does_not_fit_is_named(faces, x, holes):
    with pytest.raises(InputError, match=r"^celeba64-realnvp-small knows no noise levels, .*$"):
        FlowDenoiser("celeba64-realnvp-small")
    with pytest.raises(InputError, match=r"^levels must be two rising numbers .*$"):
        DenoiserPrior(deepinv.models.TVDenoiser(), levels=(0.2, 0.1))
    with pytest.raises(InputError, match=r"^the physics has no noise; .*$"):
        AnnealReconstructor(faces.prior)(x, deepinv.physics.Denoising(deepinv.physics.ZeroNoise()))
