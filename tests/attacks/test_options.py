"""Every option of every command gets values that nobody should give it: exit code 0, 1 or 2, one line, no traceback.

To cover another option, add it to a table below: a command that is in order, and the options to be overridden.
"""

import os

import numpy as np
import pytest
import torch
from mutations import SHAPE

from aipo.images import write_image

NUMBERS = ("nan", "-inf", "-0", "1e309", "1e-320", "-1", str(10**30), "", "\x1b[31m", "٣٫٥")
WORDS = ("", "\x1b]0;title\x07", "\u202egnp.exe", "auto\n", "é" * 300, "-", "--out")
# Never a folder outside the test's own: what is in order is written.
FILES = ("absent", "", ".", "/dev/null", "/dev/zero", "pipe", "pipe.npy", "pipe.png", "\x1b[2J.png", "-x", "text")
FILES += ("n" * 300,)

RESTORE = ["restore", "good.png", "--prior=tiny.safetensors", "--out=out", "--lam=0.1", "--quiet"]
DENOISE = [*RESTORE, "--task=denoise", "--sigma=0.1"]
SENSE = ["restore", "vector.npy", *RESTORE[2:], "--task=sense"]
CORRUPT = ["corrupt", "good.png", "--out=corrupted", "--quiet"]
BENCH = ["bench", "run", "--out=bench", "--prior=tiny.safetensors", "--test=images.npy", "--split=test"]
BENCH += ["--task=denoise", "--method=path", "--subset=1", "--lam=0.5", "--device=cpu", "--quiet"]

# A command that is in order, its options, and the values that take their place.
TABLE = [
    (DENOISE, ["--sigma", "--lam"], NUMBERS),
    ([*RESTORE, "--task=superres"], ["--factor"], NUMBERS),
    ([*RESTORE, "--task=deblur"], ["--blur"], NUMBERS),
    (SENSE, ["--seed"], NUMBERS),
    ([*RESTORE, "--task=inpaint"], ["--mask-color"], (*WORDS, "rgb(999,0,0)", "hsl(0,0%,99999999999%)", "#ff")),
    (DENOISE, ["--task", "--solver", "--fit", "--lam"], WORDS),
    ([*RESTORE, "--task=inpaint"], ["--mask"], FILES),
    ([*RESTORE, "--task=deblur"], ["--kernel"], FILES),
    (SENSE, ["--matrix"], FILES),
    (DENOISE, ["--prior", "--out"], FILES),
    ([*CORRUPT, "--task=denoise"], ["--sigma", "--seed"], NUMBERS),
    ([*CORRUPT, "--task=denoise", "--fit=crop"], ["--size"], NUMBERS),
    ([*CORRUPT, "--task=inpaint"], ["--fraction", "--block"], NUMBERS),
    ([*CORRUPT, "--task=superres"], ["--factor"], NUMBERS),
    ([*CORRUPT, "--task=deblur"], ["--blur"], NUMBERS),
    ([*CORRUPT, "--task=sense"], ["--measurements"], NUMBERS),
    ([*CORRUPT, "--task=denoise"], ["--task", "--fit"], WORDS),
    ([*CORRUPT, "--task=inpaint"], ["--mask", "--out"], FILES),
    ([*CORRUPT, "--task=deblur"], ["--kernel"], FILES),
    (BENCH, ["--lam", "--subset", "--chunk", "--keep", "--seed"], NUMBERS),
    (BENCH, ["--budget", "--device", "--precision", "--protocol", "--method", "--split", "--task"], ("nan", *WORDS)),
    (BENCH, ["--device"], ("cuda:99", "cuda:-1", "meta", "mps", "cpu:1", "cuda:" + "9" * 30)),
    (BENCH, ["--test", "--prior", "--out"], FILES),
    (["bench", "report", "bench"], ["--setup"], WORDS),
    (["demo", "--prior=tiny.safetensors", "--quiet"], ["--seed", "--out"], (*NUMBERS, "/dev/null", "text", "n" * 300)),
    (["demo", "--quiet", "--out=demo"], ["--prior"], FILES),
]
# Commands without the files that they are for, which get these instead.
FOR_FILES = [DENOISE[:1] + DENOISE[2:], [*CORRUPT[:1], *CORRUPT[2:], "--task=denoise"]]
FOR_FILES += [["priors", "show"], ["bench", "report"], ["bench", "pack"]]

CASES = [[*command, f"{option}={odd}"] for command, options, values in TABLE for option in options for odd in values]
CASES += [[*command, "--", odd] for command in FOR_FILES for odd in FILES]


@pytest.fixture(scope="module")
def folder(prior, tmp_path_factory):
    """A folder with good files, in which every command starts, and with pipes and text beside them."""
    path = tmp_path_factory.mktemp("options")
    for suffix in (".safetensors", ".json"):
        (path / f"tiny{suffix}").write_bytes(prior.with_suffix(suffix).read_bytes())
    write_image(path / "good.png", torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)))
    np.save(path / "vector.npy", np.arange(20.0))
    np.save(path / "images.npy", np.random.default_rng(0).integers(0, 256, (1, *SHAPE), dtype=np.uint8))
    (path / "text").write_text("not what you expect")
    for name in ("pipe", "pipe.npy", "pipe.png"):
        os.mkfifo(path / name)
    return path


def test_there_are_hundreds():
    assert len({tuple(case) for case in CASES}) >= 400


@pytest.mark.parametrize("start", range(0, len(CASES), 20))
def test_an_odd_value_ends_in_one_line(run, folder, monkeypatch, start):
    monkeypatch.chdir(folder)
    for case in CASES[start : start + 20]:
        try:
            run(*case, seconds=30, lines=8)
        except BaseException as error:
            error.add_note(f"in: aipo {case}")
            raise


@pytest.mark.parametrize(
    "command",
    [
        [*RESTORE, "--task=denoise"],
        [*RESTORE, "--task=deblur", "--blur=1"],
        [*SENSE, "--seed=0"],
        [*CORRUPT, "--task=denoise"],
        [*CORRUPT, "--task=inpaint"],
        BENCH,
    ],
)
def test_the_commands_are_in_order(run, folder, tmp_path, monkeypatch, command):
    """Otherwise the values above would not be what they fail by."""
    monkeypatch.chdir(folder)
    assert run(*command, "--out", tmp_path).exit_code == 0
