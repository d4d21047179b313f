"""Commands that are printed or stored can be pasted into a shell, whatever the files are called."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files
from aipo.restore.command import command_line

SHAPE = (3, 64, 64)
NAMES = [
    "plain.png",
    "-dash.png",
    "--out",
    "two words.png",
    "it's.png",
    'a "quote".png',
    "$HOME`id`.png",
    "*?[x].png",
    "back\\slash'.png",
    "new\nline.png",
    "\x1b[31mred.png",
    "\u202egnp.exe",
    "名前🙂.png",
    "\udcff.png",
]


def words_of(command):
    """A command line as a shell takes it apart."""
    result = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, cwd="/")
    return [word.decode("utf-8", "surrogateescape") for word in result.stdout.split(b"\0")[:-1]]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_gets_the_same_file(name):
    command = command_line(["restore", Path(name), "--out", Path("-x")])
    assert "\n" not in command
    assert command.isprintable()
    *_, file, option, out = words_of(command)
    assert (Path(file), option, Path(out)) == (Path(name), "--out", Path("-x"))
    assert not file.startswith("-")
    assert not out.startswith("-")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flow = RealNVP(SHAPE, couplings=[1], hidden=[4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, tmp_path / "-tiny.safetensors")
    return tmp_path


def run(words):
    return CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("name", ["-dash.png", "it's \x1b[31mred.png", "--out"])
def test_the_command_in_a_report_does_the_same_again(folder, name):
    write_image(folder / "a.png", aipo.samples.load("astronaut"))
    (folder / "a.png").rename(folder / name)
    options = ["--task=denoise", "--sigma=0.1", "--lam=0.1", "--prior=-tiny.safetensors", "--out=-out"]
    assert run(["restore", *options, "--", name]).exit_code == 0
    page = (folder / "-out" / "report.html").read_text()
    command = html.unescape(re.search(r"<code[^>]*>(aipo restore.*?)</code>", page, re.DOTALL)[1])
    outcome = run(words_of(command)[1:])
    assert outcome.exit_code == 0, outcome.output
    assert "Already there from an earlier run: 1." in outcome.stdout


def test_the_command_after_corrupt_restores(folder):
    write_image(folder / "-dash.png", aipo.samples.load("astronaut"))
    outcome = run(["corrupt", "--task=inpaint", "--out=.", "--json", "--", "-dash.png"])
    assert outcome.exit_code == 0, outcome.output
    words = words_of(json.loads(outcome.stdout)["restore"])
    assert words[:3] == ["aipo", "restore", "./-dash.inpaint.png"]
    outcome = run([*words[1:], "--lam=0.1", "--prior=-tiny.safetensors"])
    assert outcome.exit_code == 0, outcome.output
    assert (folder / "restored" / "-dash.inpaint.restored.png").exists()
