"""The small commands print what they promise, and wrong usage is told apart."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.cli.terminal import BenchBar, RestoreBar, complain, harmless, print_card, print_line, print_table
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny prior, and a file where a folder should be."""
    path = tmp_path_factory.mktemp("inputs")
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {
        "name": "tiny",
        "bits": 5,
        "data": "noise",
        "license": "none",
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
        ["restore", "a.png", "--task", "colorize", "--out", "x"],
        ["restore", "a.png", "--task", "denoise", "--sigma", "much", "--out", "x"],
        ["restore", "--task", "denoise", "--out", "x"],
        ["demo", "--frobnicate"],
        ["demo", "--seed", "-1"],
        ["demo", "--\x1b[31m"],
        ["bench", "run"],
        ["--frobnicate"],
        ["paint"],
    ],
)
def test_wrong_usage_is_one_line(arguments):
    outcome = invoke(*arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("aipo: ")
    assert outcome.stderr.count("\n") == 1
    assert "--help" in outcome.stderr or "no such file" in outcome.stderr


@pytest.mark.parametrize("command", [[], ["bench"]])
def test_a_group_alone_prints_its_help(command):
    outcome = invoke(*command)
    assert "Usage:" in outcome.output
    assert "aipo: " not in outcome.output


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
    card = {"name": "half", "bits": 5, "data": "-", "license": "-", "metrics": {}}
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
        assert row["license"]
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


# --- names that would do something to a terminal ---

EVIL = "\x1b[31mred\x07\x9b2J\u202egnp\n\x7f.png"
HARMLESS = r"\x1b[31mred\x07\x9b2J\u202egnp\n\x7f.png"


def is_harmless(text):
    return not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c in "\u2028\u2029\u202e\u2066" for c in text)


def test_what_is_harmless_stays_as_it_is():
    for text in ("photo.png", "名前🙂", "👩‍🚀 é", "نام‌ها", "नि", "[bold]not markup[/bold]"):
        assert harmless(text) == text


def test_what_is_not_harmless_is_shown_as_an_escape():
    assert harmless(EVIL) == HARMLESS
    assert harmless("\udcff\u2028\u2066") == r"\udcff\u2028\u2066"
    every = "".join(map(chr, range(0x110000)))
    assert is_harmless(harmless(every))
    harmless(every).encode()


def test_complaints_lines_and_tables_are_harmless(capsys):
    complain(f"{EVIL}: no such file")
    print_line(EVIL)
    print_table(["picture", "lam"], [[EVIL, "1"]])
    print_card({EVIL: EVIL, "nested": {EVIL: [EVIL]}})
    printed = capsys.readouterr()
    assert is_harmless(printed.out)
    assert is_harmless(printed.err)
    assert printed.err == "aipo: " + HARMLESS.replace(r"\n", " ") + ": no such file\n"
    assert printed.out.startswith(HARMLESS + "\n")


@pytest.mark.parametrize("name", [EVIL, "[/bold]"])
def test_bars_are_harmless(monkeypatch, capsys, name):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: as on a terminal
    with BenchBar(show=True) as bar:
        bar.report(2, 0, name, 0.5)
    with RestoreBar(show=True, verbose=True) as bar:
        bar.begin(1)
        bar.say(name)
    printed = capsys.readouterr().err
    for evil in ("\x1b[31mred", "\x07", "\x9b", "\u202e", "\x7f"):
        assert evil not in printed
    assert printed.count(harmless(name)) >= 2


def test_a_name_with_control_characters_is_restored_and_printed(folder, tmp_path):
    write_image(tmp_path / EVIL, aipo.samples.load("astronaut"))
    (tmp_path / f"bad{EVIL}").write_text("not a picture")
    options = [*DENOISE, "--lam", "0.1", "--prior", folder / "tiny.safetensors", "--out", tmp_path / "out"]
    for more in ([], ["--verbose"]):
        outcome = invoke("restore", tmp_path / EVIL, tmp_path / f"bad{EVIL}", *options, *more)
        assert outcome.exit_code == 1
        assert is_harmless(outcome.output)
    assert outcome.stderr.splitlines()[-1].startswith(rf"aipo: {tmp_path}/bad\x1b[31mred")
    outcome = invoke("corrupt", tmp_path / EVIL, "--task=denoise", "--out", tmp_path / "corrupted")
    assert outcome.exit_code == 0
    assert is_harmless(outcome.output)


def test_a_system_error_is_one_line(tmp_path, monkeypatch):
    """What the system refuses, where nobody expected it, is not a bug of ours."""

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere")

    monkeypatch.setattr("aipo.restore.corrupt.corrupt", refuse)
    outcome = invoke("corrupt", "a.png", "--task=denoise", "--out", tmp_path)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "aipo: somewhere: Permission denied; check the name and its permissions\n"


def test_a_terminal_without_unicode(tmp_path):
    write_image(tmp_path / "名前.png", aipo.samples.load("astronaut"))
    command = python_m_aipo("corrupt", "名前.png", "--task=denoise", "--out=.")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("\\u540d\\u524d.denoise.png\nRestore with:\n")
