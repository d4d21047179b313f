"""Priors from strangers: changed cards and weights load as a prior that works, or are refused in one line, at once."""

import hashlib
import json

import pytest
import torch
from mutations import mutated_bytes, mutated_json

import aipo
from aipo.errors import InputError
from aipo.flows import Glow, NoiseFlow, RealNVP
from aipo.priors import NoisePrior
from aipo.priors.files import save_prior_files

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


@pytest.mark.parametrize("depth", [20, 500, 100_000])
def test_deep_cards(saved, tmp_path, within, depth):
    weights, card = saved
    content = json.dumps(card)[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
    assert attempt(tmp_path, weights, content.encode(), within) == "refused"


def test_large_cards(saved, tmp_path, within):
    weights, card = saved
    content = json.dumps({**card, "more": "x" * 9_000_000}).encode()
    assert attempt(tmp_path, weights, content, within) == "refused"
