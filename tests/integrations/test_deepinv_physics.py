"""deepinv's physics as our operators: our contract, against the explicit matrix, on every one it tests itself."""

import pytest
import torch

import aipo
from aipo import operators
from aipo.errors import InputError
from aipo.noise import as_generator
from aipo.operators.from_physics import LinearFromPhysics, pack

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")
theirs = pytest.importorskip("deepinv.tests.test_physics", reason="this deepinv comes without its tests")

pytestmark = pytest.mark.filterwarnings("ignore")

# What measures volumes and films, of which there are none here.
NOT_IMAGES = {"3Ddeblur_valid", "3Ddeblur_circular", "pet_3d", "DynamicMRI", "3DMRI", "3DMultiCoilMRI"}
NOT_IMAGES |= {"radio", "radio_weighted"}
# Too many numbers for a matrix.
LARGE = ["hyperspectral_unmixing", "cassi-ss", "cassi-sd", "ptychography_linear"]
IMAGES = [name for name in theirs.OPERATORS if name not in NOT_IMAGES.union(LARGE)]


def random(*shape, seed):
    return torch.randn(*shape, generator=as_generator(seed))


@pytest.fixture(scope="module", params=IMAGES)
def known(request):
    """An operator of theirs, its physics, and its matrix (m, n)."""
    torch.manual_seed(0)
    physics, shape, _, _ = theirs.find_operator(request.param, "cpu")  # skips what needs another package
    operator = operators.from_physics(physics, shape)
    n = shape[0] * shape[1] * shape[2]
    with torch.no_grad():
        columns = [operator.A(part).flatten(1) for part in torch.eye(n).view(n, *shape).split(64)]
    return operator, physics, torch.cat(columns).T.double()


def test_it_measures_what_the_physics_does(known):
    operator, physics, matrix = known
    x = random(2, *operator.image_shape, seed=0)
    y = operator.A(x)
    given = x.to(torch.complex128) if "Complex" in str(getattr(physics, "_A", x).type()) else x
    expected = torch.cat([pack(physics.A(image)) for image in given.split(1)]).to(y.dtype)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    scale = y.abs().max().item()
    torch.testing.assert_close(y.flatten(1), (x.flatten(1).double() @ matrix.T).float(), rtol=1e-3, atol=1e-4 * scale)
    assert operator.num_measurements == int((matrix != 0).any(1).sum())
    assert torch.equal(operator.restrict(y), y)


def test_the_adjoint_is_that_of_the_matrix(known):
    operator, _, matrix = known
    y = random(2, *operator.measurement_shape, seed=1)
    expected = (y.flatten(1).double() @ matrix).float()
    back = operator.A_adjoint(y).flatten(1)
    torch.testing.assert_close(back, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_prox_and_regularized_solves_are_those_of_the_matrix(known):
    operator, _, matrix = known
    z, y = random(2, *operator.image_shape, seed=2), random(2, *operator.measurement_shape, seed=3)
    gamma = torch.tensor([0.5, 4.0])
    identity = torch.eye(matrix.shape[1], dtype=torch.float64)
    got = operator.prox_l2(z, y, gamma).flatten(1)
    for i, weight in enumerate(gamma.tolist()):
        right = z[i].flatten().double() + weight * (matrix.T @ y[i].flatten().double())
        exact = torch.linalg.solve(identity + weight * matrix.T @ matrix, right)
        assert (got[i] - exact).norm() < 2e-3 * exact.norm()


def test_the_pseudo_inverse_solves_the_normal_equations(known):
    operator, _, _ = known
    x = random(2, *operator.image_shape, seed=4)
    y = operator.A(operator.A_adjoint(operator.A(x)))
    again = operator.A(operator.A_dagger(y))
    assert (again - y).norm() < 0.02 * y.norm()


def test_rows_do_not_depend_on_their_neighbors(known):
    operator, _, _ = known
    y = random(3, *operator.measurement_shape, seed=5)
    together = operator.A_adjoint(y)
    alone = torch.cat([operator.A_adjoint(row) for row in y.split(1)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4 * together.abs().max().item())


def test_some_measurements_alone(known):
    operator, _, _ = known
    kept = torch.arange(operator.A(torch.rand(1, *operator.image_shape)).numel()) % 2 == 0
    part = operator.subset(kept.view(operator.measurement_shape))
    y = part.A(random(1, *operator.image_shape, seed=6)).flatten()
    assert (y[~kept] == 0).all()


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_without_a_matrix(name):
    torch.manual_seed(0)
    physics, shape, _, _ = theirs.find_operator(name, "cpu")
    operator = operators.from_physics(physics, shape)
    x, y = random(1, *shape, seed=0), operator.restrict(random(1, *operator.measurement_shape, seed=1))
    Ax, Aty = operator.A(x), operator.A_adjoint(y)
    assert ((Ax * y).sum() - (x * Aty).sum()).abs() < 1e-4 * Ax.norm() * y.norm()
    # Where prox_l2 ends, its objective has no slope.
    z, gamma = random(1, *shape, seed=2), torch.tensor([2.0])
    v = operator.prox_l2(z, y, gamma)
    slope = gamma * operator.A_adjoint(operator.A(v) - y) + v - z
    assert slope.norm() < 1e-2 * (gamma * operator.A_adjoint(operator.A(z) - y)).norm()


def test_known_ones_become_ours():
    shape = (3, 8, 8)
    assert isinstance(operators.from_physics(deepinv.physics.Denoising(), shape), operators.Denoising)
    mosaic = operators.from_physics(deepinv.physics.Demosaicing(img_size=shape))
    assert isinstance(mosaic, operators.Inpainting)
    assert mosaic.num_measurements == 64
    sensing = operators.from_physics(deepinv.physics.CompressedSensing(m=20, img_size=shape))
    assert isinstance(sensing, operators.CompressedSensing)
    soft = deepinv.physics.Inpainting(mask=torch.full(shape, 0.5), img_size=shape)
    assert isinstance(operators.from_physics(soft), LinearFromPhysics)


def test_stacked_physics_are_one_long_row():
    shape = (1, 8, 8)
    stacked = deepinv.physics.Inpainting(mask=0.5, img_size=shape).stack(deepinv.physics.Denoising())
    operator = operators.from_physics(stacked, shape)
    x = torch.rand(2, *shape)
    given = stacked.A(x)
    y = operator.A(x)
    assert torch.equal(y, pack(given))
    assert all(torch.equal(a, b) for a, b in zip(operator.unpack(y), given, strict=True))
    torch.testing.assert_close(operator.A_adjoint(y), stacked.A_adjoint(given))


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 16, 16)])
def test_magnetic_resonance_of_complex_and_of_real_images(shape):
    mask = (torch.rand(1, 1, 16, 16, generator=as_generator(0)) < 0.5).float()
    physics = deepinv.physics.MRI(mask=mask, img_size=(2, 16, 16))
    operator = operators.from_physics(physics, shape)
    x, y = torch.rand(1, *shape), random(1, *operator.measurement_shape, seed=1)
    product = (operator.A(x) * y).sum()
    torch.testing.assert_close(product, (x * operator.A_adjoint(y)).sum(), rtol=1e-4, atol=1e-3)
    if shape[0] == 1:
        # An orthonormal transform, which deepinv centers: it keeps the energy of what is sampled.
        full = operators.from_physics(deepinv.physics.MRI(img_size=(2, 16, 16)), shape)
        torch.testing.assert_close(full.A(x).square().sum(), x.square().sum())


def test_a_nonlinear_physics():
    physics = deepinv.physics.Physics(A=lambda x, **kwargs: x.square())
    operator = operators.from_physics(physics, (1, 4, 4))
    assert not operator.linear
    x, v = torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    J, Jt = operator.jacobian_at(x)
    torch.testing.assert_close(J(v), 2 * x * v)
    torch.testing.assert_close(Jt(v), 2 * x * v)
    noise = aipo.Gaussian(0.01)
    problem = aipo.MapProblem(aipo.flows.GaussianFlow((1, 4, 4)), operator, noise, operator.measure(x, noise, 0))
    assert aipo.follow_path(problem, [0.5]).status == ["done", "done"]


def test_phase_retrieval_of_a_real_image():
    """It takes complex images; the intensities of random sums are about quadratic in a real one."""
    torch.manual_seed(0)
    physics = deepinv.physics.RandomPhaseRetrieval(m=400, img_size=(1, 8, 8))
    operator = operators.from_physics(physics, (1, 8, 8))
    assert not operator.linear
    x, v = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(operator.A(2 * x), 4 * operator.A(x))
    J, Jt = operator.jacobian_at(x)
    torch.testing.assert_close(J(x), 2 * operator.A(x), rtol=1e-4, atol=1e-5)
    u = random(2, 400, seed=0)
    torch.testing.assert_close((J(v) * u).sum(), (v * Jt(u)).sum(), rtol=1e-3, atol=1e-3)
    found = operator.least_squares(operator.A(x), x + 0.1 * random(2, 1, 8, 8, seed=1))
    torch.testing.assert_close(found, x, rtol=0, atol=1e-3)


def test_an_adjoint_that_is_none_is_replaced():
    physics = deepinv.physics.LinearPhysics(A=lambda x, **k: 2 * x, A_adjoint=lambda y, **k: 3 * y)
    operator = operators.from_physics(physics, (1, 4, 4))
    y = torch.rand(1, 1, 4, 4)
    torch.testing.assert_close(operator.A_adjoint(y), 2 * y)


def test_what_does_not_fit_is_named():
    with pytest.raises(InputError, match=r"^str has no A; .*$"):
        operators.from_physics("blur")
    with pytest.raises(InputError, match=r"^Denoising does not say its image size; .*$"):
        operators.from_physics(deepinv.physics.Denoising())
    masks = (torch.rand(2, 3, 8, 8) < 0.5).float()
    with pytest.raises(InputError, match=r"^Inpainting holds parameters for 2 images; .*$"):
        operators.from_physics(deepinv.physics.Inpainting(mask=masks, img_size=(3, 8, 8)))
    blur = deepinv.physics.BlurFFT(filter=torch.ones(1, 1, 3, 3) / 9, img_size=(3, 8, 8))
    with pytest.raises(InputError, match=r"^BlurFFT does not take images \(3, 7, 5\): .*$"):
        operators.from_physics(blur, (3, 7, 5))
