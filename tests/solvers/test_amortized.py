"""Algorithm 2 line by line, replayed from its trajectory, its options, and where it starts: the MLE, G(0), a draw."""

import math
from itertools import pairwise

import pytest
import torch

import aipo
from aipo import initial, operators
from aipo.errors import InputError
from aipo.solvers import Amortized
from small_problem import SHAPE, build_flow, make_problem


@pytest.fixture(scope="module")
def flow():
    return build_flow()


@pytest.fixture(scope="module")
def solved(flow):
    problem = make_problem(flow)
    solver = Amortized(K=6)
    return solver, problem, solver.solve(problem, TestAmortized.LAMBDA, initial.mle(problem, 20).x)


class TestAmortized:
    """Algorithm 2 line by line, replayed from its trajectory."""

    LAMBDA = 0.8

    def rounds(self, result, i):
        columns = {name: values[i] for name, values in result.trajectory.items()}
        count = int((~columns["lam"].isnan()).sum())
        return [{name: values[j].item() for name, values in columns.items()} for j in range(count)]

    def test_defaults_are_the_papers(self):
        solver = Amortized()
        assert (solver.alpha, solver.K, solver.r, solver.delta_min_share) == (0.05, 40, 0.05, 1 / 20)
        assert (solver.K_growth, solver.alpha_decay, solver.last_K) == (1.1, 0.99, None)

    def test_starts_at_zero_and_ends_at_lambda(self, solved):
        _, _, result = solved
        for i in range(3):
            lams = [r["lam"] for r in self.rounds(result, i)]
            assert lams[0] == 0
            assert lams[-1] == torch.tensor(self.LAMBDA).item()
            assert all(a < b for a, b in pairwise(lams))

    def test_step_8_the_increment_of_lam(self, flow):
        """delta = r |D/P + lam| wherever that exceeds the largest delta_min, and the last step lands on Lambda."""
        problem = make_problem(flow)
        solver = Amortized(K=3, K_growth=1.0, r=0.3, delta_min_share=0.01)
        result = solver.solve(problem, self.LAMBDA, initial.zero(problem))
        for i in range(3):
            checked = 0
            for now, then in pairwise(self.rounds(result, i)):
                wanted = 0.3 * abs(now["D"] / now["P"] + now["lam"])
                assert then["lam"] == pytest.approx(now["lam"] + now["delta"], rel=1e-5)
                if wanted > 4 * 0.01 * self.LAMBDA:
                    assert now["delta"] == pytest.approx(min(wanted, self.LAMBDA - now["lam"]), rel=1e-3)
                    checked += 1
            assert checked >= 3

    def test_steps_9_and_10_the_smallest_increment(self, flow):
        """delta_min replayed: the power of the ratio of relative changes, clipped to a quarter and four times."""
        problem = make_problem(flow, batch=1)
        solver = Amortized(K=6, r=1e-6)  # r this small: delta is always delta_min
        x0 = initial.mle(problem, 20).x
        states = []
        result = solver.solve(problem, self.LAMBDA, x0)
        state = solver.init(problem, self.LAMBDA, x0)
        while state.running.any():
            states.append(state)
            state = solver.step(problem, state)
        start = self.LAMBDA / 20
        delta_min, last_change = start, None
        rounds = self.rounds(result, 0)
        for j, row in enumerate(rounds[:-1]):
            remaining = self.LAMBDA - row["lam"]
            assert row["delta"] == pytest.approx(min(delta_min, remaining), rel=1e-4)
            L_start = next(s.L_start.item() for s in states if s.round.item() == j and s.k.item() >= 1)
            change = abs((L_start - row["L"]) / L_start)
            if last_change is not None:
                delta_min = min(max(delta_min ** (change / last_change), start / 4), min(4 * start, 1.0))
            last_change = change

    def test_step_12_K_grows_and_evaluations_add_up(self, solved):
        _, _, result = solved
        for i in range(3):
            rounds = self.rounds(result, i)
            assert [r["K"] for r in rounds] == [math.floor(6 * 1.1**j) for j in range(len(rounds))]
            assert result.evals[i].item() == sum(r["K"] for r in rounds) + 1

    def test_the_last_row_is_the_result(self, solved):
        _, problem, result = solved
        for i in range(3):
            last = self.rounds(result, i)[-1]
            assert last["L"] == pytest.approx(result.loss[i].item(), rel=1e-5)
        torch.testing.assert_close(result.loss, problem.loss(result.x, self.LAMBDA), rtol=1e-5, atol=1e-3)

    def test_as_printed_it_never_solves_at_lambda(self, flow):
        problem = make_problem(flow)
        result = Amortized(K=6, last_round="as printed").solve(problem, self.LAMBDA, initial.zero(problem))
        assert result.status == ["done"] * 3
        for i in range(3):
            last = self.rounds(result, i)[-1]
            assert last["lam"] < self.LAMBDA
            assert last["lam"] + last["delta"] == pytest.approx(self.LAMBDA)

    def test_without_the_round_at_zero_it_starts_at_delta_min(self, flow):
        problem = make_problem(flow)
        x0 = initial.mle(problem, 20).x
        solver = Amortized(K=6, first_round="at delta_min")
        result = solver.solve(problem, self.LAMBDA, x0)
        assert result.status == ["done"] * 3
        for i in range(3):
            rounds = self.rounds(result, i)
            assert rounds[0]["lam"] == pytest.approx(self.LAMBDA / 20)
            assert rounds[-1]["lam"] == torch.tensor(self.LAMBDA).item()
            assert [r["K"] for r in rounds] == [math.floor(6 * 1.1**j) for j in range(len(rounds))]
            assert result.evals[i].item() == sum(r["K"] for r in rounds) + 1
        assert solver.budget(None) == Amortized(K=6).budget(None) - math.floor(6 * 1.1**20)
        # At Lambda = 0 there is no smaller lam to start at.
        assert solver.solve(problem, 0.0, x0).evals.tolist() == [7] * 3

    def test_the_round_at_zero_spoils_a_start_that_meets_the_measurement(self, flow):
        """f(x0) = y: at lam = 0 the gradient is rounding noise, which Adam makes a step of alpha in every pixel."""
        operator = operators.CompressedSensing(SHAPE, m=40)
        x = 0.3 + 0.4 * torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(5))
        problem = aipo.MapProblem(flow, operator, aipo.Gaussian(0.1), operator.A(x))
        start = initial.mle(problem, 100)
        evaluation = problem.evaluate(start.x)
        assert evaluation.grad_D.abs().max() < 1e-3 * evaluation.grad_P.abs().max()
        _, state, *_ = Amortized(K=6).states(problem, 0.3, start.x)
        assert (state.x - start.x).abs().flatten(1).median(1).values.min() > 0.04
        after = Amortized(K=6).solve(problem, 0.3, start.x).trajectory
        assert (after["lam"][:, 0] == 0).all()
        assert (after["P"][:, 0] > start.P + 2).all()

    def test_the_readings_differ(self, flow):
        problem = make_problem(flow)
        x0 = initial.zero(problem)
        options = [{}, {"moments": "keep"}, {"delta_min_rule": "ratio"}, {"direction": "gradient", "alpha": 1e-5}]
        losses = [Amortized(**{"K": 6, **o}).solve(problem, self.LAMBDA, x0).loss for o in options]
        for i in range(len(losses)):
            for j in range(i):
                assert not torch.equal(losses[i], losses[j]), (options[i], options[j])

    def test_alpha_decays_at_every_step_or_every_round(self, flow):
        problem, alphas = make_problem(flow), {}
        for decay in ("step", "round"):
            solver = Amortized(K=6, K_growth=1.0, decay=decay)
            state = solver.init(problem, self.LAMBDA, initial.zero(problem))
            for _ in range(10):
                state = solver.step(problem, state)
            alphas[decay] = state.alpha
        # Ten steps; one round of six of them is over.
        torch.testing.assert_close(alphas["step"], torch.full_like(alphas["step"], 0.05 * 0.99**10))
        torch.testing.assert_close(alphas["round"], torch.full_like(alphas["round"], 0.05 * 0.99))

    def test_lambda_zero_is_one_round(self, flow):
        problem = make_problem(flow)
        result = Amortized(K=6).solve(problem, 0.0, initial.zero(problem))
        assert result.status == ["done"] * 3
        assert result.evals.tolist() == [7] * 3

    def test_the_mle_start_is_counted(self, flow):
        problem = make_problem(flow)
        start = initial.mle(problem, 15)
        default = Amortized(K=2, mle_iterations=15).solve(problem, 0.3)
        given = Amortized(K=2, mle_iterations=15).solve(problem, 0.3, start.x)
        assert torch.equal(default.evals, given.evals + start.evals)
        assert torch.equal(default.x, given.x)

    def test_limits(self, flow):
        problem = make_problem(flow)
        result = Amortized(max_evals=30).solve(problem, 1.0, initial.zero(problem))
        assert result.status == ["max evaluations"] * 3
        assert result.evals.tolist() == [30] * 3
        result = Amortized(K=2, max_rounds=3).solve(problem, 1.0, initial.zero(problem))
        assert result.status == ["max evaluations"] * 3

    @pytest.mark.parametrize(
        "bad",
        [
            *({"K": 0}, {"r": 0.0}, {"r": 1.0}, {"delta_min_share": 0.0}),
            *({"moments": "forget"}, {"last_round": "no"}, {"first_round": "no"}),
        ],
    )
    def test_bad_options(self, bad):
        with pytest.raises(InputError):
            Amortized(**bad)


class TestStarts:
    def test_zero_is_the_mode_of_the_latents(self, flow):
        problem = make_problem(flow)
        x = initial.zero(problem)
        assert x.shape == (3, *SHAPE)
        torch.testing.assert_close(flow.encode(x), torch.zeros(3, 192), atol=1e-4, rtol=0)

    def test_random_draws_from_the_prior(self, flow):
        problem = make_problem(flow)
        assert torch.equal(initial.random(problem, 1), initial.random(problem, 1))
        assert not torch.equal(initial.random(problem, 1), initial.random(problem, 2))
        assert flow.encode(initial.random(problem, 1)).std().item() == pytest.approx(1, abs=0.1)

    def test_denoising_clips_y(self, flow):
        problem = make_problem(flow, operator=operators.Denoising(SHAPE))
        assert ((problem.y < 0) | (problem.y > 1)).any()
        result = initial.mle(problem)
        assert torch.equal(result.x, problem.y.clamp(0, 1))
        assert result.evals.tolist() == [0] * 3
        torch.testing.assert_close(result.loss, problem.D(result.x), rtol=1e-5, atol=1e-3)

    @pytest.mark.parametrize(
        "operator",
        [
            operators.Inpainting.random_blocks(SHAPE, 0.25, 4, 0),
            operators.CompressedSensing(SHAPE, m=40),
            operators.SuperResolution(SHAPE, 2),
        ],
        ids=["inpainting", "sensing", "superresolution"],
    )
    def test_mle_is_feasible_and_more_probable_than_where_it_started(self, flow, operator):
        x = 0.3 + 0.4 * torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(5))
        y = operator.A(x)  # no noise: y can be met within [0, 1]
        problem = aipo.MapProblem(flow, operator, aipo.Gaussian(0.1), y)
        result = initial.mle(problem, 100)
        assert ((result.x >= 0) & (result.x <= 1)).all()
        torch.testing.assert_close(operator.A(result.x), y, atol=1e-3, rtol=0)
        with torch.no_grad():
            start = operator.project(initial.zero(problem), y)
            assert (result.P < problem.P(start) - 1).all()

    def test_mle_of_a_nonlinear_operator_is_found_by_optimization(self, flow):
        operator = operators.Saturation(SHAPE, gain=1.5)
        x = 0.1 + 0.8 * torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(6))
        problem = aipo.MapProblem(flow, operator, aipo.Gaussian(0.05), operator.A(x))
        result = initial.mle(problem, 20)
        assert result.status == ["done"] * 2
        torch.testing.assert_close(result.x, x, atol=1e-3, rtol=0)
