"""Continuation in the noise level, for every operator and noise; at one level a noise prior is a prior like any."""

import math

import pytest
import torch

import aipo
from aipo import initial, operators
from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.noise import as_generator
from aipo.priors import NoisePrior
from aipo.solvers import LBFGS, Amortized, Anneal, FixedLambda
from small_problem import build_noise_flow, smooth_images

VARIANCE, SHAPE = 0.04, (3, 8, 12)


@pytest.fixture
def gaussian():
    """Before training a noise flow is a Gaussian: x ~ N(0.5, VARIANCE) in every value."""
    flow = NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8).requires_grad_(False)
    flow.variances.fill_(VARIANCE)
    return NoisePrior(flow)


def measured(prior, operator, noise=aipo.Gaussian(0.1), batch=2):  # noqa: B008
    x = 0.5 + math.sqrt(VARIANCE) * torch.randn(batch, *operator.image_shape, generator=as_generator(0))
    return aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))


def test_denoising_is_the_posterior_mean(gaussian):
    """In one evaluation, each image with its own sigma, the estimate that least squares would make."""
    sigma = torch.tensor([0.05, 0.2])
    problem = measured(gaussian, operators.Denoising(SHAPE), aipo.Gaussian(sigma))
    result = aipo.anneal(problem)
    share = (VARIANCE / (VARIANCE + sigma.square())).view(-1, 1, 1, 1)
    torch.testing.assert_close(result.x, 0.5 + share * (problem.y - 0.5), rtol=0, atol=1e-5)
    torch.testing.assert_close(result.x, gaussian.denoise(problem.y, sigma))
    assert result.evals.tolist() == [1, 1]
    assert result.status == ["done", "done"]


@pytest.mark.parametrize("lam", [0.3, 1.0])
def test_at_rest_it_is_the_minimizer(gaussian, lam):
    """If s does not fall, v comes to rest where the gradient of D + lam P_s is zero."""
    operator, s = operators.Blur.gaussian(SHAPE, 0.8), 0.1
    problem = measured(gaussian, operator)
    solver = Anneal(evals=200, first=s, lam=lam)  # the last level is that of the noise, s too
    *_, last = solver.states(problem)
    x = last.x.requires_grad_()
    (slope,) = torch.autograd.grad((problem.D(x) - lam * gaussian.log_prob(x, s)).sum(), x)
    assert slope.abs().max() < 1e-2 * (lam / VARIANCE)


OPERATORS = {
    "inpainting": operators.Inpainting.random_blocks(SHAPE, 0.25, 4, seed=0),
    "demosaicing": operators.Inpainting.bayer(SHAPE),
    "super-resolution": operators.SuperResolution(SHAPE, 2),
    "blur": operators.Blur.gaussian(SHAPE, 1.0),
    "motion": operators.Blur.motion(SHAPE, 5, 30),
    "grayscale": operators.Grayscale(SHAPE),
    "sensing": operators.CompressedSensing(SHAPE, 100),
    "fourier": operators.FourierSubsampling.random(SHAPE, 0.5),
    "saturation": operators.Saturation(SHAPE, 1.2),
}
NOISES = [aipo.Gaussian(0.03), aipo.Laplace(0.03), aipo.Poisson(0.003), aipo.PoissonGaussian(0.002, 0.02)]


@pytest.fixture(scope="module")
def smooth():
    """A prior that knows that neighbors agree."""
    flow = build_noise_flow(levels=2, dtype=torch.float32, scale=0.01)
    return NoisePrior(flow)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_every_operator_and_noise(smooth, operator, noise):
    if isinstance(noise, (aipo.Poisson, aipo.PoissonGaussian)) and operator in (
        OPERATORS["sensing"],
        OPERATORS["fourier"],
    ):
        pytest.skip("such measurements are negative, which photons are not")
    x = smooth_images(2, 16)[..., : SHAPE[1], : SHAPE[2]]
    problem = aipo.MapProblem(smooth, operator, noise, operator.measure(x, noise, seed=1))
    result, quick = aipo.anneal(problem), aipo.anneal(problem, quick=True)
    assert result.status == quick.status == ["done", "done"]
    assert (result.evals.tolist(), quick.evals.tolist()) == ([20, 20], [8, 8])
    gray = torch.full_like(x, 0.5)
    for found in (result, quick):
        assert (
            aipo.metrics.psnr(found.x, x) > aipo.metrics.psnr(gray, x) + 1
        ).all()  # colors are chance, so little is known of gray ones
        torch.testing.assert_close(found.loss, found.D + found.lam * found.P)


def test_levels_fall_to_the_noise(smooth):
    sigma = torch.tensor([0.01, 0.05])
    problem = measured(smooth, OPERATORS["inpainting"], aipo.Gaussian(sigma))
    levels = Anneal(6, first=0.2).solve(problem).trajectory["s"]
    torch.testing.assert_close(levels[:, 0], torch.full((2,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(levels[:, -1], sigma.double())
    assert (levels.diff(dim=1) < 0).all()
    # Noise beyond what the prior knows is treated at the nearest level that it does know.
    low, high = smooth.levels
    for value, nearest in ((1e-4, low), (0.9, high)):
        problem = measured(smooth, OPERATORS["inpainting"], aipo.Gaussian(value))
        assert Anneal(6).solve(problem).trajectory["s"][0, -1].item() == pytest.approx(nearest)


def test_gray_images_and_odd_sizes(smooth):
    shape = (1, 7, 9)
    operator, noise = operators.Inpainting(torch.rand(1, 7, 9, generator=as_generator(0)) < 0.7), aipo.Gaussian(0.02)
    x = smooth_images(2, 9)[:, :1, :7]
    result = aipo.anneal(aipo.MapProblem(smooth, operator, noise, operator.measure(x, noise, seed=1)))
    assert result.x.shape == (2, *shape)
    assert (aipo.metrics.psnr(result.x, x) > 20).all()


def test_what_it_cannot_do(gaussian):
    problem = aipo.MapProblem(
        aipo.flows.GaussianFlow(SHAPE), operators.Denoising(SHAPE), aipo.Gaussian(0.1), torch.rand(1, *SHAPE)
    )
    with pytest.raises(InputError, match="no noise levels"):
        aipo.anneal(problem)
    for bad in ({"evals": 0}, {"first": 0.0}, {"lam": -1.0}, {"lam": math.nan}):
        with pytest.raises(InputError):
            Anneal(**bad)


S, SIGMA, LAM = 0.1, 0.2, 0.7
SHAPES = [(3, 8, 12), (1, 4, 8)]


def denoising(prior, shape, batch=2):
    y = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    return aipo.MapProblem(prior, operators.Denoising(shape), aipo.Gaussian(SIGMA), y)


def expected(y, shape, lam=LAM, s=S):
    """The solution in closed form. Of a gray image the brightness, sqrt(3) times its values, has that variance."""
    spread = VARIANCE / (3 if shape[0] == 1 else 1) + s**2
    return (y / SIGMA**2 + lam * 0.5 / spread) / (1 / SIGMA**2 + lam / spread)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("solver", [LBFGS(20), FixedLambda.decayed(150), Amortized.quick()], ids=repr)
def test_solvers_find_the_solution(gaussian, shape, solver):
    problem = denoising(gaussian.at(S), shape)
    result = solver.solve(problem, LAM)
    assert result.status == ["done", "done"]
    torch.testing.assert_close(result.x, expected(problem.y, shape), rtol=0, atol=2e-3)
    torch.testing.assert_close(result.P, problem.prior.P(result.x), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_surrogate_of_a_gaussian_is_that_gaussian(gaussian, shape):
    problem = denoising(gaussian.at(S), shape)
    spread = VARIANCE / (3 if shape[0] == 1 else 1) + S**2
    curvature = problem.prior.surrogate.curvature.values
    torch.testing.assert_close(curvature, torch.full(shape, 1 / spread), rtol=0.03, atol=0)
    # The mean of images is measured, too; with a few dozen samples it is off by their spread.
    torch.testing.assert_close(initial.gaussian(problem), expected(problem.y, shape, lam=1.0), rtol=0, atol=0.05)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_path_and_a_choice(gaussian, shape):
    problem = denoising(gaussian.at(S), shape)
    path = aipo.follow_path(problem, [0.3, LAM])
    torch.testing.assert_close(path.at(LAM).x, expected(problem.y, shape), rtol=0, atol=2e-3)
    choice = aipo.choose_lambda(problem)
    assert choice.result.status == ["done", "done"]
    for i, lam in enumerate(choice.lam.tolist()):
        torch.testing.assert_close(choice.x[i], expected(problem.y, shape, lam)[i], rtol=0, atol=5e-3)


def test_starts_know_its_size():
    shape = (3, 9, 6)
    prior = NoisePrior(build_noise_flow(levels=2, dtype=torch.float32, scale=0.03))
    operator = operators.Inpainting(torch.tensor([1.0, 0.0]).repeat(9, 3)[None], shape)
    x = smooth_images(2, 9)[..., :6]
    noise = aipo.Gaussian(0.02)
    problem = aipo.MapProblem(prior.at(0.05), operator, noise, operator.measure(x, noise, seed=0))
    for start in (initial.zero(problem), initial.random(problem), initial.gaussian(problem)):
        assert start.shape == (2, *shape)
    first = initial.zero(problem)[:1]
    torch.testing.assert_close(first, prior.sample((1, *shape), 0.05, temperature=0.0))
    found = initial.mle(problem, iterations=30)
    torch.testing.assert_close(operator.A(found.x), problem.y.clamp(0, 1), rtol=0, atol=1e-4)
    assert (found.P < prior.at(0.05).P(operator.project(initial.zero(problem), problem.y))).all()


def test_without_a_level_it_is_the_smallest(gaussian):
    problem = denoising(gaussian, (3, 8, 12))
    assert problem.prior.s == gaussian.levels[0]
    x = torch.rand(1, 3, 8, 12)
    torch.testing.assert_close(problem.P(x), -gaussian.log_prob(x, gaussian.levels[0]))


def test_checkpoints_tell_levels_apart(gaussian, tmp_path):
    file = tmp_path / "solve.safetensors"
    LBFGS(5).solve(denoising(gaussian.at(S), (3, 8, 12)), LAM, checkpoint=file)
    with pytest.raises(InputError, match="another problem"):
        LBFGS(5).solve(denoising(gaussian.at(0.11), (3, 8, 12)), LAM, checkpoint=file)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: denoising(p.at(S), (2, 8, 8)), "color and gray images"),
        (lambda p: p.at(S).sample(1), "any size; say which"),
        (lambda p: p.at(S).surrogate, "any size; say which"),
    ],
)
def test_what_cannot_be_is_refused(gaussian, call, message):
    with pytest.raises(InputError, match=message):
        call(gaussian)
