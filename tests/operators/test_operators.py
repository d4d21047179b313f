"""Every linear operator passes the same tests, against its explicit matrix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aipo.errors import InputError
from aipo.noise import Gaussian, Laplace, as_generator
from aipo.operators import (
    Blur,
    CompressedSensing,
    Denoising,
    FourierSubsampling,
    Grayscale,
    Inpainting,
    LinearOperator,
    Saturation,
    SuperResolution,
)

SHAPE = (3, 8, 8)


class Differences(LinearOperator):
    """A user's operator that defines A only; constant images are in its null space, so A is singular."""

    def __init__(self, image_shape):
        super().__init__(image_shape, measurement_shape=image_shape)

    def A(self, x):
        return x.roll(1, -1) - x


def random_kernel(seed=0):
    # The strong center keeps every frequency well above zero, so that the blur can be undone.
    kernel = torch.rand(3, 4, generator=as_generator(seed))
    kernel[1, 2] += 8
    return kernel / kernel.sum()


def random_mask(shape, seed=0):
    return torch.rand(shape, generator=as_generator(seed)) < 0.6


LINEAR = {
    "denoising": Denoising(SHAPE),
    "inpainting": Inpainting.random_blocks(SHAPE, fraction=0.25, block=2, seed=3),
    "inpainting-channels": Inpainting(random_mask(SHAPE)),
    "compressed-sensing": CompressedSensing(SHAPE, m=60, seed=1),
    "super-resolution": SuperResolution(SHAPE, factor=2),
    "blur": Blur(SHAPE, random_kernel()),
    "blur-lossy": Blur.gaussian(SHAPE, width=1.5),
    "blur-odd": Blur((1, 7, 9), random_kernel()),
    "grayscale": Grayscale(SHAPE),
    "fourier-lines": FourierSubsampling.random(SHAPE, fraction=0.5, center=0.2, seed=0),
    "fourier-points": FourierSubsampling.random(SHAPE, fraction=0.4, center=0.1, seed=0, pattern="points"),
    "fourier-odd": FourierSubsampling((1, 7, 9), random_mask((7, 9))),
    "differences": Differences((2, 4, 6)),
}
EVERY = {**LINEAR, "saturation": Saturation(SHAPE, gain=1.5)}


@pytest.fixture(params=LINEAR.values(), ids=LINEAR.keys())
def op(request):
    return request.param


@pytest.fixture(params=EVERY.values(), ids=EVERY.keys())
def any_op(request):
    return request.param


def images(op, batch=2, seed=0):
    return torch.rand(batch, *op.image_shape, generator=as_generator(seed), dtype=torch.float64)


def measurements(op, batch=2, seed=0):
    return torch.randn(batch, *op.measurement_shape, generator=as_generator(seed), dtype=torch.float64)


def matrix(op):
    """The explicit matrix (m, n), column by column."""
    n = images(op, 1).numel()
    return op.A(torch.eye(n, dtype=torch.float64).reshape(n, *op.image_shape)).flatten(1).T


def pinv(op):
    return torch.linalg.pinv(matrix(op), rtol=getattr(op, "rcond", 1e-10))


def assert_adjoint(op, seed):
    x, y = images(op, seed=seed) - 0.5, measurements(op, seed=seed + 1)
    Ax, Aty = op.A(x), op.A_adjoint(y)
    forward, backward = (Ax * y).flatten(1).sum(1), (x * Aty).flatten(1).sum(1)
    scale = Ax.flatten(1).norm(dim=1) * y.flatten(1).norm(dim=1)
    assert ((forward - backward).abs() / scale).max() < 1e-12


@pytest.mark.parametrize("gamma", [1e-3, 1.0, 1e4])
def test_prox_is_the_minimizer(op, gamma):
    """Against the normal equations with the explicit matrix."""
    z, y, A = images(op), op.restrict(measurements(op)), matrix(op)
    gammas = torch.tensor([gamma, 3 * gamma], dtype=torch.float64)
    found = op.prox_l2(z, y, gammas).flatten(1)
    for i, g in enumerate(gammas):
        normal = torch.eye(len(A.T), dtype=torch.float64) + g * A.T @ A
        expected = torch.linalg.solve(normal, z[i].flatten() + g * A.T @ y[i].flatten())
        error = (found[i] - expected).norm() / expected.norm()
        assert error < 1e-3, error  # conjugate gradients stop there; closed forms are far better


def test_adjoint(op):
    assert_adjoint(op, seed=0)


@given(
    C=st.integers(1, 3),
    h=st.integers(1, 5),
    w=st.integers(1, 5),
    factor=st.integers(1, 2),
    seed=st.integers(0, 999),
)
@settings(max_examples=30, deadline=None)
def test_adjoint_for_any_shape(C, h, w, factor, seed):
    shape = (C, h * factor, w * factor)
    assert_adjoint(SuperResolution(shape, factor), seed)
    assert_adjoint(Inpainting.random_blocks(shape, fraction=0.4, block=factor, seed=seed), seed)
    assert_adjoint(CompressedSensing(shape, m=h, seed=seed), seed)
    assert_adjoint(Blur(shape, torch.randn(h, w, generator=as_generator(seed))), seed)
    assert_adjoint(Grayscale(shape, weights=range(1, C + 1)), seed)
    assert_adjoint(FourierSubsampling.random(shape, 0.5, 0.1, seed, pattern="points"), seed)


def test_A_dagger_is_the_pseudo_inverse(op):
    y = measurements(op)
    expected = (y.flatten(1) @ pinv(op).T).reshape(-1, *op.image_shape)
    torch.testing.assert_close(op.A_dagger(y), expected, rtol=1e-8, atol=1e-8)


def test_defaults_agree_with_closed_forms(op):
    """What a user's operator gets from A alone is what the closed forms give."""
    y = measurements(op)
    torch.testing.assert_close(LinearOperator.A_adjoint(op, y), op.A_adjoint(y), rtol=1e-10, atol=1e-10)
    if op is not LINEAR["blur-lossy"]:  # its closed form cuts off frequencies, the default does not
        torch.testing.assert_close(LinearOperator.A_dagger(op, y), op.A_dagger(y), rtol=1e-7, atol=1e-7)


def test_project_affine_is_the_nearest_point(op):
    x, y = images(op), measurements(op)
    M = matrix(op)
    gap = y.flatten(1) - x.flatten(1) @ M.T
    rcond = getattr(op, "rcond", 1e-10)
    step = torch.linalg.lstsq(M, gap.T, rcond=rcond, driver="gelsd").solution.T
    torch.testing.assert_close(op.project_affine(x, y), x + step.reshape(x.shape), rtol=1e-8, atol=1e-8)


def test_project_meets_both_constraints(op):
    y = op.A(images(op, seed=1))
    x = op.project(3 * images(op) - 1, y, max_iter=1000, tol=1e-10)
    assert x.min() >= 0
    assert x.max() <= 1
    tol = 1e-2 if op is LINEAR["blur-lossy"] else 1e-6
    torch.testing.assert_close(op.A(x), y, rtol=0, atol=tol)
    torch.testing.assert_close(op.project(x, y), x, rtol=0, atol=1e-6)


def test_tangent_is_the_part_in_the_null_space(op):
    v = images(op) - 0.5
    M = matrix(op)
    null_space = torch.eye(M.shape[1], dtype=torch.float64) - pinv(op) @ M
    expected = (v.flatten(1) @ null_space.T).reshape(v.shape)
    torch.testing.assert_close(op.tangent(images(op), v), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("feasible", [True, False])
def test_project_agrees_with_a_long_reference_run(op, feasible):
    start = 3 * images(op) - 1
    y = op.A(images(op, seed=1)) + (0 if feasible else 0.3 * op.restrict(measurements(op)))
    M, M_pinv = matrix(op), pinv(op)
    kept, pulled = torch.eye(M.shape[1], dtype=torch.float64) - M_pinv @ M, y.flatten(1) @ M_pinv.T
    x = start.flatten(1)
    for _ in range(1000):
        x = (x @ kept.T + pulled).clamp(0, 1)
    found = op.project(start, y, max_iter=1000, tol=1e-12)
    torch.testing.assert_close(found, x.reshape(start.shape), rtol=0, atol=1e-6)


def test_project_does_not_depend_on_the_batch(any_op):
    start = torch.cat([images(any_op), 20 * images(any_op, seed=2) - 10])
    y = any_op.A(images(any_op, batch=4, seed=1))
    start[0] = images(any_op, batch=4, seed=1)[0]  # done at once, while its neighbors go on
    together = any_op.project(start, y)
    for i in range(4):
        alone = any_op.project(start[i : i + 1], y[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(together[0], start[0], rtol=0, atol=1e-10)


def test_measure_is_reproducible(any_op):
    x, noise = images(any_op), Gaussian(0.1)
    y = any_op.measure(x, noise, seed=1)
    assert y.shape == (2, *any_op.measurement_shape)
    assert torch.equal(y, any_op.measure(x, noise, seed=1))
    assert torch.equal(y, any_op.measure(x, noise, seed=as_generator(1)))
    assert not torch.equal(y, any_op.measure(x, noise, seed=2))
    generator = as_generator(1)
    assert not torch.equal(any_op.measure(x, noise, generator), any_op.measure(x, noise, generator))


def test_noise_falls_on_what_is_observed_only(any_op):
    e = any_op.measure(images(any_op), Laplace(0.1), seed=1) - any_op.A(images(any_op))
    assert (e != 0).flatten(1).sum(1).tolist() == [any_op.num_measurements] * 2
    assert torch.equal(any_op.restrict(e), e)


def test_gradients_flow_through_A(op):
    x, y = images(op).requires_grad_(), measurements(op)
    (op(x) * y).sum().backward()
    torch.testing.assert_close(x.grad, op.A_adjoint(y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype(any_op, dtype):
    x = images(any_op)
    y = any_op.A(x.to(dtype))
    atol = 30 * torch.finfo(dtype).eps
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), any_op.A(x), rtol=0, atol=atol)
    if any_op.linear and any_op is not LINEAR["differences"]:
        image = any_op.A_dagger(y)
        assert image.dtype == any_op.A_adjoint(y).dtype == dtype
        torch.testing.assert_close(image.double(), any_op.A_dagger(y.double()), rtol=0, atol=1000 * atol)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_operators_follow_the_device(any_op):
    x = images(any_op)
    y = any_op.measure(x, Gaussian(0.1), seed=0)
    on_gpu = any_op.measure(x.cuda(), Gaussian(0.1), seed=0)
    torch.testing.assert_close(on_gpu.cpu(), y, rtol=1e-10, atol=1e-10)
    projected = any_op.project(x.cuda(), on_gpu)
    torch.testing.assert_close(projected.cpu(), any_op.project(x, y), rtol=0, atol=1e-5)


def test_shape_mismatches_name_both_shapes(any_op):
    x, y = images(any_op), measurements(any_op)
    C, H, W = any_op.image_shape
    for bad in (x[0], x[..., :-1], x[:, :, None]):
        for call in (any_op.A, lambda x: any_op.measure(x, Gaussian(1), 0), lambda x: any_op.project(x, y)):
            if call == any_op.A and any_op is LINEAR["differences"]:
                continue
            with pytest.raises(InputError) as error:
                call(bad)
            assert str(tuple(bad.shape)) in str(error.value)
            assert f"(B, {C}, {H}, {W})" in str(error.value)
            assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"^measurement has shape .* needs .*$"):
        any_op.project(x, y[..., :-1])
    with pytest.raises(InputError, match=r"^there are 2 images .* for 1 measurements .*$"):
        any_op.project(x, y[:1])
    with pytest.raises(InputError, match=r"^images are torch.float32 and measurements torch.float64; .*$"):
        any_op.project(x.float(), y)
    with pytest.raises(InputError, match=r"^image has dtype torch.uint8; .*$"):
        any_op.measure((255 * x).to(torch.uint8), Gaussian(1), 0)


class TestSubset:
    """Some measurements of an operator are an operator."""

    @pytest.fixture
    def kept(self, any_op):
        return torch.rand(any_op.measurement_shape, generator=as_generator(5)) < 0.7

    def test_what_is_kept_is_unchanged_and_the_rest_is_zero(self, any_op, kept):
        x, y = images(any_op), measurements(any_op)
        reduced = any_op.subset(kept)
        torch.testing.assert_close(reduced.A(x), any_op.A(x) * kept)
        # A matrix with rows of zeros measures zeros there; the others say that they are not observed.
        if not isinstance(any_op, CompressedSensing):
            assert torch.equal(reduced.restrict(y), any_op.restrict(y) * kept)
            observed = any_op.restrict(torch.ones_like(y[:1])).bool() & kept
            assert reduced.num_measurements == observed.sum()

    def test_it_is_an_operator_in_every_respect_that_solvers_need(self, any_op, kept):
        reduced = any_op.subset(kept)
        assert reduced.linear == any_op.linear
        assert (reduced.image_shape, reduced.measurement_shape) == (any_op.image_shape, any_op.measurement_shape)
        x, v, u = images(any_op), images(any_op, seed=1) - 0.5, measurements(any_op)
        pulled = reduced.adjoint_at(x, u)
        pushed = torch.func.jvp(reduced.A, (x,), (v,))[1]
        torch.testing.assert_close((pushed * u).flatten(1).sum(1), (v * pulled).flatten(1).sum(1))

    def test_a_subset_of_a_subset(self, any_op, kept):
        again = torch.rand(any_op.measurement_shape, generator=as_generator(6)) < 0.7
        x = images(any_op)
        torch.testing.assert_close(any_op.subset(kept).subset(again).A(x), any_op.A(x) * kept * again)

    def test_closed_forms_stay(self):
        kept = random_mask(SHAPE)
        assert isinstance(Denoising(SHAPE).subset(kept), Inpainting)
        assert isinstance(LINEAR["inpainting"].subset(kept), Inpainting)
        rows = torch.rand(60, generator=as_generator(5)) < 0.7
        assert isinstance(LINEAR["compressed-sensing"].subset(rows), CompressedSensing)

    def test_kept_must_have_the_shape_of_a_measurement(self, any_op):
        with pytest.raises(InputError, match="kept has shape"):
            any_op.subset(torch.ones(2, 2, 2))
