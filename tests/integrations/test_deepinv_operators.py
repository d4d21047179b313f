"""Our operators as deepinv's physics: deepinv's own tests of its operators, run on ours."""

import doctest

import pytest
import torch

import aipo
from aipo import operators
from aipo.noise import as_generator

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")
theirs = pytest.importorskip("deepinv.tests.test_physics", reason="this deepinv comes without its tests")

import aipo.integrations.deepinv.physics as module  # noqa: E402
from aipo.integrations.deepinv import as_physics  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = (3, 8, 8)


def kernel():
    weights = torch.rand(3, 3, generator=as_generator(0))
    weights[1, 1] += 8
    return weights / weights.sum()


class Differences(operators.LinearOperator):
    """A user's operator, of which only A is known."""

    def __init__(self, image_shape):
        super().__init__(image_shape, image_shape)

    def A(self, x):
        return x.roll(1, -1) - x


OURS = {
    "denoising": lambda: operators.Denoising(SHAPE),
    "inpainting": lambda: operators.Inpainting.random_blocks(SHAPE, fraction=0.25, block=2, seed=3),
    "bayer": lambda: operators.Inpainting.bayer(SHAPE),
    "sensing": lambda: operators.CompressedSensing(SHAPE, m=60, seed=1),
    "superresolution": lambda: operators.SuperResolution(SHAPE, factor=2),
    "blur": lambda: operators.Blur(SHAPE, kernel()),
    "motion": lambda: operators.Blur.motion(SHAPE, length=3, angle=30),
    "grayscale": lambda: operators.Grayscale(SHAPE),
    "fourier": lambda: operators.FourierSubsampling.random(SHAPE, fraction=0.5, center=0.2, seed=0),
    "user": lambda: Differences(SHAPE),
}


@pytest.fixture(params=OURS)
def name(request, monkeypatch):
    """One of ours where deepinv's tests look for one of theirs."""

    def find_operator(name, device, imsize=None, get_physics_param=False):
        operator = OURS[name]()
        basis = torch.eye(3 * 8 * 8, dtype=torch.float64).view(-1, *SHAPE)
        norm = torch.linalg.matrix_norm(operator.A(basis).flatten(1), 2) ** 2
        found = as_physics(operator, aipo.Gaussian(1e-9)), SHAPE, norm.float(), torch.float
        return (*found, []) if get_physics_param else found

    monkeypatch.setattr(theirs, "find_operator", find_operator)
    monkeypatch.setattr(theirs, "OPERATORS", list(OURS))
    return request.param


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def test_adjointness(name, rng):
    theirs.test_operators_adjointness(name, "cpu", rng)


def test_norm(name, rng):
    theirs.test_operators_norm(name, False, "cpu", rng)


@pytest.mark.parametrize("implicit_backward", [True, False])
def test_pseudo_inverse(name, implicit_backward, rng):
    theirs.test_pseudo_inverse(name, "cpu", rng, implicit_backward)


def test_concatenation(name):
    torch.manual_seed(0)
    theirs.test_concatenation(name, "cpu")


def test_differentiability(name):
    theirs.test_operators_differentiability(name, "cpu")


def test_device_consistency(name):
    theirs.test_device_consistency(name)


def test_state_dict(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    theirs.test_physics_state_dict(name, "cpu")


def test_adjoint_by_autograd(name):
    torch.manual_seed(0)
    theirs.test_adjoint_autograd(name, "cpu")


def test_clone(name):
    theirs.test_clone(name, "cpu")


def test_prox_is_that_of_their_iterations(name):
    """The closed forms against `LinearPhysics.prox_l2`, which knows A and its adjoint only."""
    physics = as_physics(OURS[name]())
    plain = deepinv.physics.LinearPhysics(A=physics.A, A_adjoint=physics.A_adjoint)
    z = torch.rand(2, *SHAPE, generator=as_generator(0))
    y = physics.A(torch.rand(2, *SHAPE, generator=as_generator(1)))
    expected = plain.prox_l2(z, y, 3.0, max_iter=500, tol=1e-7)
    torch.testing.assert_close(physics.prox_l2(z, y, 3.0), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(physics.prox_l2(z, y, torch.full((2, 1, 1, 1), 3.0)), expected, rtol=1e-3, atol=1e-4)


def test_parameters_and_noise():
    physics = as_physics(operators.Inpainting(torch.ones(SHAPE)), aipo.Gaussian(0.1))
    x, mask = torch.rand(2, *SHAPE, generator=as_generator(0)), torch.zeros(1, *SHAPE)
    mask[..., :4] = 1
    y = physics(x, mask=mask)
    assert (y[..., 4:] == 0).all()
    assert torch.equal(physics.A(x), mask * x)  # as in deepinv, from then on
    assert (y - mask * x).std() > 0.05
    generator = torch.Generator().manual_seed(3)
    noise = as_physics(operators.Denoising(SHAPE), deepinv.physics.GaussianNoise(0.1, rng=generator))
    assert (noise(x) - x).std().item() == pytest.approx(0.1, rel=0.1)


def test_a_nonlinear_operator():
    physics = as_physics(operators.Saturation(SHAPE), aipo.Gaussian(0.01))
    x = torch.rand(2, *SHAPE, generator=as_generator(0))
    assert not isinstance(physics, deepinv.physics.LinearPhysics)
    torch.testing.assert_close(physics.A_dagger(physics.A(x)), x, rtol=0, atol=1e-3)
    v = torch.rand(2, *SHAPE, generator=as_generator(1))
    slope = 4 * physics.A(x) * (1 - physics.A(x))
    torch.testing.assert_close(physics.A_vjp(x, v), slope * v)


def test_the_example_holds():
    failures, tried = doctest.testmod(module)
    assert tried
    assert not failures
