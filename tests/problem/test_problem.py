"""The MAP objective: values with all constants, gradients, and what is refused."""

import math

import pytest
import torch

import aipo
from aipo import operators
from aipo.errors import InputError
from aipo.flows import GaussianFlow, RealNVP
from aipo.priors.prior import Prior

SHAPE = (3, 8, 8)
N = 192


@pytest.fixture
def flow():
    torch.manual_seed(0)
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[8, 8]).double().requires_grad_(False)
    flow.initialize(torch.rand(16, *SHAPE, dtype=torch.float64))
    for p in flow.parameters():
        p += 0.05 * torch.randn_like(p)
    return flow


@pytest.fixture
def x():
    return torch.rand(3, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def problem_for(flow, operator, sigma=0.1, x=None):
    noise = aipo.Gaussian(sigma)
    return aipo.MapProblem(flow, operator, noise, operator.measure(x, noise, seed=2))


def test_D_has_the_papers_constants(flow, x):
    problem = problem_for(flow, operators.Denoising(SHAPE), 0.1, x)
    residual = problem.y - x
    expected = N / 2 * math.log(2 * math.pi * 0.01) + residual.square().flatten(1).sum(1) / (2 * 0.01)
    torch.testing.assert_close(problem.D(x), expected)


def test_masked_entries_pay_the_constant_and_nothing_else(flow, x):
    """The paper's inpainting losses count m = n: masked entries have residual 0."""
    operator = operators.Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=0)
    problem = problem_for(flow, operator, 0.02, x)
    observed = operator.mask.bool().expand(3, *SHAPE)
    residual = torch.where(observed, problem.y - x, torch.zeros_like(x))
    expected = N / 2 * math.log(2 * math.pi * 0.02**2) + residual.square().flatten(1).sum(1) / (2 * 0.02**2)
    torch.testing.assert_close(problem.D(x), expected)
    # What a user leaves in the missing pixels of y must not matter.
    for filler in (0.7, math.nan):
        dirty = torch.where(observed, problem.y, torch.full_like(x, filler))
        torch.testing.assert_close(aipo.MapProblem(flow, operator, problem.noise, dirty).D(x), expected)


def test_P_is_the_likelihood_of_five_bit_data(flow, x):
    problem = problem_for(flow, operators.Denoising(SHAPE), x=x)
    torch.testing.assert_close(problem.P(x), -flow.log_prob(x) + N * math.log(32))
    assert Prior(flow, bits=8).offset == pytest.approx(N * math.log(256))


def test_bits_per_dim(flow, x):
    prior = Prior(flow)
    torch.testing.assert_close(prior.bits_per_dim(x), prior.P(x) / (N * math.log(2)))


@pytest.mark.parametrize("lam", [0.0, 0.7, torch.tensor([0.1, 1.0, 2.0], dtype=torch.float64)])
def test_gradient_against_autograd_and_finite_differences(flow, x, lam):
    problem = problem_for(flow, operators.SuperResolution(SHAPE, 2), x=x)
    weights = problem.lam_tensor(lam)
    evaluation = problem.evaluate(x)
    torch.testing.assert_close(evaluation.loss(weights), problem.loss(x, weights))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(problem.loss(leaf, weights).sum(), leaf)
    torch.testing.assert_close(evaluation.gradient(weights), expected)
    v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    h = 1e-6
    slope = (problem.loss(x + h * v, weights) - problem.loss(x - h * v, weights)) / (2 * h)
    torch.testing.assert_close((expected * v).flatten(1).sum(1), slope, rtol=1e-5, atol=1e-4)


def test_hessian_vector_product(flow, x):
    problem = problem_for(flow, operators.Denoising(SHAPE), x=x)
    lam = problem.lam_tensor(0.5)
    v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    h = 1e-6
    expected = (problem.evaluate(x + h * v).gradient(lam) - problem.evaluate(x - h * v).gradient(lam)) / (2 * h)
    torch.testing.assert_close(problem.hessian_vector(x, lam, v), expected, rtol=1e-4, atol=1e-2)


def test_chi2_is_about_one_at_the_truth(x):
    flow = GaussianFlow(SHAPE).double().requires_grad_(False)
    truth = x.repeat(20, 1, 1, 1)
    for operator in (operators.Denoising(SHAPE), operators.Inpainting.random_blocks(SHAPE, 0.25, 4, 0)):
        chi2 = problem_for(flow, operator, 0.05, truth).chi2(truth)
        assert abs(chi2.mean().item() - 1) < 0.05


def test_chi2_needs_gaussian_noise(flow, x):
    problem = aipo.MapProblem(flow, operators.Denoising(SHAPE), aipo.Laplace(0.1), x)
    with pytest.raises(InputError, match="Gaussian"):
        problem.chi2(x)


def test_fingerprint_sees_everything_that_matters(flow, x):
    def sensing(seed=0, sigma=0.1, scale=1.0):
        y = scale * torch.linspace(0, 1, 20, dtype=torch.float64).view(1, 20)
        operator = operators.CompressedSensing(SHAPE, m=20, seed=seed)
        return aipo.MapProblem(flow, operator, aipo.Gaussian(sigma), y).fingerprint()

    assert sensing() == sensing()
    assert len({sensing(), sensing(seed=1), sensing(sigma=0.2), sensing(scale=0.5)}) == 4


@pytest.mark.parametrize("lam", [-0.1, math.nan, math.inf, [0.1, -1.0, 0.2]])
def test_bad_lam(flow, x, lam):
    problem = problem_for(flow, operators.Denoising(SHAPE), x=x)
    with pytest.raises(InputError, match="lam"):
        problem.lam_tensor(lam)


def test_refusals(flow, x):
    denoise, noise = operators.Denoising(SHAPE), aipo.Gaussian(0.1)
    broken = x.clone()
    broken[0, 0, 0, 0] = math.nan
    cases = [
        (flow, denoise, broken, "NaN"),
        (flow, operators.Denoising((3, 16, 16)), torch.rand(1, 3, 16, 16, dtype=torch.float64), "prior"),
        (flow, denoise, x[:, :, :4], "shape"),
        (flow, denoise, x.float(), "float32"),
    ]
    for prior, operator, y, match in cases:
        with pytest.raises(InputError, match=match) as caught:
            aipo.MapProblem(prior, operator, noise, y)
        assert "\n" not in str(caught.value)
