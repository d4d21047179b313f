"""The paper's theory on problems whose answer is known in closed form."""

import math

import pytest
import torch

import aipo
from aipo import initial
from aipo.errors import InputError
from aipo.flows.closed_form import MixtureFlow
from aipo.operators import Denoising
from aipo.solvers import LBFGS, Certified, FixedLambda, estimate_constants
from aipo.solvers.adam import Adam
from aipo.solvers.certified import extreme_curvatures
from linear_gaussian import INJECTIVE, OPERATORS, known_problem

LAM = 0.8


def distance(a, b):
    return (a - b).flatten(1).norm(dim=1)


def exact_constants(known, lam_max, grid=20):
    """L, sigma and C of a quadratic problem over (0, lam_max]: extreme eigenvalues and the path's speed."""
    lams = torch.linspace(lam_max / grid, lam_max, grid).tolist()
    eigenvalues = torch.stack([torch.linalg.eigvalsh(known.hessian(lam)) for lam in lams])
    C = torch.stack([known.path_derivative(lam) for lam in [1e-6, *lams]]).amax(0)
    return {"L": eigenvalues.max().item(), "sigma": 1 / eigenvalues.min().item(), "C": 1.01 * C}


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("name", INJECTIVE)
def test_theorem_algorithm_1_is_within_epsilon(name, epsilon):
    known = known_problem(name)
    solver = Certified(epsilon=epsilon, delta=0.2, **exact_constants(known, LAM))
    result = solver.solve(known.problem, LAM, x0=known.x(0))
    assert result.status == ["done"] * 3
    assert result.info["certified"].all()
    assert (result.info["N"] > 1).all()  # several rounds: the path was followed, not jumped
    assert (distance(result.x, known.x(LAM)) <= epsilon).all()
    assert set(result.info["constants"].source.values()) == {"given"}
    assert result.info["constants"].origin == "given"
    planned = (result.info["N"] - 1) * result.info["K"] + result.info["K_last"] + 1
    assert (result.evals == planned).all()


@pytest.mark.parametrize("name", ["inpainting", "superresolution"])
def test_algorithm_1_on_an_underdetermined_operator(name):
    """At lam = 0 Assumption 3.3 fails here (a null space has no curvature), so one round at Lambda must do."""
    known = known_problem(name)
    eigenvalues = torch.linalg.eigvalsh(known.hessian(LAM))
    result = Certified(
        epsilon=1e-3, L=eigenvalues.max().item(), sigma=1 / eigenvalues.min().item(), delta=1e6, C=1.0
    ).solve(known.problem, LAM)
    assert (result.info["N"] == 1).all()
    assert (distance(result.x, known.x(LAM)) <= 1e-3).all()


def test_algorithm_1_with_estimated_constants():
    known = known_problem("denoising")
    result = Certified(epsilon=1e-3, delta=0.2).solve(known.problem, LAM)
    exact = exact_constants(known, LAM)
    constants = result.info["constants"]
    assert constants.source == {"L": "estimated", "sigma": "estimated", "delta": "given", "C": "estimated"}
    # It arrives, but what was estimated proves nothing.
    assert constants.origin == "estimated"
    assert result.status == ["done"] * 3
    assert not result.info["certified"].any()
    # Estimates carry a safety factor of 1.5, so they bound the truth without being far from it.
    assert ((constants.L >= exact["L"]) & (constants.L <= 2 * exact["L"])).all()
    assert ((constants.sigma >= exact["sigma"]) & (constants.sigma <= 2 * exact["sigma"])).all()
    assert ((constants.C >= 0.9 * exact["C"]) & (constants.C <= 3 * exact["C"])).all()
    assert (distance(result.x, known.x(LAM)) <= 1e-3).all()


def test_curvatures_by_power_iteration():
    known = known_problem("blur")
    low, high = extreme_curvatures(known.problem, known.x(LAM), known.problem.lam_tensor(LAM), iterations=300)
    eigenvalues = torch.linalg.eigvalsh(known.hessian(LAM))
    torch.testing.assert_close(high, eigenvalues.max().expand(3), rtol=1e-3, atol=0)
    torch.testing.assert_close(low, eigenvalues.min().expand(3), rtol=1e-2, atol=0)


def test_estimated_radius_respects_assumption_2():
    """Two modes: between them the gradient vanishes, so the property can only hold within a short distance."""
    flow = MixtureFlow((1, 1, 1), means=(0.2, 0.8), stds=(0.05, 0.05)).double().requires_grad_(False)
    y = torch.full((1, 1, 1, 1), 0.75, dtype=torch.float64)
    problem = aipo.MapProblem(flow, Denoising((1, 1, 1)), aipo.Gaussian(0.3), y)
    constants = estimate_constants(problem, problem.lam_tensor(1.0), initial.mle(problem).x)
    assert 0.05 < constants.delta.item() < 0.6
    assert constants.evals > 0


def test_a_budget_too_small_is_not_certified():
    known = known_problem("denoising")
    solver = Certified(epsilon=1e-6, delta=1.0, max_evals=20, **exact_constants(known, LAM))
    result = solver.solve(known.problem, LAM)
    assert result.status == ["max evaluations"] * 3
    assert not result.info["certified"].any()
    assert (result.evals == 20).all()


@pytest.mark.parametrize("bad", [{"L": -1.0}, {"sigma": 0.0}, {"L": 10.0, "sigma": 0.01}, {"C": math.inf}])
def test_impossible_constants_are_refused(bad):
    known = known_problem("denoising")
    with pytest.raises(InputError):
        Certified(**{"L": 100.0, "sigma": 1.0, "delta": 1.0, "C": 1.0, **bad}).solve(known.problem, LAM)


def test_negative_curvature_is_reported_for_its_image_alone():
    """One y sits on the ridge between two modes, where the path is unstable from the start; the other does not."""
    flow = MixtureFlow((1, 1, 1), means=(0.2, 0.8), stds=(0.1, 0.1)).double().requires_grad_(False)
    y = torch.tensor([0.5, 0.8], dtype=torch.float64).view(2, 1, 1, 1)
    problem = aipo.MapProblem(flow, Denoising((1, 1, 1)), aipo.Gaussian(0.3), y)
    constants = estimate_constants(problem, problem.lam_tensor(1.0), y, delta=0.05, steps=1)
    assert constants.sigma.isinf().tolist() == [True, False]
    solver = Certified(1e-2, constants.L, constants.sigma, delta=0.05, C=1e-4)
    result = solver.solve(problem, 1.0, y)
    assert result.status == ["assumption violated", "done"]
    assert result.info["certified"].tolist() == [False, True]
    assert torch.equal(result.x[0], y[0])


def test_estimates_do_not_depend_on_the_batch():
    known = known_problem("blur")
    problem, x0 = known.problem, known.x(0)
    together = estimate_constants(problem, problem.lam_tensor(LAM), x0, steps=100)
    one = aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y[2:])
    alone = estimate_constants(one, one.lam_tensor(LAM), x0[2:], steps=100)
    for name in ("L", "sigma", "delta", "C"):
        torch.testing.assert_close(getattr(alone, name), getattr(together, name)[2:], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", OPERATORS)
def test_algorithm_2_finds_the_closed_form(name):
    known = known_problem(name)
    result = aipo.Amortized(last_K=400, decay="round").solve(known.problem, LAM)
    assert result.status == ["done"] * 3
    assert (distance(result.x, known.x(LAM)) < 1e-4).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_converged_fixed_lambda_finds_the_closed_form(name):
    known = known_problem(name)
    result = FixedLambda.decayed(800).solve(known.problem, LAM, x0=initial.random(known.problem))
    assert (distance(result.x, known.x(LAM)) < 1e-4).all()


@pytest.mark.parametrize("model", ["local", "global", "none"])
@pytest.mark.parametrize("name", OPERATORS)
def test_lbfgs_finds_the_closed_form(name, model):
    known = known_problem(name)
    result = LBFGS(150, tolerance=1e-9, model=model).solve(known.problem, LAM)
    assert result.status == ["done"] * 3
    assert (distance(result.x, known.x(LAM)) < 1e-4).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_value_is_concave_and_prior_term_falls_along_the_path(name):
    """dV/dlam = P(x*(lam)) (envelope theorem), so V is concave and P cannot increase."""
    one = known_problem(name, batch=1).problem
    lams = torch.linspace(0.1, 2.0, 8, dtype=torch.float64)
    # Eight copies of one measurement, each with its own lam.
    problem = aipo.MapProblem(one.prior, one.operator, one.noise, one.y.repeat(8, *[1] * (one.y.ndim - 1)))
    result = FixedLambda.decayed(800).solve(problem, lams)
    V, P = result.loss, result.P
    assert (P.diff() <= 1e-6).all()
    assert (V.diff(n=2) <= 1e-6).all()
    # The slope of V between two lambdas lies between the two values of P there.
    slope = V.diff() / lams.diff()
    assert ((slope <= P[:-1] + 1e-4) & (slope >= P[1:] - 1e-4)).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_the_mle_start_is_the_limit_of_small_lam(name):
    """Lemma B.1."""
    known = known_problem(name)
    start = initial.mle(known.problem)
    limit = known.x(1e-7)
    assert ((limit > 0) & (limit < 1)).all()  # else the box, which the closed form ignores, would matter
    assert (distance(start.x, limit) < 1e-4).all()
    gaps = [distance(known.x(lam), start.x).max().item() for lam in (1e-1, 1e-2, 1e-3)]
    assert gaps[0] > gaps[1] > gaps[2]


class TestNonConvex:
    """The paper's point: from a bad start descent ends in a worse minimum; following lam from 0 it does not."""

    LAM = 1.0

    def problem(self, batch):
        flow = MixtureFlow((1, 1, 2), means=(0.2, 0.8), stds=(0.1, 0.1)).double().requires_grad_(False)
        y = torch.tensor([0.62, 0.38], dtype=torch.float64).view(1, 1, 1, 2).repeat(batch, 1, 1, 1)
        return aipo.MapProblem(flow, Denoising((1, 1, 2)), aipo.Gaussian(0.1), y)

    def global_minimum(self):
        axis = torch.linspace(-0.2, 1.2, 701, dtype=torch.float64)
        grid = torch.cartesian_prod(axis, axis).view(-1, 1, 1, 2)
        problem = self.problem(len(grid))
        loss = problem.loss(grid, self.LAM)
        return grid[loss.argmin()], loss.min()

    def test_bad_starts_end_in_worse_minima(self):
        x_best, loss_best = self.global_minimum()
        starts = torch.tensor([[0.1, 0.9], [0.1, 0.1], [0.9, 0.9]], dtype=torch.float64).view(3, 1, 1, 2)
        result = FixedLambda(2000, 0.01, "cosine", Adam()).solve(self.problem(3), self.LAM, starts)
        assert result.status == ["done"] * 3
        gradient = self.problem(3).evaluate(result.x).gradient(result.lam)
        assert (gradient.abs() < 1e-3).all()  # truly minima, not slow progress
        assert (result.loss > loss_best + 2).all()
        assert (distance(result.x, x_best[None]) > 0.25).all()

    @pytest.mark.parametrize(
        "solver",
        [
            aipo.Amortized(last_K=300, decay="round"),
            aipo.Amortized.quick(),
            Certified(epsilon=1e-3, L=210.0, sigma=0.012, delta=0.1, C=0.2),
        ],
        ids=["algorithm 2", "algorithm 2, quick", "algorithm 1"],
    )
    def test_continuation_finds_the_global_one(self, solver):
        x_best, loss_best = self.global_minimum()
        result = solver.solve(self.problem(1), self.LAM)
        assert result.status == ["done"]
        assert distance(result.x, x_best[None]).item() < 5e-3
        assert result.loss.item() <= loss_best.item() + 1e-3
