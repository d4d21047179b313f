"""Where solves start: G(0), a draw, and the maximum-likelihood solution."""

import pytest
import torch

import aipo
from aipo import initial, operators
from small_problem import SHAPE, build_flow, make_problem


@pytest.fixture(scope="module")
def flow():
    return build_flow()


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
