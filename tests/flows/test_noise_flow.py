"""The noise flow is an exact density of images of any size, in color and in gray, at every noise level."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.flows.any_size import COLORS, existence
from small_problem import build_noise_flow

# Even and odd sides, sides of one pixel, sides below the stride, color and gray.
SHAPES = [(3, 8, 8), (3, 5, 7), (1, 6, 5), (1, 8, 8), (3, 1, 1), (1, 1, 9), (3, 9, 1), (3, 2, 3)]


@pytest.fixture(scope="module")
def flow():
    return build_noise_flow()


def images(*shape, seed=1):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LEVELS = torch.tensor([0.02, 0.1], dtype=torch.float64)


def flat(parts):
    return torch.cat([z.flatten() for z in (*parts.details, parts.average)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_density_is_that_of_the_full_jacobian(flow, shape):
    y = images(2, *shape)
    jacobian = torch.autograd.functional.jacobian(lambda v: flat(flow(v[None], LEVELS[1:])[0]), y[1])
    jacobian = jacobian.reshape(-1, math.prod(shape))
    # Latents of what does not exist are zero whatever the image; all others count, and there are as many as values.
    jacobian = jacobian[jacobian.abs().sum(1) > 0]
    assert jacobian.shape == (math.prod(shape), math.prod(shape))
    _, log_det = flow(y, LEVELS)
    torch.testing.assert_close(log_det[1], torch.linalg.slogdet(jacobian).logabsdet, atol=1e-9, rtol=0)
    squares = flat(flow(y[1:], LEVELS[1:])[0]).square().sum()
    expected = log_det[1] - 0.5 * squares - 0.5 * math.prod(shape) * math.log(2 * math.pi)
    torch.testing.assert_close(flow.log_prob(y, LEVELS)[1], expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inverse(flow, shape):
    y = images(2, *shape)
    latents, _ = flow(y, LEVELS)
    torch.testing.assert_close(flow.decode(latents, LEVELS, shape), y, atol=1e-10, rtol=0)


@settings(max_examples=25, deadline=None)
@given(height=st.integers(1, 13), width=st.integers(1, 13), gray=st.booleans())
def test_any_size_has_a_density_and_an_inverse(flow, height, width, gray):
    shape = (1 if gray else 3, height, width)
    y = flow.sample((2, *shape), LEVELS, seed=3)
    assert y.shape == (2, *shape)
    assert flow.log_prob(y, LEVELS).isfinite().all()
    torch.testing.assert_close(flow.decode(flow(y, LEVELS)[0], LEVELS, shape), y, atol=1e-8, rtol=0)


def test_an_image_does_not_see_its_batch(flow):
    y = images(2, 3, 7, 8)
    alone = torch.cat([flow.log_prob(y[i : i + 1], LEVELS[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(flow.log_prob(y, LEVELS), alone, rtol=1e-12, atol=0)


def test_derivative_in_the_noise_level_matches_finite_differences(flow):
    y, s = images(2, 3, 6, 6), LEVELS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(flow.log_prob(y, s).sum(), s)
    h = 1e-6 * LEVELS
    differences = (flow.log_prob(y, LEVELS + h) - flow.log_prob(y, LEVELS - h)) / (2 * h)
    torch.testing.assert_close(slope, differences.detach(), rtol=1e-6, atol=1e-4)


def test_samples_are_standard_normal_latents(flow):
    s = torch.full((64,), 0.1, dtype=torch.float64)
    y = flow.sample((64, 1, 5, 7), s, temperature=0.5, seed=1)
    z = flat(flow(y, s)[0])
    z = z[z != 0]
    assert len(z) == 64 * 35
    assert abs(z.std().item() - 0.5) < 0.02
    assert torch.equal(y, flow.sample((64, 1, 5, 7), s, temperature=0.5, seed=1))


def test_a_new_flow_is_a_gaussian_with_the_variance_of_bands_and_noise():
    """Before training, couplings are the identity, so the density of the whole is known in closed form."""
    flow = NoiseFlow([2], [4], [1], embedding=8).double()
    flow.variances.fill_(0.3)
    y, s = images(2, 3, 2, 2), LEVELS
    variance = 0.3 + s.square()
    expected = -0.5 * (y - 0.5).square().flatten(1).sum(1) / variance - 6 * torch.log(2 * math.pi * variance)
    torch.testing.assert_close(flow.log_prob(y, s), expected)


def test_variances_are_those_of_the_bands():
    flow = NoiseFlow([1, 1], [4, 4], [1, 1], embedding=8).double()
    x = 0.5 + 0.2 * torch.randn(4096, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flow.initialize(x)
    torch.testing.assert_close(flow.variances, torch.full_like(flow.variances, 0.04), rtol=0.05, atol=0)


@pytest.mark.parametrize(("height", "width", "gray", "count"), [(3, 5, False, 45), (4, 4, True, 16), (1, 1, True, 1)])
def test_as_many_coefficients_exist_as_there_are_values(height, width, gray, count):
    exists, _ = existence(height, width, gray, torch.float64, torch.device("cpu"))
    assert exists.sum() == count


def test_all_coefficients_of_an_even_color_image_exist():
    assert existence(4, 6, False, torch.float64, torch.device("cpu")) == (None, 0.0)


def test_levels_need_one_number_each():
    with pytest.raises(InputError, match="each level"):
        NoiseFlow([2, 2], [4], [1, 1])


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_temperature(flow, bad):
    with pytest.raises(InputError, match="temperature"):
        flow.sample((2, COLORS, 4, 4), LEVELS, temperature=bad)
