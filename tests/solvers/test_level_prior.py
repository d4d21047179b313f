"""A noise prior at one level goes wherever a prior goes, for color and gray images of any size."""

import pytest
import torch

import aipo
from aipo import initial, operators
from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.priors import NoisePrior
from aipo.solvers import LBFGS, Amortized, FixedLambda
from small_noise_flow import build_noise_flow, smooth_images

VARIANCE, S, SIGMA, LAM = 0.04, 0.1, 0.2, 0.7
SHAPES = [(3, 8, 12), (1, 4, 8)]


@pytest.fixture
def gaussian():
    """Before training a noise flow is a Gaussian: x ~ N(0.5, VARIANCE) in every value."""
    flow = NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8).requires_grad_(False)
    flow.variances.fill_(VARIANCE)
    return NoisePrior(flow)


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
