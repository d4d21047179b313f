"""A prior with nothing but P and gradient, against the same prior with all that a flow has."""

import pytest
import torch

import aipo
from aipo.errors import InputError
from aipo.priors.any_prior import AnyPrior, natural_images
from aipo.transforms.spectrum import synthesize
from linear_gaussian import INJECTIVE, SHAPE, known_problem


class Quadratic:
    """The Gaussian prior of a known problem, with the two methods that a prior must have."""

    def __init__(self, flow):
        self.mean, self.precision = flow.mean.flatten(), flow.precision()

    def P(self, x):
        r = x.flatten(1) - self.mean
        return (r @ self.precision * r).sum(1) / 2

    def gradient(self, x):
        return ((x.flatten(1) - self.mean) @ self.precision).view(x.shape)


def bare(known):
    problem = known.problem
    return aipo.MapProblem(Quadratic(known.flow), problem.operator, problem.noise, problem.y)


@pytest.mark.parametrize("name", INJECTIVE)
def test_a_path_ends_at_the_closed_form(name):
    known = known_problem(name)
    path = aipo.follow_path(bare(known), [0.5, 1.0, 2.0], evals=120)
    for lam in (0.5, 1.0, 2.0):
        torch.testing.assert_close(path.at(lam).x, known.x(lam), rtol=0, atol=0.01)
        assert path.at(lam).status == ["done"] * 3


@pytest.mark.parametrize("solver", [aipo.Amortized(), aipo.LBFGS(), aipo.FixedLambda()], ids=lambda s: type(s).__name__)
def test_every_solver_takes_it(solver):
    known = known_problem("denoising")
    x = solver.solve(bare(known), lam=1.0).x
    torch.testing.assert_close(x, known.x(1.0), rtol=0, atol=0.03)


def test_lam_is_chosen_for_it():
    choice = aipo.choose_lambda(bare(known_problem("denoising")))
    assert choice.rule == "discrepancy"
    assert choice.lam.isfinite().all()


def test_its_own_surrogate_is_used():
    known = known_problem("denoising")
    prior = Quadratic(known.flow)
    prior.surrogate = known.problem.prior.surrogate
    problem = aipo.MapProblem(prior, known.problem.operator, known.problem.noise, known.problem.y)
    torch.testing.assert_close(aipo.initial.gaussian(problem), aipo.initial.gaussian(known.problem))


def test_problems_with_different_priors_differ():
    a, b = known_problem("denoising"), known_problem("denoising", prior_std=0.3)
    assert bare(a).fingerprint() == bare(a).fingerprint()
    assert bare(a).fingerprint() != bare(b).fingerprint()


def test_what_it_lacks_is_named():
    known = known_problem("denoising")
    with pytest.raises(InputError, match=r"^the prior object has no P and no gradient; .*$"):
        aipo.MapProblem(object(), known.problem.operator, known.problem.noise, known.problem.y)
    prior = Quadratic(known.flow)
    prior.P = lambda x: Quadratic.P(prior, x).sum()
    problem = aipo.MapProblem(prior, known.problem.operator, known.problem.noise, known.problem.y)
    with pytest.raises(InputError, match=r"^P and gradient of Quadratic return \(\) and .*$"):
        problem.evaluate(problem.y)
    with pytest.raises(InputError, match=r"^Quadratic cannot be sampled; .*$"):
        aipo.initial.random(problem)
    assert aipo.initial.zero(problem).shape == (3, *SHAPE)


def test_the_curvature_of_its_surrogate_is_that_of_P():
    """For a P that is quadratic and the same everywhere, the measured curvature is exact in every band."""

    class White:
        def P(self, x):
            return 20 * x.square().flatten(1).sum(1)

        def gradient(self, x):
            return 40 * x

    surrogate = AnyPrior(White(), (3, 32, 32), torch.zeros(1)).surrogate
    torch.testing.assert_close(surrogate.curvature.values, torch.full((3, 32, 32), 40.0), rtol=0.01, atol=0)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_natural_images_have_the_spread_of_photographs(channels):
    gaussian = natural_images((channels, 64, 64))
    normal = torch.randn(32, channels, 64, 64, generator=torch.Generator().manual_seed(0))
    draws = synthesize(normal / gaussian.marginal.values.sqrt())
    assert 0.02 < draws.square().mean().item() < 0.12
    neighbors = (draws[..., 1:] - draws[..., :-1]).square().mean()
    assert neighbors < 0.2 * draws.square().mean()  # 0.07 in photographs
