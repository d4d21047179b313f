"""`aipo train`: from an array of pictures to a prior that `aipo priors show` can read."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import aipo
from aipo.cli import app

SETTINGS = ["--size", "16", "--batch", "8", "--seed", "3"]


@pytest.fixture
def images(tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8))
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_train_writes_a_prior_its_samples_and_its_curve(images, tmp_path):
    out = tmp_path / "priors" / "mine.safetensors"
    result = run("train", images, "--out", out, "--steps", 3, "--data", "noise", "--license", "CC0", *SETTINGS)
    assert result.exit_code == 0, result.output
    assert "bits/dim" in result.output
    names = {p.name for p in out.parent.iterdir()}
    assert names >= {"mine.safetensors", "mine.json", "mine.samples.png", "mine.curve.png"}
    prior = aipo.load_prior(out)
    assert (prior.name, prior.card["data"], prior.card["license"]) == ("mine", "noise", "CC0")
    assert prior.card["training"]["steps_taken"] == 3
    assert json.loads(run("priors", "show", out, "--json").stdout)["metrics"] == prior.card["metrics"]


def test_the_same_command_goes_on_where_it_stopped(images, tmp_path):
    out = tmp_path / "p.safetensors"
    first = run("train", images, "--out", out, "--steps", 3, "--json", *SETTINGS)
    assert first.exit_code == 0, first.output
    again = run("train", images, "--out", out, "--steps", 3, "--json", *SETTINGS)
    assert again.exit_code == 0, again.output
    first_card, again_card = json.loads(first.stdout), json.loads(again.stdout)
    assert first_card["sha256"] == again_card["sha256"]
    assert again_card["training"]["history"] == first_card["training"]["history"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--steps", 3, "--minutes", 1], "either steps or minutes"),
        ([], "either steps or minutes"),
        (["--steps", 0], "positive"),
        (["--steps", 3, "--size", 24], "24"),
        (["--steps", 3, "--val", "nowhere"], "nowhere"),
        (["--steps", 3, "--lr", -1], "positive"),
    ],
)
def test_bad_options_are_one_line(images, tmp_path, options, word):
    result = run("train", images, "--out", tmp_path / "p.safetensors", "--size", 16, "--batch", 8, *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("aipo: ")
    assert word in result.stderr
    assert not (tmp_path / "p.safetensors").exists()


def test_other_settings_do_not_continue_an_old_run(images, tmp_path):
    out = tmp_path / "p.safetensors"
    assert run("train", images, "--out", out, "--steps", 2, *SETTINGS).exit_code == 0
    before = out.read_bytes()
    result = run("train", images, "--out", out, "--steps", 4, *SETTINGS)
    assert result.exit_code == 2
    assert "other settings" in result.stderr
    assert out.read_bytes() == before


def test_an_output_that_is_no_safetensors_file(images, tmp_path):
    result = run("train", images, "--out", tmp_path / "p.pt", "--steps", 2, *SETTINGS)
    assert result.exit_code == 2
    assert ".safetensors" in result.stderr


def test_no_memory_left_is_one_line(images, tmp_path):
    """More than any machine has, so that the allocator refuses at once."""
    options = ["--out", tmp_path / "p.safetensors", "--steps", 2, "--size", 16, "--batch", 10**12]
    result = run("train", images, *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("aipo: out of memory; ")
    assert result.stderr.count("\n") == 1
