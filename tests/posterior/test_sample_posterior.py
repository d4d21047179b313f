"""Samples of the posterior: mean and covariance in closed form where everything is Gaussian, and what all promise."""

import math

import pytest
import scipy.stats
import torch

import aipo
from aipo import operators
from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.noise import as_generator
from aipo.posterior import sample_posterior
from aipo.posterior.posterior import Posterior, student_quantile
from aipo.priors import NoisePrior
from small_problem import build_noise_flow, smooth_images

VARIANCE, SIGMA, SHAPE = 0.04, 0.1, (3, 4, 4)
OPERATORS = {
    "denoising": operators.Denoising(SHAPE),
    "inpainting": operators.Inpainting.random_blocks(SHAPE, 0.25, 2, seed=0),
    "blur": operators.Blur.gaussian(SHAPE, 0.7),
    "super-resolution": operators.SuperResolution(SHAPE, 2),
    "sensing": operators.CompressedSensing(SHAPE, 20),
}


@pytest.fixture(scope="module")
def gaussian():
    """Before training a noise flow is a Gaussian: x ~ N(0.5, VARIANCE) in every value."""
    flow = NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8).requires_grad_(False)
    flow.variances.fill_(VARIANCE)
    return NoisePrior(flow)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_mean_and_covariance_in_closed_form(gaussian, operator):
    size, n = math.prod(SHAPE), 3000
    x = 0.5 + math.sqrt(VARIANCE) * torch.randn(1, *SHAPE, generator=as_generator(1))
    y = operator.measure(x, aipo.Gaussian(SIGMA), seed=2)
    problem = aipo.MapProblem(gaussian, operator, aipo.Gaussian(SIGMA), y)
    post = sample_posterior(problem, n, evals=8, seed=3)
    A = operator.A(torch.eye(size).view(size, *SHAPE)).flatten(1).T
    covariance = torch.linalg.inv(A.T @ A / SIGMA**2 + torch.eye(size) / VARIANCE)
    mean = 0.5 + covariance @ A.T @ (problem.y[0].flatten() - A @ torch.full((size,), 0.5)) / SIGMA**2
    spread = covariance.diagonal().sqrt()
    samples = post.samples[0].flatten(1)
    assert post.samples.shape == (1, n, *SHAPE)
    assert ((samples.mean(0) - mean).abs() / spread).max() < 5 / math.sqrt(n)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (samples - mean).T, upper=False)
    found = white @ white.T / n
    # The largest eigenvalue of such a matrix is about (1 + sqrt(size / n))^2 if the covariance is right.
    assert torch.linalg.eigvalsh(found).max() < (1 + math.sqrt(size / n)) ** 2 * 1.1
    assert torch.linalg.eigvalsh(found).min() > (1 - math.sqrt(size / n)) ** 2 * 0.9
    low, high = post.interval(0.9)
    assert ((samples > low[0].flatten()) & (samples < high[0].flatten())).float().mean() == pytest.approx(0.9, abs=0.01)
    torch.testing.assert_close(post.std[0].flatten(), spread, rtol=0.1, atol=0)


def test_seeds_and_neighbors():
    prior = NoisePrior(build_noise_flow(levels=2, dtype=torch.float32, scale=0.01))
    operator, noise = operators.Inpainting.random_blocks((3, 8, 8), 0.25, 2, seed=0), aipo.Gaussian(0.05)
    problem = aipo.MapProblem(prior, operator, noise, operator.measure(smooth_images(2, 8), noise, seed=1))
    one, same, other = (sample_posterior(problem, 3, evals=4, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.samples, same.samples)
    assert not torch.equal(one.samples, other.samples)
    assert one.evals.tolist() == [12, 12]
    alone = sample_posterior(problem.take(torch.tensor([0])), 3, evals=4, seed=0)
    torch.testing.assert_close(alone.samples[0], one.samples[0], rtol=0, atol=1e-4)
    near = sample_posterior(problem, 2, evals=4, x0=aipo.initial.gaussian(problem))
    assert near.status == ["done", "done"]


def test_what_it_cannot_do(gaussian):
    operator = OPERATORS["denoising"]
    y = torch.rand(1, *SHAPE)
    with pytest.raises(InputError, match="Gaussian noise"):
        sample_posterior(aipo.MapProblem(gaussian, operator, aipo.Laplace(0.1), y))
    with pytest.raises(InputError, match="no noise levels"):
        sample_posterior(aipo.MapProblem(aipo.flows.GaussianFlow(SHAPE), operator, aipo.Gaussian(0.1), y))
    with pytest.raises(InputError, match="at least 1"):
        sample_posterior(aipo.MapProblem(gaussian, operator, aipo.Gaussian(0.1), y), 0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 15, 40])
@pytest.mark.parametrize("p", [0.75, 0.95, 0.995])
def test_student_quantiles_are_those_of_scipy(freedom, p):
    assert student_quantile(p, freedom) == pytest.approx(scipy.stats.t.ppf(p, freedom), rel=1e-4)


def test_intervals_of_few_samples_hold_what_they_promise():
    """Truth and samples of the same law: the share of truths inside is the coverage, however few the samples."""
    draws = torch.randn(1, 5, 1, 100, 400, generator=as_generator(0))
    truth = torch.randn(1, 1, 100, 400, generator=as_generator(1))
    post = Posterior(draws, torch.ones(1), ["done"])
    low, high = post.interval(0.9)
    assert ((truth > low) & (truth < high)).float().mean().item() == pytest.approx(0.9, abs=0.01)
    torch.testing.assert_close(post.quantile(0.5), draws.median(dim=1).values)
    for call in (
        lambda: post.interval(1.0),
        lambda: post.quantile(2),
        lambda: Posterior(draws[:, :1], 0, []).interval(),
    ):
        with pytest.raises(InputError):
            call()
