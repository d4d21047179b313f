"""The path solver against closed forms: Gaussian priors, every linear operator, brute-force matrices."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aipo
from aipo import initial, operators
from aipo.errors import InputError
from aipo.priors.surrogate import Surrogate, measure_surrogate
from aipo.solvers import FollowPath
from aipo.transforms.spectrum import Spectrum, analyze, expand_bands, radial_bands, synthesize
from linear_gaussian import OPERATORS, SHAPE, known_problem
from small_problem import SHAPE as FLOW_SHAPE
from small_problem import build_flow, make_problem, restricted

GRID = (0.3, 1.0, 2.0)


@pytest.fixture(scope="module")
def flow():
    return build_flow()


class TestSpectrum:
    @given(st.integers(1, 4), st.integers(2, 9), st.integers(2, 9))
    @settings(max_examples=20, deadline=None)
    def test_the_basis_is_orthonormal(self, channels, height, width):
        x = torch.randn(2, channels, height, width, dtype=torch.float64)
        torch.testing.assert_close(analyze(x).square().sum(), x.square().sum())
        torch.testing.assert_close(synthesize(analyze(x)), x)

    def test_a_constant_gray_image_is_one_coefficient(self):
        c = analyze(torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64))
        assert (c.abs() > 1e-12).sum() == 1
        assert c[0, 0, 0, 0] > 0

    def test_solve_inverts_apply(self):
        values = torch.rand(3, 8, 8, dtype=torch.float64) + 0.1
        x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        spectrum = Spectrum(values)
        torch.testing.assert_close(spectrum.solve(spectrum.apply(x)), x)
        torch.testing.assert_close(spectrum.solve(2 * spectrum.apply(x) + 3 * x, 2.0, 3.0), x)

    def test_bands_keep_what_depends_on_the_radius_alone(self):
        bands = torch.rand(3, 24, dtype=torch.float64)
        values = expand_bands(bands, (3, 64, 64))
        torch.testing.assert_close(expand_bands(radial_bands(values), (3, 64, 64)), values)


@pytest.mark.parametrize("name", OPERATORS)
def test_regularized_solves_match_the_dense_matrix(name):
    """For every operator, with its own closed form or conjugate gradients, and one precision and lam per image."""
    operator = OPERATORS[name]()
    n = 16
    basis = torch.eye(n, dtype=torch.float64).view(n, *SHAPE)
    A = operator.A(basis).flatten(1).T
    spectrum = Spectrum(torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5)
    S = spectrum.apply(basis).flatten(1)
    b = torch.randn(3, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    precision = torch.tensor([1.0, 100.0, 1.0], dtype=torch.float64)
    lam = torch.tensor([0.5, 2.0, 0.5], dtype=torch.float64)
    v = operator.solve_regularized(b, precision, lam, spectrum, torch.zeros_like(b))
    for i in range(3):
        exact = torch.linalg.solve(precision[i] * A.T @ A + lam[i] * S, b[i].flatten())
        assert (v[i].flatten() - exact).norm() < 5e-3 * exact.norm()


def test_a_nonlinear_operator_is_solved_through_its_jacobian():
    operator = operators.Saturation(SHAPE)
    x = torch.rand(2, *SHAPE, dtype=torch.float64)
    spectrum = Spectrum(torch.ones(SHAPE, dtype=torch.float64))
    b, ones = torch.randn_like(x), torch.ones(2, dtype=torch.float64)
    v = operator.solve_regularized(b, ones, ones, spectrum, x)
    for i in range(2):
        J = torch.autograd.functional.jacobian(lambda u: operator.A(u[None])[0].flatten(), x[i]).reshape(-1, 16)
        exact = torch.linalg.solve(J.T @ J + torch.eye(16, dtype=torch.float64), b[i].flatten())
        assert (v[i].flatten() - exact).norm() < 5e-3 * exact.norm()


def test_a_nonlinear_operator_with_several_images(flow):
    """Start, grid and path of a batch; each image as if it were alone."""
    operator, noise = operators.Saturation(FLOW_SHAPE, gain=1.5), aipo.Gaussian(0.05)
    x = flow.sample(2, 0.5, seed=1).clamp(0.1, 0.9)
    problem = aipo.MapProblem(flow, operator, noise, operator.measure(x, noise, seed=2))
    path = aipo.follow_path(problem, evals=40)
    assert path.status == ["done"] * 2
    for i in range(2):
        one = problem.take(torch.tensor([i]))
        torch.testing.assert_close(problem.expected_chi2[i], one.expected_chi2[0])
        torch.testing.assert_close(initial.gaussian(problem)[i], initial.gaussian(one)[0], atol=1e-4, rtol=0)


def test_the_surrogate_of_a_gaussian_is_that_gaussian():
    """Mean, marginal precision and curvature of N(mean, B^T diag(1/h) B), from its own samples."""
    shape = (1, 8, 8)
    generator = torch.Generator().manual_seed(0)
    h = expand_bands(torch.linspace(1, 30, 24, dtype=torch.float64)[None], shape)
    z = torch.randn(4000, *shape, generator=generator, dtype=torch.float64)
    images = 0.5 + synthesize(z / h.sqrt())
    entry = measure_surrogate(lambda x: Spectrum(h).apply(x - 0.5), images)
    surrogate = Surrogate.from_card(entry, shape)
    torch.testing.assert_close(surrogate.curvature.values.double(), h, rtol=1e-3, atol=0)
    torch.testing.assert_close(surrogate.marginal.values.double(), h, rtol=0.1, atol=0)
    assert (surrogate.mean - 0.5).abs().max() < 0.05


def test_a_card_with_a_broken_surrogate_is_one_line():
    for entry in ({}, {"mean": [[[0.5]]], "marginal": [[1.0] * 24], "curvature": [[-1.0] * 24]}):
        with pytest.raises(InputError) as caught:
            Surrogate.from_card(entry, (1, 8, 8))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["local", "global", "none"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_whole_path_of_a_linear_gaussian_problem(name, model):
    known = known_problem(name)
    path = FollowPath(GRID, evals=150, tolerance=1e-9, model=model).solve(known.problem)
    assert path.status == ["done"] * 3
    for i, lam in enumerate(GRID):
        exact = known.x(lam)
        torch.testing.assert_close(path.x[:, i], exact, atol=1e-4, rtol=0)
        loss = known.problem.loss(exact, lam)
        torch.testing.assert_close(path.loss[:, i], loss, atol=1e-6, rtol=0)
    assert (path.P_rises() < 1e-6).all()
    assert (path.concavity_violated() < 1e-6).all()
    assert (path.concave == 0).all()
    assert (path.evals.diff(dim=1) >= 0).all()
    assert path.evals.max() <= 150


def test_the_gaussian_start_is_the_solution_if_the_prior_is_the_surrogate():
    """With a prior that is white, mean and precision are known exactly."""
    n = 192
    flow = aipo.flows.GaussianFlow(FLOW_SHAPE, torch.full(FLOW_SHAPE, 0.5), 0.2 * torch.eye(n)).requires_grad_(False)
    prior = aipo.Prior(flow.double())
    operator = operators.Inpainting.random_blocks(FLOW_SHAPE, fraction=0.25, block=4, seed=0)
    x = flow.sample(2, seed=1)
    noise = aipo.Gaussian(0.1)
    problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=2))
    exact = FollowPath((1.0,), evals=100, tolerance=1e-9).solve(problem).x[:, 0]
    # The surrogate is measured on 64 samples: a few percent.
    assert (initial.gaussian(problem) - exact).square().mean().sqrt() < 0.05


class TestPromises:
    def test_an_image_alone_gives_what_it_gives_in_a_batch(self, flow):
        problem = make_problem(flow)
        together = aipo.follow_path(problem, GRID, evals=40)
        for i in range(3):
            alone = aipo.follow_path(restricted(problem, [i]), GRID, evals=40)
            torch.testing.assert_close(alone.x, together.x[[i]], atol=1e-3, rtol=0)
            torch.testing.assert_close(alone.evals, together.evals[[i]], atol=1, rtol=0)

    def test_killed_and_resumed_gives_the_same_path(self, flow, tmp_path):
        problem = make_problem(flow)
        solver = FollowPath(GRID, 60, tolerance=0.0)
        unbroken = solver.solve(problem, checkpoint=tmp_path / "a.safetensors")

        class Killed(Exception):
            pass

        def kill(state):
            if state.evals.max() >= 20:
                raise Killed

        file = tmp_path / "b.safetensors"
        with pytest.raises(Killed):
            solver.solve(problem, checkpoint=file, checkpoint_every=7, callback=kill)
        resumed = solver.solve(problem, checkpoint=file)
        assert (resumed.x == unbroken.x).all()
        assert (resumed.evals == unbroken.evals).all()
        assert (tmp_path / "a.safetensors").read_bytes() == file.read_bytes()

    def test_one_image_failing_alone(self, flow):
        problem = make_problem(flow)
        x0 = initial.gaussian(problem)
        x0[1] = torch.nan
        path = aipo.follow_path(problem, GRID, evals=40, x0=x0)
        assert path.status == ["done", "non finite", "done"]
        assert path.x[1].isnan().all()
        assert path.x[[0, 2]].isfinite().all()
        good = aipo.follow_path(restricted(problem, [0, 2]), GRID, evals=40, x0=x0[[0, 2]])
        torch.testing.assert_close(path.x[[0, 2]], good.x, atol=1e-3, rtol=0)

    def test_the_values_belong_to_the_images(self, flow):
        problem = make_problem(flow)
        path = aipo.follow_path(problem, GRID, evals=40)
        for i in range(len(GRID)):
            torch.testing.assert_close(path.D[:, i], problem.D(path.x[:, i]), atol=1e-2, rtol=1e-5)
            torch.testing.assert_close(path.P[:, i], problem.P(path.x[:, i]), atol=1e-2, rtol=1e-5)

    def test_more_evaluations_never_end_higher(self, flow):
        problem = make_problem(flow)
        few, many = (aipo.follow_path(problem, GRID, evals=n).loss for n in (15, 200))
        assert (many <= few + 1e-2).all()

    def test_a_history_that_misleads_is_forgotten(self, flow):
        problem = make_problem(flow)
        solver = FollowPath((1.0,), 100, tolerance=0.0)
        state = solver.init(problem, initial.gaussian(problem))
        for _ in range(3):
            state = solver.step(problem, state)
        lowest = solver.solve(problem).loss[:, 0]
        assert (state.D + state.P > lowest + 0.1).all()
        # Curvatures a billion times too small: every direction that they suggest leads far beyond the minimum.
        state = replace(state, Y_D=1e-9 * state.Y_D, Y_P=1e-9 * state.Y_P)
        state = solver.search.turn(problem, state, solver.lam(state), state.running)
        state = replace(state, x=state.x_seen + state.direction)
        for _ in range(25):
            state = solver.step(problem, state)
        torch.testing.assert_close(state.D + state.P, lowest, atol=0.02, rtol=0)

    @pytest.mark.parametrize("lambdas", [(), (0.0, 1.0), (1.0, 0.5), (1.0, 1.0), (float("nan"),)])
    def test_bad_grids(self, flow, lambdas):
        with pytest.raises(InputError, match="lambdas"):
            aipo.follow_path(make_problem(flow), lambdas)

    @given(
        st.lists(st.floats(0.05, 50), min_size=1, max_size=12, unique=True),
        st.integers(0, 30),
        st.sampled_from([None, 0.01]),
        st.floats(0.01, 0.99),
    )
    @settings(max_examples=40, deadline=None)
    @example([0.1, 10, 10.1, 10.2, 10.3], 3, None, 0.25)
    def test_no_image_spends_more_than_its_evaluations(self, lambdas, more, stride, first_share):
        lambdas, evals = tuple(sorted(lambdas)), len(lambdas) + more
        # With a tolerance of 0 every lam takes all it may.
        solver = FollowPath(lambdas, evals, stride, first_share, tolerance=0.0)
        path = solver.solve(known_problem("denoising").problem)
        assert path.status == ["done"] * 3
        assert path.evals.nan_to_num().max() <= evals

    def test_too_few_evaluations(self, flow):
        with pytest.raises(InputError, match="one per lam"):
            aipo.follow_path(make_problem(flow), GRID, evals=2)


class TestPath:
    @pytest.fixture
    def path(self, flow):
        return aipo.follow_path(make_problem(flow), GRID, evals=40)

    def test_saved_and_loaded(self, path, tmp_path):
        path.save(tmp_path / "path.safetensors")
        again = aipo.SolutionPath.load(tmp_path / "path.safetensors")
        assert (again.x == path.x).all()
        assert (again.loss == path.loss).all()
        assert again.status == path.status
        (tmp_path / "path.safetensors").write_bytes(b"no")
        with pytest.raises(InputError, match="not a saved path"):
            aipo.SolutionPath.load(tmp_path / "path.safetensors")

    def test_at_a_lam_of_the_grid(self, path):
        result = path.at(torch.tensor([0.3, 1.0, 2.0]))
        assert all((result.x[i] == path.x[i, i]).all() for i in range(3))
        assert (path.at(1.0).loss == path.loss[:, 1]).all()
        with pytest.raises(InputError, match="interpolate"):
            path.at(0.7)

    def test_interpolation_meets_the_grid_and_stays_between(self, path):
        for i, lam in enumerate(GRID):
            torch.testing.assert_close(path.interpolate(lam), path.x[:, i])
        middle = path.interpolate((0.3 * 1.0) ** 0.5)
        torch.testing.assert_close(middle, (path.x[:, 0] + path.x[:, 1]) / 2, atol=1e-5, rtol=0)
        torch.testing.assert_close(path.interpolate(99.0), path.x[:, -1])

    def test_the_certificates_notice_a_wrong_path(self, path):
        """A solution exchanged for a worse one: P rises or V loses its concavity."""
        P = path.P.clone()
        P[:, 1] = P[:, 0] + 100
        assert (replace(path, P=P).P_rises()[:, 0] > 0).all()
        D = path.D.clone()
        D[:, 1] -= 1000
        assert (replace(path, D=D).concavity_violated() > 0).all()
        x = path.x.clone()
        x[:, 2] += 1
        assert (replace(path, x=x).jumps()[:, 1] > path.jumps()[:, 1]).all()
