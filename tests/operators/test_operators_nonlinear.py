"""Nonlinear operators: derivatives against finite differences, projections against known answers."""

import pytest
import torch

from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.operators import NonlinearOperator, Saturation, SuperResolution

SHAPE = (3, 8, 8)


class PooledNonlinear(NonlinearOperator):
    """A user's operator: fewer measurements than pixels, then a nonlinear sensor."""

    def __init__(self, sensor):
        self.pool = SuperResolution(SHAPE, 2)
        self.sensor = sensor
        super().__init__(SHAPE, self.pool.measurement_shape)

    def A(self, x):
        return self.sensor(self.pool.A(x))


def curved(pooled):
    return pooled + pooled**2


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=as_generator(seed), dtype=torch.float64)


def test_saturation_formula():
    op = Saturation((1, 1, 5), gain=1)
    x = torch.tensor([-1e3, 0.0, 0.5, 1.0, 1e3], dtype=torch.float64).reshape(1, 1, 1, 5)
    sigmoid2 = 0.8807970779778823
    expected = torch.tensor([0, 1 - sigmoid2, 0.5, sigmoid2, 1], dtype=torch.float64).reshape(x.shape)
    torch.testing.assert_close(op.A(x), expected)
    middle = torch.linspace(0.4, 0.6, 5, dtype=torch.float64).reshape(1, 1, 1, 5)
    torch.testing.assert_close(op.A(middle), middle, rtol=0, atol=2e-3)


@pytest.mark.parametrize("op", [Saturation(SHAPE, gain=2), PooledNonlinear(curved)], ids=repr)
def test_jacobian_against_finite_differences(op):
    x, v, h = rand(2, *SHAPE), rand(2, *SHAPE, seed=1) - 0.5, 1e-5
    Jv = torch.func.jvp(op.A, (x,), (v,))[1]
    torch.testing.assert_close(Jv, (op.A(x + h * v) - op.A(x - h * v)) / (2 * h), rtol=1e-6, atol=1e-9)
    u = torch.randn(Jv.shape, generator=as_generator(2), dtype=torch.float64)
    Jtu = torch.func.vjp(op.A, x)[1](u)[0]
    torch.testing.assert_close((Jv * u).sum(), (v * Jtu).sum())


@pytest.mark.parametrize(
    "op", [Saturation(SHAPE, gain=1), Saturation(SHAPE, gain=2), PooledNonlinear(curved)], ids=repr
)
def test_project_reaches_a_feasible_measurement(op):
    y = op.A(rand(3, *SHAPE, seed=1))
    x = op.project(3 * rand(3, *SHAPE) - 1, y)
    torch.testing.assert_close(op.A(x), y, rtol=0, atol=1e-6)
    assert x.min() >= 0
    assert x.max() <= 1
    torch.testing.assert_close(op.project(x, y), x, rtol=0, atol=1e-5)


def test_tangent_leaves_f_unchanged_to_first_order():
    op = PooledNonlinear(curved)
    x, v = rand(2, *SHAPE), rand(2, *SHAPE, seed=1) - 0.5
    t = op.tangent(x, v)
    assert torch.func.jvp(op.A, (x,), (t,))[1].abs().max() < 1e-10
    normal = torch.func.vjp(op.A, x)[1](torch.ones(2, *op.measurement_shape, dtype=torch.float64))[0]
    torch.testing.assert_close((normal * t).sum(), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(op.tangent(x, t), t, rtol=0, atol=1e-10)
    torch.testing.assert_close((t * t).sum(), (t * v).sum())  # t is the orthogonal projection of v


def test_project_inverts_the_saturation():
    truth = rand(2, *SHAPE, seed=1)
    op = Saturation(SHAPE, gain=2)
    torch.testing.assert_close(op.project(rand(2, *SHAPE), op.A(truth)), truth, rtol=0, atol=1e-6)


def test_project_of_a_linear_f_is_the_nearest_point():
    op = PooledNonlinear(lambda pooled: 3 * pooled)
    x = 0.4 + 0.2 * rand(2, *SHAPE)  # far enough from 0 and 1 that no bound is met
    y = 3 * op.pool.A(0.4 + 0.2 * rand(2, *SHAPE, seed=1))
    torch.testing.assert_close(op.project(x, y), op.pool.project_affine(x, y / 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("gain", [0.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_least_squares_when_y_is_out_of_range(gain, dtype):
    op = Saturation(SHAPE, gain)
    y = (3 * rand(2, *SHAPE) - 1).to(dtype)
    # f is increasing in each pixel: the best pixel of [0,1] is the clipped inverse.
    best = (0.5 + torch.logit(y.clamp(1e-6, 1 - 1e-6)) / (4 * gain)).clamp(0, 1)
    x = op.least_squares(y)
    assert x.dtype == dtype
    torch.testing.assert_close(x, best, rtol=0, atol=1e-4)
    torch.testing.assert_close(op.least_squares(y, x0=rand(2, *SHAPE, seed=3).to(dtype)), best, rtol=0, atol=1e-4)


def test_least_squares_with_fewer_measurements_than_pixels():
    op = PooledNonlinear(curved)
    y = 4 * rand(2, 3, 4, 4) - 1
    x = op.least_squares(y)
    torch.testing.assert_close(op.A(x), y.clamp(0, 2), rtol=0, atol=1e-4)


def test_least_squares_needs_a_measurement():
    with pytest.raises(InputError, match=r"^measurement has shape \(2, 3, 8, 7\); .*$"):
        Saturation(SHAPE).least_squares(rand(2, 3, 8, 7))
