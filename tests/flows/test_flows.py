"""One test suite that every flow passes, in float64 on small shapes."""

import math

import normflows
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from aipo.errors import InputError
from aipo.flows import Flow, GaussianFlow, Glow, MixtureFlow, RealNVP, TarFlow
from aipo.flows.layers import ActNorm, AffineCoupling, Invertible1x1
from aipo.flows.realnvp import ResidualNet
from aipo.flows.tarflow import join_details, split_details
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

SHAPE = (3, 8, 8)


def small_tarflow(patch: int, blocks: int, layers: int) -> TarFlow:
    return TarFlow(
        SHAPE,
        patch=patch,
        width=16,
        head=8,
        blocks=blocks,
        layers=layers,
        thumbnail_couplings=[2],
        thumbnail_hidden=[8],
    )


FLOWS = {
    "realnvp": lambda: RealNVP(SHAPE, couplings=[4, 2], hidden=[8, 8]),
    "glow": lambda: Glow(SHAPE, steps=[2, 2], hidden=[8, 8]),
    "tarflow": lambda: small_tarflow(patch=4, blocks=3, layers=2),
    "tarflow, one cell": lambda: small_tarflow(patch=2, blocks=2, layers=1),
    "gaussian": lambda: GaussianFlow(SHAPE),
    "mixture": lambda: MixtureFlow(SHAPE, stds=(0.5, 0.5)),
}


def trained(flow: Flow) -> Flow:
    """A flow with weights moved away from their special initial values, as training would."""
    torch.manual_seed(1)
    flow = flow.double().requires_grad_(False)
    flow.initialize(torch.rand(16, *SHAPE, dtype=torch.float64))
    for name, p in flow.named_parameters():
        # A random triangular matrix is exponentially ill-conditioned in its size: the Gaussian moves less.
        p += (0.001 if name == "factor" else 0.1) * torch.randn_like(p)
        if name == "factor":
            p.copy_(p.tril())
    return flow


@pytest.fixture(params=FLOWS, scope="module")
def flow(request):
    return trained(FLOWS[request.param]())


@pytest.fixture
def x():
    return torch.rand(3, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_inverse(flow, x):
    z, log_det = flow(x)
    assert z.shape == (3, flow.num_dims)
    assert log_det.shape == (3,)
    torch.testing.assert_close(flow.decode(z), x, atol=1e-10, rtol=0)
    torch.testing.assert_close(flow.encode(flow.decode(z)), z, atol=1e-9, rtol=0)


def test_log_det_is_that_of_the_jacobian(flow, x):
    jacobian = torch.autograd.functional.jacobian(lambda v: flow.encode(v[None])[0], x[0])
    expected = torch.linalg.slogdet(jacobian.reshape(flow.num_dims, flow.num_dims)).logabsdet
    torch.testing.assert_close(flow(x)[1][0], expected, atol=1e-8, rtol=0)


def test_log_prob_is_the_change_of_variables(flow, x):
    z, log_det = flow(x)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1) + log_det
    torch.testing.assert_close(flow.log_prob(x), expected)


def test_an_image_does_not_see_its_batch(flow, x):
    together, alone = flow.log_prob(x), torch.cat([flow.log_prob(image[None]) for image in x])
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", ["noise", "black", "white", "far"])
def test_finite_gradients_off_the_data(flow, kind):
    noise = torch.randn(2, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    image = {"noise": noise, "black": 0 * noise, "white": 0 * noise + 1, "far": 20 * noise}[kind].requires_grad_()
    log_prob = flow.log_prob(image)
    (gradient,) = torch.autograd.grad(log_prob.sum(), image)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


def test_gradient_matches_finite_differences(flow, x):
    image = x[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(flow.log_prob(image).sum(), image)
    direction = torch.randn(image.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    h = 1e-5
    slope = (flow.log_prob(image + h * direction) - flow.log_prob(image - h * direction)) / (2 * h)
    torch.testing.assert_close((gradient * direction).sum(), slope[0].detach(), rtol=1e-5, atol=1e-5)


def test_sampling(flow):
    torch.testing.assert_close(flow.sample(2, seed=5), flow.sample(2, seed=5), atol=0, rtol=0)
    assert (flow.sample(2, seed=5) != flow.sample(2, seed=6)).any()
    cold = flow.sample(2, temperature=0)
    torch.testing.assert_close(cold, flow.decode(torch.zeros(2, flow.num_dims, dtype=torch.float64)))
    z = flow.encode(flow.sample(64, temperature=0.5, seed=7))
    assert abs(z.std().item() - 0.5) < 0.02


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_temperature(flow, bad):
    with pytest.raises(InputError, match="temperature"):
        flow.sample(1, temperature=bad)


def test_wrong_shape(flow):
    with pytest.raises(InputError, match="shape"):
        flow.log_prob(torch.rand(1, 3, 16, 8, dtype=torch.float64))


def test_save_and_load_give_identical_bytes(flow, tmp_path, x):
    card = {"name": "t", "bits": 5, "data": "none", "license": "none", "metrics": {}}
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    save_prior_files(flow, card, first)
    loaded = load_prior_files(first)
    save_prior_files(loaded.flow, card, second)
    assert first.read_bytes() == second.read_bytes()
    # Weights are stored in half precision; what is loaded is exactly what was stored.
    assert all((v == v.half().to(v.dtype)).all() for v in loaded.flow.state_dict().values())
    again = load_prior_files(second)
    torch.testing.assert_close(loaded.flow.log_prob(x.float()), again.flow.log_prob(x.float()), atol=0, rtol=0)


@pytest.mark.parametrize("name", ["realnvp", "glow", "tarflow"])
def test_half_precision_touches_only_the_networks(name, x):
    flow, x = trained(FLOWS[name]()).float(), x.float()
    exact = flow.log_prob(x)
    flow.set_compute_dtype(torch.bfloat16)
    half = flow.log_prob(x)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0.05, atol=1.0)
    assert (half != exact).all()
    flow.set_compute_dtype(None)
    torch.testing.assert_close(flow.log_prob(x), exact, atol=0, rtol=0)


def test_initialize_standardizes_activations():
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[8, 8])
    images = 0.3 + 0.05 * torch.randn(64, *SHAPE)
    flow.initialize(images)
    z = flow.encode(images)
    assert abs(z.mean().item()) < 0.1
    assert abs(z.std().item() - 1) < 0.1


def test_tarflow_is_causal():
    """The scale and shift of a patch must not depend on itself or on later patches."""
    flow = trained(small_tarflow(patch=4, blocks=1, layers=2))
    tokens, context = torch.randn(1, 4, 45, dtype=torch.float64), torch.randn(1, 4, 16, dtype=torch.float64)
    summary = flow.blocks[0].transformer(tokens, context)
    for t in range(4):
        changed = tokens.clone()
        changed[:, t] += 1
        moved = (flow.blocks[0].transformer(changed, context) - summary).abs().amax(dim=(0, 2)) > 1e-12
        assert not moved[: t + 1].any()
        assert moved[t + 1 :].all()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_haar_is_orthonormal(channels, half_height, half_width):
    x = torch.randn(2, channels, 2 * half_height, 2 * half_width, dtype=torch.float64)
    y = haar(x)
    assert y.shape == (2, 4 * channels, half_height, half_width)
    torch.testing.assert_close(y.square().sum(), x.square().sum())
    torch.testing.assert_close(haar_inverse(y), x)


def test_opponent_colors_are_a_rotation():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    y = opponent(x)
    torch.testing.assert_close(y.square().sum(1), x.square().sum(1))
    torch.testing.assert_close(opponent_inverse(y), x)
    gray = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(opponent(gray).flatten(), torch.tensor([3**0.5, 0, 0], dtype=torch.float64))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_details_and_thumbnail_make_the_image(levels):
    x = torch.randn(2, 3, 16, 8, dtype=torch.float64)
    thumbnail, details = split_details(x, levels)
    torch.testing.assert_close(thumbnail, F.avg_pool2d(x, 2**levels))
    torch.testing.assert_close(join_details(thumbnail, details, levels), x)
    energy = details.square().sum() + 4**levels * thumbnail.square().sum()
    torch.testing.assert_close(energy, x.square().sum())


def test_details_of_a_patch_come_from_that_patch():
    x = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    x[:, :, 5, 10] = 1
    _, details = split_details(x, 2)
    assert details[0].abs().sum(0).nonzero().tolist() == [[1, 2]]


class TestAgainstNormflows:
    """The layers that normflows also has compute the same function."""

    def test_invertible_1x1(self, generator):
        ours = Invertible1x1(6, generator).double()
        with torch.no_grad():
            for p in ours.parameters():
                p += 0.1 * torch.randn(p.shape, generator=generator)
        theirs = normflows.flows.Invertible1x1Conv(6, use_lu=False).double()
        # normflows' layer maps latents to data with the inverse of W.
        theirs.W.data = ours.weight().detach()
        x = torch.randn(2, 6, 4, 4, dtype=torch.float64, generator=generator)
        y, log_det = ours(x)
        y_theirs, log_det_theirs = theirs.inverse(x)
        torch.testing.assert_close(y, y_theirs)
        torch.testing.assert_close(log_det, log_det_theirs.squeeze())
        torch.testing.assert_close(ours.inverse(y), theirs.forward(y)[0])

    def test_actnorm(self, generator):
        ours, theirs = ActNorm(5).double(), normflows.flows.ActNorm((5, 1, 1)).double()
        x = 3 + 2 * torch.randn(8, 5, 4, 4, dtype=torch.float64, generator=generator)
        ours.initializing = True
        with torch.no_grad():
            y, log_det = ours(x)
        y_theirs, log_det_theirs = theirs.inverse(x)
        torch.testing.assert_close(y, y_theirs, atol=1e-2, rtol=1e-2)  # normflows divides by n - 1
        torch.testing.assert_close(log_det, log_det_theirs.squeeze().detach(), atol=1e-1, rtol=1e-2)

    def test_affine_coupling(self, generator):
        net = ResidualNet(3, 6, hidden=8, blocks=1).double()
        with torch.no_grad():
            for p in net.parameters():
                p += 0.1 * torch.randn(p.shape, generator=generator)
        ours = AffineCoupling(net, limit=1.5)

        class TheirNet(torch.nn.Module):
            """The same network, with shift and scale in normflows' interleaved order."""

            def forward(self, a):
                s, t = net(a).chunk(2, dim=1)
                return torch.stack([t, 1.5 * torch.tanh(s / 1.5)], dim=2).flatten(1, 2)

        theirs = normflows.flows.AffineCoupling(TheirNet(), scale=True, scale_map="exp")
        x = torch.randn(2, 6, 4, 4, dtype=torch.float64, generator=generator)
        y, log_det = ours(x)
        (a, b), log_det_theirs = theirs(list(x.chunk(2, dim=1)))
        torch.testing.assert_close(y, torch.cat([a, b], dim=1))
        torch.testing.assert_close(log_det, log_det_theirs)


def test_one_by_one_convolution_multiplies_by_its_weight(generator):
    layer = Invertible1x1(4, generator)
    x = torch.randn(2, 4, 3, 3, generator=generator)
    torch.testing.assert_close(layer(x)[0], F.conv2d(x, layer.weight()[:, :, None, None]))
    torch.testing.assert_close(torch.linalg.slogdet(layer.weight()).logabsdet * 9, layer(x)[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RealNVP((3, 12, 12), couplings=[2, 2, 2], hidden=[8, 8, 8]),
        lambda: small_tarflow(patch=3, blocks=1, layers=1),
        lambda: small_tarflow(patch=16, blocks=1, layers=1),
        lambda: GaussianFlow((1, 2, 2), factor=-torch.eye(4)),
        lambda: Glow((3, 8), steps=[1], hidden=[8]),
    ],
)
def test_impossible_architectures_are_refused(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)
