"""What a caller of the library can get wrong: a clear line, or it works. Never a traceback from deep inside.

Priors may come from strangers: with a changed card or weights they load and work, or are refused in one line, at once.
"""

import copy
import hashlib
import json
import math
import pickle

import numpy as np
import pytest
import torch
from mutations import mutated_bytes, mutated_json

import aipo
from aipo import operators
from aipo.errors import InputError
from aipo.flows import Glow, NoiseFlow, RealNVP
from aipo.images import write_image
from aipo.noise import Noise
from aipo.priors import NoisePrior, Prior
from aipo.priors.estimate_errors import EstimateErrors
from aipo.priors.files import save_prior_files
from aipo.solvers import LBFGS, Amortized, FixedLambda
from aipo.transforms.spectrum import NUM_BANDS
from small_problem import SHAPE, build_flow, build_noise_flow, make_problem, smooth_images


class Wrong(operators.LinearOperator):
    """An operator whose A is any function."""

    def __init__(self, A, measurement_shape=SHAPE):
        super().__init__(SHAPE, measurement_shape)
        self.function = A

    def A(self, x):
        return self.function(x)


class Undrawable(Noise):
    def log_prob(self, y, fx):
        return -(y - fx).square().flatten(1).sum(1)


@pytest.fixture(scope="module")
def flow():
    return build_flow()


def denoising(flow, y, sigma=0.1):
    return aipo.MapProblem(flow, operators.Denoising(SHAPE), aipo.Gaussian(sigma), y)


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


Y = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y[:0], ["empty"]),
        (Y.numpy(), ["ndarray", "from_numpy"]),
        (Y.tolist(), ["list"]),
        (None, ["NoneType"]),
        ((255 * Y).to(torch.uint8), ["uint8"]),
        (Y[0], ["shape"]),
        (1e6 * Y, ["about", "[0, 1]"]),
        (255 * Y, ["divide 8-bit values by 255"]),
        (torch.stack([Y[0], 255 * Y[1]]), ["image 1"]),
        (Y * torch.nan, ["NaN"]),
        (Y.to(torch.complex64), ["complex64"]),
    ],
    ids=["empty", "numpy", "list", "none", "uint8", "no batch", "1e6", "255", "one of two", "nan", "complex"],
)
def test_measurements(flow, y, words):
    refused(lambda: denoising(flow, y), *words)


def test_noisy_dark_and_flat_measurements_are_no_mistake(flow):
    for y in (torch.zeros_like(Y), Y / 1000, Y + 2 * torch.randn(Y.shape, generator=torch.Generator().manual_seed(0))):
        denoising(flow, y, sigma=2.0)
    mask = torch.zeros(1, *SHAPE[1:])
    mask[0, 0, 0] = 1
    aipo.MapProblem(flow, operators.Inpainting(mask, SHAPE), aipo.Gaussian(0.1), Y)
    # Differences of neighbors are zero for a white image.
    differences = Wrong(lambda x: x - x.roll(1, -1))
    aipo.MapProblem(flow, differences, aipo.Gaussian(0.01), differences.A(Y))


@pytest.mark.parametrize("value", [1e30, 1e-30, math.inf, math.nan, 0.0, -1.0, "wide", None, torch.tensor([0.1, 1e30])])
def test_sigma(value):
    refused(lambda: aipo.Gaussian(value), "sigma is")


@pytest.mark.parametrize("solver", [LBFGS(3), Amortized.quick(), FixedLambda(3)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "lam", [1e30, math.inf, math.nan, -1.0, torch.ones(3), torch.ones(2, 1), torch.tensor([1.0, 1e30])]
)
def test_lam(flow, solver, lam):
    refused(lambda: solver.solve(make_problem(flow, batch=2), lam), "lam")


def test_lam_of_a_path(flow):
    path = aipo.follow_path(make_problem(flow, batch=2), [0.5, 1.0], evals=4)
    refused(lambda: path.at(torch.ones(3)), "lam has shape (3,)")
    refused(lambda: path.interpolate(torch.ones(2, 2)), "lam has shape (2, 2)")


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (Wrong(lambda x: x[..., :4]), ["returns (1, 3, 8, 4)", "measurement_shape promises (3, 8, 8)"]),
        (Wrong(lambda x: x[0]), ["returns (3, 8, 8)"]),
        (Wrong(lambda x: None), ["returns NoneType"]),
        (Wrong(lambda x: x.square()), ["calls itself linear"]),
        (Wrong(lambda x: x + 1), ["calls itself linear"]),
        (Wrong(lambda x: x.clamp(max=0.7)), ["calls itself linear"]),
        (Wrong(lambda x: x * torch.nan), ["calls itself linear"]),
    ],
    ids=["other shape", "no batch", "nothing", "square", "shifted", "clipped", "nan"],
)
def test_an_operator_that_lies(flow, operator, words):
    refused(lambda: aipo.MapProblem(flow, operator, aipo.Gaussian(0.1), Y), *words)


def test_a_noise_that_cannot_be_drawn(flow):
    refused(lambda: operators.Denoising(SHAPE).measure(Y, Undrawable(), 0), "Undrawable", "sample")
    refused(lambda: aipo.MapProblem(flow, operators.Denoising(SHAPE), Undrawable(), Y), "Undrawable", "variance")


def test_inference_mode(flow):
    with torch.inference_mode():
        refused(lambda: denoising(flow, Y), "torch.no_grad()")
    problem = denoising(flow, Y)
    with torch.inference_mode():
        refused(lambda: LBFGS(3).solve(problem, 1.0), "torch.no_grad()")
    with torch.no_grad():
        assert LBFGS(3).solve(problem, 1.0).status == ["done", "done"]


@pytest.mark.parametrize("copied", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_used_prior_travels(flow, copied):
    prior, x = Prior(flow), Y
    _ = prior.surrogate
    torch.testing.assert_close(copied(prior).gradient(x), prior.gradient(x))
    noisy, x = NoisePrior(build_noise_flow(levels=2, dtype=torch.float32)), smooth_images(1, 8)
    torch.testing.assert_close(noisy.denoise(x, 0.1), copied(noisy).denoise(x, 0.1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there(flow):
    noisy = NoisePrior(build_noise_flow(levels=2, dtype=torch.float32))
    for prior in (Prior(flow), noisy):
        refused(lambda prior=prior: prior.to("cuda"), "cannot move the prior to cuda")
        refused(lambda prior=prior: prior.to("moon"), "cannot move the prior to moon")
    assert Prior(flow).gradient(Y).isfinite().all()


@pytest.mark.parametrize(
    "name", ["absent.safetensors", "absent", "", "a\0b", "a\0b.safetensors", "x" * 300, "/dev/null", "."]
)
def test_a_prior_that_is_not_there(name):
    refused(lambda: aipo.load_prior(name))


def test_images_that_are_no_tensors(tmp_path):
    levels = np.zeros((3, 16, 16), dtype=np.float32)
    refused(lambda: aipo.metrics.psnr(levels[None], levels[None]), "torch tensors", "ndarray")
    refused(lambda: aipo.metrics.ssim(torch.zeros(1, 3, 16, 16), levels[None]), "torch tensors")
    refused(lambda: aipo.metrics.psnr(torch.zeros(1, 3, 8, 8), torch.zeros(2, 3, 8, 8)), "one shape")
    refused(lambda: write_image(tmp_path / "a.png", levels), "torch tensor", "ndarray")
    refused(lambda: write_image(tmp_path / "a.png", torch.zeros(3, 0, 4)), "(3, 0, 4)")
    refused(lambda: write_image(tmp_path / "a.png", torch.full((3, 4, 4), torch.nan)), "NaN")
    assert not list(tmp_path.iterdir())


def test_a_start_of_another_kind(flow):
    problem = denoising(flow, Y)
    for solver in (LBFGS(3), Amortized.quick(), FixedLambda(3)):
        refused(lambda solver=solver: solver.solve(problem, 1.0, x0=Y.numpy()), "ndarray")
        refused(lambda solver=solver: solver.solve(problem, 1.0, x0=Y[:0]), "empty")
        refused(lambda solver=solver: solver.solve(problem, 1.0, x0=Y[:1]), "1", "2")


CARDS, WEIGHTS = 60, 30  # mutations of each kind and model
SHAPE = (3, 8, 8)
SEVERAL_SECONDS = 20


def make(name):
    torch.manual_seed(0)
    if name == "noise":
        return NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8)
    return Glow(SHAPE, steps=[1], hidden=[4]) if name == "glow" else RealNVP(SHAPE, couplings=[2], hidden=[4])


@pytest.fixture(scope="module", params=["realnvp", "glow", "noise"])
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("cards") / "tiny.safetensors"
    card = {"name": "tiny", "bits": 0 if request.param == "noise" else 5, "data": "none", "license": "none"}
    save_prior_files(make(request.param), {**card, "metrics": {"bits_per_dim_val": 3.5}}, path)
    return path.read_bytes(), json.loads(path.with_suffix(".json").read_text())


def attempt(folder, weights, card, within):
    """Load what is there, and use it: the outcome of both must be one of two."""
    path = folder / "p.safetensors"
    path.write_bytes(weights)
    path.with_suffix(".json").write_bytes(card if isinstance(card, bytes) else json.dumps(card).encode())
    with within(SEVERAL_SECONDS):
        try:
            prior = aipo.load_prior(path)
            x = torch.full((1, *(SHAPE if isinstance(prior, NoisePrior) else prior.image_shape)), 0.5)
            value = prior.log_prob(x, prior.levels[0]) if isinstance(prior, NoisePrior) else prior.P(x)
        except InputError as error:
            value, message = None, str(error)
    if value is None:
        assert message
        assert "\n" not in message
        return "refused"
    assert value.shape == (1,)
    return "loaded"


def test_the_original_loads(saved, tmp_path, within):
    weights, card = saved
    assert attempt(tmp_path, weights, card, within) == "loaded"


def test_changed_cards(saved, tmp_path, within):
    weights, card = saved
    outcomes = [attempt(tmp_path, weights, mutated_json(card, seed), within) for seed in range(CARDS)]
    assert outcomes.count("refused") > CARDS // 4


def test_changed_bytes_of_a_card(saved, tmp_path, within):
    weights, card = saved
    content = json.dumps(card, indent=2).encode()
    for seed in range(CARDS):
        attempt(tmp_path, weights, mutated_bytes(content, seed), within)


def test_changed_weights_with_the_hash_of_the_change(saved, tmp_path, within):
    """The hash keeps accidents away, not someone who writes both files."""
    weights, card = saved
    for seed in range(WEIGHTS):
        changed = mutated_bytes(weights, seed)
        card = {**card, "sha256": hashlib.sha256(changed).hexdigest()}
        attempt(tmp_path, changed, card, within)


def test_changed_weights_are_noticed(saved, tmp_path, within):
    weights, card = saved
    changes = [mutated_bytes(weights, seed) for seed in range(WEIGHTS)]
    for changed in (c for c in changes if c != weights):
        assert attempt(tmp_path, changed, card, within) == "refused"


@pytest.mark.parametrize(
    "value", [10**9, 2**62, 2**63, 10**400, 1e9, 1e308, -1, 0, True, None, "8", [10**9], [[2]], {}, [1] * 1000]
)
def test_sizes(saved, tmp_path, within, value):
    """A card may promise a billion layers or channels: nothing is built before the weights agree."""
    weights, card = saved
    for key in card["config"]:
        changed = {**card, "config": {**card["config"], key: value}}
        if changed != card:
            attempt(tmp_path, weights, changed, within)
    for key in ("couplings", "hidden", "steps", "blocks"):
        if key in card["config"]:
            changed = {**card, "config": {**card["config"], key: value}}
            assert attempt(tmp_path, weights, changed, within) == "refused" or value is True


@pytest.mark.parametrize("key", ["surrogate", "errors"])
@pytest.mark.parametrize(
    "value", [7, "x", [1], {"levels": "x"}, {"mean": [None]}, {"levels": [10**400]}, {"mean": [[math.nan]]}, {"a": {}}]
)
def test_what_was_measured_of_a_prior(saved, tmp_path, within, key, value):
    weights, card = saved
    assert attempt(tmp_path, weights, {**card, key: value}, within) == "refused"


@pytest.mark.parametrize("levels", [[], [0.1], [[]] * 8, [[0.1]] * 8, [0.1] * 8, [0.8, 0.7], [0, 1], [0.1, math.nan]])
def test_levels_of_the_errors_of_an_estimate(levels):
    variances = torch.full((len(levels), 3, NUM_BANDS), 1e-4).tolist()
    refused(lambda: EstimateErrors.from_card({"levels": levels, "variances": variances}), "errors of the estimate")


@pytest.mark.parametrize("depth", [20, 500, 100_000])
def test_deep_cards(saved, tmp_path, within, depth):
    weights, card = saved
    content = json.dumps(card)[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
    assert attempt(tmp_path, weights, content.encode(), within) == "refused"


def test_large_cards(saved, tmp_path, within):
    weights, card = saved
    content = json.dumps({**card, "more": "x" * 9_000_000}).encode()
    assert attempt(tmp_path, weights, content, within) == "refused"
