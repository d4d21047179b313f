"""Bad input gets one line, code 2 and leaves everything as it was; the small commands print what they promise."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.prior import save_prior_files

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny prior, a good picture and mask, and one file for each way to be wrong."""
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
    write_image(path / "good.png", aipo.samples.load("astronaut"))
    write_image(path / "mask.png", (torch.rand(1, 64, 64) > 0.25).float())
    write_image(path / "small.png", torch.rand(3, 32, 64))
    write_image(path / "grey.png", torch.rand(1, 64, 64))
    write_image(path / "small-mask.png", torch.ones(1, 32, 32))
    write_image(path / "black-mask.png", torch.zeros(1, 64, 64))
    write_image(path / "black.png", torch.zeros(3, 64, 64))
    Image.new("RGBA", (64, 64)).save(path / "alpha.png")
    Image.fromarray(np.zeros((64, 64), np.uint16)).save(path / "deep.png")
    (path / "broken.png").write_bytes((path / "good.png").read_bytes()[:200])
    np.save(path / "nan.npy", np.full((64, 64, 3), np.nan))
    (path / "other").mkdir()
    write_image(path / "other" / "Good.png", aipo.samples.load("cat"))
    (path / "in-the-way").write_text("a file")
    (path / "blocked" / "good.restored.png").mkdir(parents=True)
    (path / "broken.safetensors").write_bytes(b"not weights")
    return path


@pytest.fixture
def out(folder):
    """An output folder from an earlier run."""
    path = folder / "out"
    path.mkdir(exist_ok=True)
    (path / "good.restored.png").write_text("from before")
    (path / "report.html").write_text("from before")
    return path


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


DENOISE = ["--task", "denoise", "--sigma", "0.1"]
INPAINT = ["--task", "inpaint"]

BAD = {
    "missing picture": (["absent.png", *DENOISE], "absent.png"),
    "folder": (["other", *DENOISE], "other"),
    "truncated picture": (["broken.png", *DENOISE], "broken.png"),
    "one bad picture of two": (["good.png", "small.png", *DENOISE], "small.png"),
    "size": (["small.png", *DENOISE], "64x32"),
    "grey": (["grey.png", *DENOISE], "grey.png"),
    "alpha": (["alpha.png", *DENOISE], "alpha.png"),
    "16 bits": (["deep.png", *DENOISE], "deep.png"),
    "NaN": (["nan.npy", *DENOISE], "nan.npy"),
    "no noise to estimate": (["black.png", "--task", "denoise"], "--sigma"),
    "sigma zero": (["good.png", "--task", "denoise", "--sigma", "0"], "0"),
    "sigma negative": (["good.png", "--task", "denoise", "--sigma", "-0.5"], "-0.5"),
    "sigma NaN": (["good.png", "--task", "denoise", "--sigma", "nan"], "nan"),
    "sigma infinite": (["good.png", *INPAINT, "--mask", "mask.png", "--sigma", "inf"], "inf"),
    "lam negative": (["good.png", *DENOISE, "--lam", "-1"], "-1"),
    "lam NaN": (["good.png", *DENOISE, "--lam", "nan"], "nan"),
    "lam infinite": (["good.png", *DENOISE, "--lam", "inf"], "inf"),
    "lam zero": (["good.png", *DENOISE, "--lam", "0"], "greater than 0"),
    "lam no number": (["good.png", *DENOISE, "--lam", "best"], "auto"),
    "a solver that cannot choose lam": (["good.png", *DENOISE, "--solver", "paper"], "--lam"),
    "no mask": (["good.png", *INPAINT], "--mask"),
    "mask without use": (["good.png", *DENOISE, "--mask", "mask.png"], "mask.png"),
    "missing mask": (["good.png", *INPAINT, "--mask", "absent.png"], "absent.png"),
    "mask size": (["good.png", *INPAINT, "--mask", "small-mask.png"], "small-mask.png"),
    "mask all black": (["good.png", *INPAINT, "--mask", "black-mask.png"], "black-mask.png"),
    "unknown prior": (["good.png", *DENOISE, "--prior", "nobody"], "nobody"),
    "missing prior": (["good.png", *DENOISE, "--prior", "absent.safetensors"], "absent"),
    "broken prior": (["good.png", *DENOISE, "--prior", "broken.safetensors"], "broken"),
    "same name twice": (["good.png", "other/Good.png", *DENOISE], "other/Good.png"),
    "file in the way": (["good.png", *DENOISE, "--out", "in-the-way"], "in-the-way"),
    "file in the path": (["good.png", *DENOISE, "--out", "in-the-way/out"], "in-the-way"),
    "folder in the way": (["good.png", *DENOISE, "--out", "blocked"], "good.restored.png"),
    "output is an input": (["good.png", "out/good.restored.png", *DENOISE], "good.restored.png"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input(folder, out, monkeypatch, arguments, named):
    monkeypatch.chdir(folder)
    before = contents(folder)
    # The last of two equal options counts, so each case may override these.
    outcome = invoke("restore", "--prior", "tiny.safetensors", "--out", "out", *arguments)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("aipo: ")
    assert outcome.stderr.count("\n") == 1
    assert named in outcome.stderr
    assert contents(folder) == before


def test_a_line_break_in_a_name_does_not_break_the_line(folder):
    outcome = invoke(
        "restore", "two\nlines.png", *DENOISE, "--prior", folder / "tiny.safetensors", "--out", folder / "x"
    )
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1


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


def test_demo_refuses_bad_input(folder, out):
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


@pytest.mark.parametrize("command", [[], ["demo"], ["restore"], ["priors"], ["priors", "show"]])
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


def test_interrupt(folder, tmp_path):
    out = tmp_path / "out"
    paths = ["--prior", folder / "tiny.safetensors", "--out", out]
    command = python_m_aipo(
        "restore", folder / "good.png", *DENOISE, *paths, "--solver", "paper", "--lam", "1", "--quiet"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not out.exists():  # made just before the solver starts
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "aipo: interrupted; every file that was written is complete\n"
    assert list(out.iterdir()) == []
