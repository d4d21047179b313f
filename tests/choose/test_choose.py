"""Choosing lam: every rule against what it promises, on problems where the truth or a closed form is known."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import aipo
from aipo import operators
from aipo.choose import SigmaWarning
from aipo.choose.rules import best, crossing, held_out
from aipo.choose.sigma import checked_sigma, estimate_sigma, noise_curve
from aipo.errors import InputError
from aipo.problem.discrepancy import FLOW_FACTOR
from aipo.problem.evidence import most_likely_sigma
from aipo.solvers.solution_path import automatic_grid
from aipo.transforms.spectrum import synthesize
from small_problem import SHAPE as FLOW_SHAPE
from small_problem import Cliff, build_flow, make_problem

N = 192  # values of an image of FLOW_SHAPE


@pytest.fixture(scope="module")
def flow():
    return build_flow()


def white_problem(operator, sigma=0.1, spread=0.2, batch=2):
    """Images that are white noise around gray: mean, spectrum and every solution are known."""
    flow = aipo.flows.GaussianFlow(FLOW_SHAPE, torch.full(FLOW_SHAPE, 0.5), spread * torch.eye(N))
    prior = aipo.Prior(flow.requires_grad_(False).double())
    x = flow.sample(batch, seed=3)
    noise = aipo.Gaussian(sigma)
    return aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=4)), x


class TestExpectedChi2:
    @pytest.mark.parametrize("sigma", [0.05, 0.2])
    def test_of_white_images_in_closed_form(self, sigma):
        """Each value is shrunk by 1 / (1 + sigma^2 / spread^2), which is its degree of freedom."""
        problem, _ = white_problem(operators.Denoising(FLOW_SHAPE), sigma)
        share = 1 / (1 + (sigma / 0.2) ** 2)
        wanted = max(0.05, 1 - FLOW_FACTOR * share)
        # The surrogate is measured on samples, hence the tolerance.
        torch.testing.assert_close(problem.expected_chi2, torch.full((2,), wanted).double(), atol=0.05, rtol=0)

    def test_missing_pixels_do_not_count(self):
        half = torch.zeros(1, 8, 8)
        half[..., :4] = 1
        whole, _ = white_problem(operators.Denoising(FLOW_SHAPE), 0.2)
        masked, _ = white_problem(operators.Inpainting(half, FLOW_SHAPE), 0.2)
        torch.testing.assert_close(masked.expected_chi2, whole.expected_chi2, atol=0.05, rtol=0)

    def test_each_image_has_its_own_noise(self):
        problem, _ = white_problem(operators.Denoising(FLOW_SHAPE))
        mixed = aipo.MapProblem(problem.prior, problem.operator, aipo.Gaussian(torch.tensor([0.05, 0.4])), problem.y)
        low, high = mixed.expected_chi2.tolist()
        assert low < high < 1

    def test_the_automatic_grid_starts_below_it(self, flow):
        problem = make_problem(flow)
        grid = automatic_grid(problem)
        assert grid == sorted(set(grid))
        assert 0.2 * problem.expected_chi2.min() < grid[0] < 0.3 * problem.expected_chi2.min()
        assert grid[-1] == pytest.approx(3.162, abs=1e-3)


class TestAutomaticPath:
    def test_each_image_has_its_own_lam(self, flow):
        problem = make_problem(flow)
        path = aipo.follow_path(problem, evals=60)
        grid = torch.tensor(automatic_grid(problem))
        for row in path.lam:
            own = row[row.isfinite()]
            assert own[0] == grid[0]
            assert own[-1] == grid[-1]
            assert (own.diff() > 0).all()
            assert all(v in grid for v in own)
        # What one image does depends on no other.
        alone = aipo.follow_path(problem.take(torch.tensor([1])), evals=60)
        own = path.lam[1][path.lam[1].isfinite()]
        torch.testing.assert_close(alone.lam[0], own)

    def test_an_image_does_not_depend_on_a_neighbor_with_other_noise(self, flow):
        """The less noise, the lower a path has to start; the other images of the batch must not start there too."""
        problem = make_problem(flow, batch=2, operator=operators.Denoising(FLOW_SHAPE))
        problem = aipo.MapProblem(flow, problem.operator, aipo.Gaussian(torch.tensor([0.02, 0.3])), problem.y)
        together = aipo.choose_lambda(problem, evals=80, trust_sigma=True)
        starts = []
        for i in range(2):
            one = problem.take(torch.tensor([i]))
            alone = aipo.choose_lambda(one, evals=80, trust_sigma=True)
            starts.append(automatic_grid(one)[0])
            own = together.path.lam[i].isfinite()
            torch.testing.assert_close(together.path.lam[i, own], alone.path.lam[0])
            torch.testing.assert_close(together.path.evals[i, own], alone.path.evals[0])
            torch.testing.assert_close(together.path.x[i, own], alone.path.x[0], atol=1e-3, rtol=0)
            torch.testing.assert_close(together.lam[i], alone.lam[0], rtol=1e-3, atol=0)
            torch.testing.assert_close(together.result.x[i], alone.result.x[0], atol=1e-3, rtol=0)
        assert starts[0] < starts[1]
        torch.testing.assert_close(together.path.lam[:, 0], torch.tensor(starts))

    def test_short_steps_where_x_moves_most(self):
        """Of white images x*(lam) is known: it moves fastest, per unit of log lam, where lam = spread^2 / sigma^2."""
        problem, _ = white_problem(operators.Denoising(FLOW_SHAPE), sigma=0.2, batch=1)
        grid = tuple(10 ** (i / 40) for i in range(-60, 61))
        path = aipo.FollowPath(grid, 400, stride=0.02, tolerance=1e-6).solve(problem)
        steps = path.lam[0].log().diff()
        moved = path.x[0].diff(dim=0).flatten(1).square().mean(1).sqrt()
        fastest = path.lam[0, 1:].log().abs().argmin()
        assert steps[fastest] < 0.5 * steps[-2]
        assert 0.01 < moved.max() < 0.04
        assert len(steps) < 30

    def test_certificates_and_interpolation_ignore_what_is_not_there(self, flow):
        path = aipo.follow_path(make_problem(flow), GRID, evals=40)
        lam, x = path.lam.clone(), path.x.clone()
        lam[0, 2], x[0, 2] = torch.nan, torch.nan
        short = replace(path, lam=lam, x=x)
        torch.testing.assert_close(short.interpolate(99.0)[0], path.x[0, 1])
        torch.testing.assert_close(short.interpolate(1.5)[1:], path.interpolate(1.5)[1:])
        assert short.at(torch.tensor([1.0, 2.0, 2.0])).x.isfinite().all()
        with pytest.raises(InputError, match="not solved"):
            short.at(2.0)


GRID = (0.3, 1.0, 2.0)


class TestRules:
    def test_auto_meets_the_expected_chi2(self):
        problem, _ = white_problem(operators.Denoising(FLOW_SHAPE), sigma=0.2)
        choice = aipo.choose_lambda(problem, evals=80)
        assert choice.rule == "discrepancy"
        torch.testing.assert_close(problem.chi2(choice.result.x), choice.target, atol=0.03, rtol=0)
        torch.testing.assert_close(choice.result.loss, problem.loss(choice.result.x, choice.lam))
        assert choice.score.shape == choice.path.lam.shape

    def test_sure_estimates_the_true_error(self):
        """Of many images at once: the mean estimate is the mean squared error."""
        problem, x = white_problem(operators.Denoising(FLOW_SHAPE), sigma=0.2, batch=200)
        path = aipo.follow_path(problem, GRID, evals=40)
        choice = aipo.choose_lambda(problem, "sure", path=path, evals=40)
        error = (path.x - x[:, None]).flatten(2).square().mean(2) / 0.2**2
        torch.testing.assert_close(choice.score.mean(0), error.mean(0), atol=0.02, rtol=0)
        # Bayes: for images drawn from the prior, lam = 1 is best.
        assert (choice.lam - 1).abs().median() < 0.3

    def test_held_out_measurements_have_no_say_in_the_fit(self):
        """Spoiling them leaves the second path as it is and makes every score worse."""
        problem, _ = white_problem(operators.Denoising(FLOW_SHAPE))
        seen = []

        def follow(reduced, lambdas):
            seen.append(reduced)
            return aipo.follow_path(reduced, lambdas, evals=40)

        verdict = held_out(problem, 0, follow)
        score, second = verdict.score, verdict.second
        held = seen[0].operator.mask == 0
        assert 0 < held.sum() < 0.2 * N
        spoiled = aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y + 5 * held)
        verdict = held_out(spoiled, 0, follow)
        worse, again = verdict.score, verdict.second
        assert (again.x.nan_to_num() == second.x.nan_to_num()).all()
        assert (worse > score + 1)[second.lam.isfinite()].all()
        choice = aipo.choose_lambda(problem, "held-out", evals=40)
        assert choice.result.evals.max() <= 80
        assert (choice.score_lam.nan_to_num() == second.lam.nan_to_num()).all()
        assert (choice.score.nan_to_num() == score.nan_to_num()).all()

    @pytest.mark.parametrize("rule", ["discrepancy", "sure", "held-out", "l-curve"])
    def test_every_rule_on_a_flow(self, flow, rule):
        problem = make_problem(flow)
        choice = aipo.choose_lambda(problem, rule, evals=40)
        first, last = choice.path.lam[:, 0], choice.path.lam.nan_to_num().amax(1)
        assert ((choice.lam >= first * 0.999) & (choice.lam <= last * 1.001)).all()
        assert choice.result.status == ["done"] * 3
        assert choice.result.x.isfinite().all()

    def test_a_fixed_lam(self, flow):
        problem = make_problem(flow)
        path = aipo.follow_path(problem, GRID, evals=40)
        choice = aipo.choose_lambda(problem, "fixed", lam=torch.tensor([0.3, 1.0, 2.0]), path=path)
        assert all((choice.result.x[i] == path.x[i, i]).all() for i in range(3))
        torch.testing.assert_close(choice.result.loss, path.at(choice.lam).loss, atol=1e-2, rtol=0)

    def test_other_noise_is_judged_by_held_out_measurements(self, flow):
        gaussian = make_problem(flow)
        problem = aipo.MapProblem(gaussian.prior, gaussian.operator, aipo.Laplace(0.1), gaussian.y)
        assert aipo.choose_lambda(problem, evals=30).rule == "held-out"
        with pytest.raises(InputError, match="Gaussian"):
            aipo.choose_lambda(problem, "sure")

    @pytest.mark.parametrize("arguments", [{"rule": "best"}, {"rule": "fixed"}, {"rule": "auto", "lam": 1.0}])
    def test_bad_arguments(self, flow, arguments):
        with pytest.raises(InputError):
            aipo.choose_lambda(make_problem(flow), **arguments)

    @pytest.mark.parametrize("bad", [0, 1])
    @pytest.mark.parametrize("rule", ["discrepancy", "sure", "held-out", "l-curve", "fixed"])
    def test_one_image_failing_alone(self, flow, rule, bad):
        problem = make_problem(flow)
        x0 = aipo.initial.gaussian(problem)
        x0[bad] = torch.nan
        path = aipo.follow_path(problem, GRID, evals=40, x0=x0)
        choice = aipo.choose_lambda(problem, rule, lam=1.0 if rule == "fixed" else None, path=path, evals=40)
        assert choice.path is path  # still the one grid that "sure" needs
        good = [i for i in range(3) if i != bad]
        assert [choice.result.status[i] for i in (bad, *good)] == ["non finite", "done", "done"]
        assert choice.result.x[bad].isnan().all()
        assert choice.lam[bad].isnan()
        assert choice.result.x[good].isfinite().all()
        assert choice.lam[good].isfinite().all()

    @pytest.mark.parametrize("bad", [0, 1])
    @pytest.mark.parametrize("rule", ["discrepancy", "sure", "held-out", "l-curve"])
    def test_one_image_failing_on_its_own_path(self, rule, bad):
        """A prior without a density for bright images, and one image that starts as one."""
        gaussian = aipo.flows.GaussianFlow(FLOW_SHAPE).requires_grad_(False)
        y = 0.5 + 0.1 * torch.randn(2, *FLOW_SHAPE, generator=torch.Generator().manual_seed(0))
        y[bad] += 0.5
        problem = aipo.MapProblem(Cliff(gaussian, limit=0.7), operators.Denoising(FLOW_SHAPE), aipo.Gaussian(0.1), y)
        choice = aipo.choose_lambda(problem, rule, evals=40)
        assert choice.result.status[bad] == "non finite"
        assert choice.lam[bad].isnan()
        assert choice.result.status[1 - bad] == "done"
        assert choice.result.x[1 - bad].isfinite().all()


class TestCriteria:
    def test_crossing_is_linear_between_logarithms(self):
        lam = torch.tensor([[0.1, 1.0, 10.0]]).expand(4, 3)
        chi2 = torch.tensor([[0.01, 1.0, 100.0]]).expand(4, 3)
        found = crossing(lam, chi2, torch.tensor([0.1, 10.0, 1e-4, 1e4]))
        torch.testing.assert_close(found, torch.tensor([10**-0.5, 10**0.5, 0.1, 10.0]))

    @pytest.mark.parametrize("chi2", [[0.5, 0.9, 0.8], [0.9, 0.5, 0.9], [0.5, 0.9, torch.nan]])
    def test_a_target_that_is_never_reached_gives_the_end(self, chi2):
        """Also where chi^2 dips at the end, as it may where L is not convex."""
        chi2 = torch.tensor([chi2])
        lam = torch.where(chi2.isnan(), torch.nan, torch.tensor([[0.1, 1.0, 10.0]]))
        torch.testing.assert_close(crossing(lam, chi2, torch.ones(1)), lam.nan_to_num().amax(1))

    @given(st.floats(-1.9, 1.9), st.floats(0.1, 10))
    @settings(max_examples=50, deadline=None)
    def test_the_best_of_a_parabola_is_its_vertex(self, vertex, width):
        lam = torch.tensor([[-2.0, -0.7, 0.1, 1.2, 2.0]], dtype=torch.float64).exp()
        found = best(lam, width * (lam.log() - vertex) ** 2)
        torch.testing.assert_close(found, torch.tensor([vertex], dtype=torch.float64).exp(), rtol=1e-6, atol=0)


class TestSigma:
    @given(st.floats(0.03, 0.3), st.integers(0, 1000))
    @settings(max_examples=30, deadline=None)
    def test_of_a_real_face(self, sigma, seed):
        x = aipo.samples.load("astronaut")[None]
        y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        assert abs(estimate_sigma(y).item() / sigma - 1) < 0.15

    def test_one_per_image_and_gray(self):
        scale = torch.tensor([0.05, 0.2]).view(2, 1, 1, 1)
        y = 0.5 + scale * torch.randn(2, 1, 63, 65, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(estimate_sigma(y), scale.flatten(), rtol=0.15, atol=0)

    @pytest.mark.parametrize("sigma", [0.0, 0.05, 0.1])
    def test_of_a_jpeg_file_whose_colors_were_averaged(self, sigma):
        x = aipo.samples.load("astronaut")
        y = (x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
        buffer = io.BytesIO()
        pixels = (y * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90, subsampling="4:2:0")
        found = estimate_sigma(torch.from_numpy(np.array(Image.open(buffer))).permute(2, 0, 1)[None] / 255).item()
        # The noise of the brightness is left, in each channel 0.67 sigma, and a little of the face's texture.
        assert 0.6 * sigma <= found <= 0.9 * sigma + 0.007

    @pytest.mark.parametrize("shape", [(3, 64, 64), (1, 4, 64, 64), (1, 3, 8, 8)])
    def test_bad_shapes(self, shape):
        with pytest.raises(InputError, match="16x16"):
            estimate_sigma(torch.zeros(shape))


def test_finished_images_leave_the_batch(flow, monkeypatch):
    """The last image must not pay for those that are done: one of them starts at its solution."""
    problem = make_problem(flow)
    x0 = aipo.initial.gaussian(problem)
    x0[1] = aipo.FollowPath((0.3,), 200).solve(problem).x[1, 0]
    sizes = []
    evaluate = aipo.MapProblem.evaluate
    monkeypatch.setattr(aipo.MapProblem, "evaluate", lambda self, x: sizes.append(len(x)) or evaluate(self, x))
    result = aipo.FollowPath((0.3,), 60).solve(problem, x0=x0)
    assert result.evals[1, -1] < result.evals[0, -1]
    assert sum(sizes) == result.evals[:, -1].sum()


def smooth_problem(operator, given, true=0.1, batch=3):
    """Images with the spectrum of the surrogate: its likelihood is right."""
    flow = build_flow()
    prior = aipo.Prior(flow)
    surrogate = prior.surrogate
    white = torch.randn(batch, *operator.image_shape, generator=torch.Generator().manual_seed(5))
    x = surrogate.mean + synthesize(white / surrogate.marginal.values.sqrt())
    y = operator.measure(x, aipo.Gaussian(true), seed=6)
    return aipo.MapProblem(prior, operator, aipo.Gaussian(given), y)


class TestWrongSigma:
    @pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
    def test_the_most_likely_one_does_not_depend_on_the_one_given(self, factor):
        blurred = operators.Blur.gaussian(FLOW_SHAPE, 1.0)
        evidence = most_likely_sigma(smooth_problem(blurred, 0.1 * factor, batch=40))
        assert (evidence.sigma / 0.1).log().abs().median() < 0.08
        assert ((evidence.explained > 0) & (evidence.explained < 1)).all()

    def test_it_is_the_maximum_of_the_likelihood(self):
        """Against the density of y itself, with its whole covariance, over a grid of sigma and contrast."""
        operator = operators.Blur.gaussian(FLOW_SHAPE, 1.0)
        problem = smooth_problem(operator, 0.2, batch=1)
        surrogate = problem.prior.surrogate
        basis = torch.eye(N).view(N, *FLOW_SHAPE)
        A = operator.A(basis).flatten(1).T.double()
        images = A @ surrogate.marginal.solve(basis).flatten(1).double() @ A.T
        residual = (problem.y - operator.A(surrogate.mean[None])).flatten().double()

        def log_density(sigma, contrast):
            covariance = contrast * images + sigma**2 * torch.eye(len(residual)).double()
            return torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance).log_prob(residual)

        grid = [(s, c) for s in torch.linspace(0.05, 0.2, 76).tolist() for c in torch.logspace(-1, 1, 21).tolist()]
        best_sigma, _ = max(grid, key=lambda pair: log_density(*pair))
        found = most_likely_sigma(problem).sigma.item()
        assert found == pytest.approx(best_sigma, rel=0.15)  # traces from two probes, eight iterations

    def test_a_wrong_sigma_is_replaced_with_a_warning(self):
        operator = operators.Blur.gaussian(FLOW_SHAPE, 1.0)
        right, wrong = smooth_problem(operator, 0.1), smooth_problem(operator, 0.3)
        trusted = aipo.choose_lambda(wrong, trust_sigma=True)
        assert not trusted.sigma_replaced.any()
        torch.testing.assert_close(trusted.sigma, torch.full((3,), 0.3))
        with pytest.warns(SigmaWarning, match=r"sigma 0.3 contradicts the measurement of image 0, which says 0\.(0|1)"):
            choice = aipo.choose_lambda(wrong)
        assert choice.sigma_replaced.all()
        quiet = aipo.choose_lambda(wrong, trust_sigma=False)
        assert torch.equal(quiet.x, choice.x)
        known = aipo.choose_lambda(right, trust_sigma=True)
        assert (choice.x - known.x).square().mean() < 0.2 * (trusted.x - known.x).square().mean()

    def test_what_only_looks_like_noise_stays(self):
        """Brightness that is white noise, and colors that are not: the prior takes it for noise, the colors do not."""
        grain = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)).expand(-1, 3, -1, -1)
        problem = make_problem(build_flow(), batch=2, operator=operators.Denoising(FLOW_SHAPE))
        y = 0.5 + 0.2 * grain + 0.02 * torch.randn(2, *FLOW_SHAPE, generator=torch.Generator().manual_seed(2))
        textured = aipo.MapProblem(problem.prior, problem.operator, aipo.Gaussian(0.02), y)
        assert most_likely_sigma(textured).contradicts(torch.full((2,), 0.02)).any()
        assert not checked_sigma(textured)[1].any()

    def test_nothing_is_checked_where_nothing_can_be(self):
        nonlinear = operators.Saturation(FLOW_SHAPE)
        problem = make_problem(build_flow(), operator=nonlinear)
        assert not checked_sigma(problem)[1].any()


def test_a_choice_at_the_end_of_the_path_says_so(flow):
    problem = make_problem(flow)
    path = aipo.follow_path(problem, [0.5, 1.0, 2.0])
    for chi2, end in ((1e-6, True), (1e6, True), (path.chi2(problem)[0, 1].item(), False)):
        choice = replace(aipo.choose_lambda(problem, path=path))
        lam = crossing(path.lam, path.chi2(problem), torch.full((3,), chi2))
        moved = replace(choice, result=replace(choice.result, lam=lam))
        assert bool(moved.at_end[0]) is end
    assert not aipo.choose_lambda(problem, "fixed", lam=0.5, path=path).at_end.any()


def test_a_noise_curve_shows_how_noise_grows_with_brightness():
    x = torch.linspace(0.2, 0.8, 256).expand(3, 256, 256)
    y = x + (0.02 + 0.1 * x) * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    curve = noise_curve(y)
    assert list(curve.brightness) == sorted(curve.brightness)
    expected = [0.02 + 0.1 * b for b in curve.brightness]
    assert torch.allclose(torch.tensor(curve.sigma), torch.tensor(expected), rtol=0.1)
    assert abs(curve.correlation) < 0.1
    assert min(curve.sigma) < curve.level < max(curve.sigma)


def test_a_noise_curve_tells_smooth_noise_from_white():
    normal = torch.randn(3, 257, 257, generator=torch.Generator().manual_seed(0))
    smooth = (normal[:, 1:, 1:] + normal[:, :-1, 1:] + normal[:, 1:, :-1] + normal[:, :-1, :-1]) / 4
    curve = noise_curve(0.5 + 0.1 * smooth)
    assert curve.level == pytest.approx(0.05, rel=0.15)
    assert curve.correlation == pytest.approx(0.5, abs=0.15)  # of the mean of 2x2 neighbors


def test_no_noise_curve_of_what_is_cut_off_or_too_small():
    assert noise_curve(torch.ones(3, 64, 64)) is None
    assert noise_curve(torch.full((1, 7, 64), 0.5)) is None
    assert noise_curve(torch.full((1, 8, 8), 0.5)).level == 0
