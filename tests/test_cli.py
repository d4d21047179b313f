"""The small commands print what they promise, and wrong usage is told apart."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.prior import save_prior_files

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny prior, and a file where a folder should be."""
    path = tmp_path_factory.mktemp("inputs")
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialise(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {
        "name": "tiny",
        "bits": 5,
        "data": "noise",
        "licence": "none",
        "metrics": {"bits_per_dim_val": 4.5},
        "training": {"steps": 1, "history": [{"step": i} for i in range(100)]},
    }
    save_prior_files(flow, card, path / "tiny.safetensors")
    (path / "in-the-way").write_text("a file")
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


DENOISE = ["--task", "denoise", "--sigma", "0.1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["restore", "a.png", "--task", "colourise", "--out", "x"],
        ["restore", "a.png", "--task", "denoise", "--sigma", "much", "--out", "x"],
        ["restore", "--task", "denoise", "--out", "x"],
        ["demo", "--frobnicate"],
        ["demo", "--seed", "-1"],
        ["paint"],
    ],
)
def test_wrong_usage(arguments):
    assert invoke(*arguments).exit_code == 2


def test_demo_refuses_bad_input(folder):
    for arguments, named in (
        (["--prior", "nobody"], "nobody"),
        (["--prior", folder / "tiny.safetensors", "--out", folder / "in-the-way"], "in-the-way"),
    ):
        outcome = invoke("demo", *arguments)
        assert (outcome.exit_code, outcome.stdout) == (2, "")
        assert outcome.stderr.startswith("aipo: ")
        assert outcome.stderr.count("\n") == 1
        assert named in outcome.stderr


def test_demo_refuses_a_prior_of_another_size(folder, tmp_path):
    flow = RealNVP((3, 32, 32), couplings=[1], hidden=[4])
    card = {"name": "half", "bits": 5, "data": "-", "licence": "-", "metrics": {}}
    save_prior_files(flow, card, tmp_path / "half.safetensors")
    outcome = invoke("demo", "--prior", tmp_path / "half.safetensors", "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert "(3, 32, 32)" in outcome.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [[], ["demo"], ["restore"], ["corrupt"], ["priors"], ["priors", "show"]])
def test_help_shows_an_example(command):
    outcome = invoke(*command, "--help")
    assert outcome.exit_code == 0
    assert f"aipo {' '.join(command)}".strip() in outcome.stdout.split("Usage:")[1].split("\n", 1)[1]


def test_priors_lists_what_is_embedded():
    outcome = invoke("priors", "--json")
    assert outcome.exit_code == 0
    rows = json.loads(outcome.stdout)
    assert [row["name"] for row in rows] == aipo.prior_names()
    for row in rows:
        assert row["parameters"] > 0
        assert row["bytes"] > 0
        assert row["licence"]
    outcome = invoke("priors")
    assert outcome.exit_code == 0
    assert all(name in outcome.stdout for name in aipo.prior_names())


def test_priors_show(folder):
    path = folder / "tiny.safetensors"
    outcome = invoke("priors", "show", path)
    assert outcome.exit_code == 0
    assert "name: tiny" in outcome.stdout
    assert "bits_per_dim_val: 4.5" in outcome.stdout
    assert "history: 100 entries" in outcome.stdout
    assert len(outcome.stdout.splitlines()) < 40
    outcome = invoke("priors", "show", path, "--json")
    assert json.loads(outcome.stdout) == json.loads(path.with_suffix(".json").read_text())


def test_priors_show_of_nothing():
    outcome = invoke("priors", "show", "nobody")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("aipo: unknown prior nobody")


def python_m_aipo(*arguments):
    return [sys.executable, "-m", "aipo", *map(str, arguments)]


def test_as_a_process(folder):
    outcome = subprocess.run(python_m_aipo("--version"), capture_output=True, text=True)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, f"aipo {aipo.__version__}\n", "")

    command = python_m_aipo("restore", "absent.png", *DENOISE, "--prior", folder / "tiny.safetensors", "--out", "x")
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == "aipo: absent.png: no such file; check the name\n"
    assert not (folder / "x").exists()
