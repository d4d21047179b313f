"""What the measurements say near an image: against brute-force minimization, for every noise and kind of operator."""

import pytest
import torch

import aipo
from aipo import operators
from aipo.flows import GaussianFlow
from aipo.noise import AdditiveNoise
from aipo.problem.proximal import proximal

SHAPE = (3, 6, 6)
GENERATOR = torch.Generator().manual_seed(0)
X = 0.2 + 0.6 * torch.rand(2, *SHAPE, generator=GENERATOR, dtype=torch.float64)
Z = X + 0.1 * torch.randn(X.shape, generator=GENERATOR, dtype=torch.float64)


class StudentT(AdditiveNoise):
    def log_density(self, e):
        return torch.distributions.StudentT(3, 0.0, 0.1).log_prob(e).flatten(1).sum(1)

    def variance(self, y):
        return y.new_full((len(y),), 0.02)


NOISES = [
    aipo.Gaussian(torch.tensor([0.05, 0.2])),
    aipo.Laplace(0.05),
    aipo.Poisson(0.01),
    aipo.PoissonGaussian(0.01, 0.03),
    StudentT(),
]
OPERATORS = [
    operators.Denoising(SHAPE),
    operators.Inpainting.random_blocks(SHAPE, 0.25, 2, seed=1),
    operators.Blur.gaussian(SHAPE, 0.8),
    operators.Saturation(SHAPE, gain=1.5),
]


def make_problem(operator, noise):
    drawn = aipo.Gaussian(0.05) if isinstance(noise, StudentT) else noise
    y = operator.measure(X, drawn, seed=2)
    return aipo.MapProblem(GaussianFlow(SHAPE).double().requires_grad_(False), operator, noise, y)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_nothing_lies_lower(operator, noise):
    problem, weight = make_problem(operator, noise), torch.tensor([30.0, 300.0], dtype=torch.float64)

    def objective(x):
        return problem.D(x) + weight * (x - Z).flatten(1).square().sum(1) / 2

    found = proximal(problem, Z, weight)
    x = found.clone().requires_grad_()
    best = objective(found)
    search = torch.optim.LBFGS([x], max_iter=200, history_size=50, line_search_fn="strong_wolfe")

    def closure():
        search.zero_grad()
        loss = objective(x).sum()
        loss.backward()
        return loss

    search.step(closure)
    gained = objective(Z) - best
    # What an exact search still finds is nothing beside what was gained.
    assert (best - objective(x.detach()) < 0.02 * gained + 1e-6).all()


def test_an_image_alone_gives_what_it_gives_in_a_batch():
    problem, weight = make_problem(OPERATORS[1], aipo.Poisson(0.01)), torch.tensor([30.0, 300.0], dtype=torch.float64)
    together = proximal(problem, Z, weight)
    for i in range(2):
        rows = torch.tensor([i])
        alone = proximal(problem.take(rows), Z[rows], weight[rows])
        torch.testing.assert_close(alone, together[rows], rtol=0, atol=1e-9)
