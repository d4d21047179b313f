"""`aipo corrupt` does what the operator says, and the command it prints restores what it has made."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.images import open_image, read_image, read_mask, write_image
from aipo.restore import settings
from aipo.restore.operators import make_operator
from aipo.restore.tasks import TASKS

SHAPE = (3, 64, 64)
PRIOR = "celeba64-realnvp-small"


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def clean(tmp_path):
    write_image(tmp_path / "astronaut.png", aipo.samples.load("astronaut"))
    return tmp_path / "astronaut.png"


def corrupt(*arguments):
    outcome = invoke("corrupt", *arguments, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.faces])
def test_what_is_corrupted_is_restored_by_the_printed_command(tmp_path, clean, task):
    made = corrupt(clean, "--task", task, "--out", tmp_path / "out", "--measurements", 1500)
    program, *arguments = shlex.split(made["restore"])
    assert program == "aipo"
    outcome = invoke(*arguments, "--lam", "0.3", "--prior", PRIOR, "--json")
    assert outcome.exit_code == 0, outcome.output
    (record,) = json.loads(outcome.stdout)["pictures"]
    truth = read_image(clean)[None]
    before = open_image(record["strip"]).x[:, :, :64]
    gain = [aipo.metrics.psnr(x[None], truth).item() for x in (before, read_image(record["restored"]))]
    assert gain[1] > gain[0] + (0 if task == "colorize" else 3)


def test_the_noise_is_as_strong_as_asked(tmp_path, clean):
    (name,) = corrupt(clean, "--task=denoise", "--sigma=0.15", "--npy", "--out", tmp_path / "out")["corrupted"]
    error = np.load(name) - np.asarray(Image.open(clean)) / 255
    assert error.shape == (64, 64, 3)
    assert error.std() == pytest.approx(0.15, rel=0.03)
    assert abs(error.mean()) < 0.005
    assert np.load(name).max() > 1, "nothing is cut off"


def test_the_noise_is_not_made_of_the_numbers_of_the_matrix(tmp_path, clean):
    options = ["--task=sense", "--measurements=300", "--seed=4", "--out", tmp_path / "out"]
    (name,) = corrupt(clean, *options)["corrupted"]
    operator = make_operator("sense", SHAPE, measurements=300, seed=4)
    error = torch.from_numpy(np.load(name)) - operator.A(read_image(clean)[None])[0]
    assert error.std().item() == pytest.approx(0.1, rel=0.15)
    # The generator that made the matrix must not make the noise as well.
    assert not torch.allclose(
        error, aipo.Gaussian(0.1).draw((1, 300), torch.Generator().manual_seed(4))[0].float(), atol=1e-3
    )


@pytest.mark.parametrize("task", ["superres", "deblur", "colorize", "inpaint"])
def test_without_noise_it_is_the_operator(tmp_path, clean, task):
    made = corrupt(clean, "--task", task, "--sigma=0", "--npy", "--factor=4", "--blur=2", "--out", tmp_path / "out")
    options = {
        "superres": {"factor": 4},
        "deblur": {"blur": 2.0},
        "inpaint": {"mask": read_mask(tmp_path / "out" / "inpaint.mask.png") if task == "inpaint" else None},
    }
    operator = make_operator(task, SHAPE, **options.get(task, {}))
    expected = operator.A(read_image(clean)[None])[0].permute(1, 2, 0)
    assert np.allclose(np.load(made["corrupted"][0]), expected, atol=1e-6)


def test_a_quarter_is_missing_in_blocks(tmp_path, clean):
    corrupt(clean, "--task=inpaint", "--fraction=0.25", "--block=8", "--out", tmp_path)
    mask = read_mask(tmp_path / "inpaint.mask.png")
    assert mask.mean() == 0.75
    blocks = mask[0].unfold(0, 8, 8).unfold(1, 8, 8).flatten(2)
    assert torch.equal(blocks.amin(2), blocks.amax(2))


def test_the_same_seed_gives_the_same_bytes(tmp_path, clean):
    def made(folder, seed):
        (name, mask) = corrupt(clean, "--task=inpaint", f"--seed={seed}", "--out", tmp_path / folder)["files"]
        return Path(name).read_bytes(), Path(mask).read_bytes()

    assert made("a", 3) == made("b", 3)
    first, other = made("a", 3), made("c", 4)
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_every_picture_has_its_own_noise(tmp_path, clean):
    (tmp_path / "second.png").write_bytes(clean.read_bytes())
    one, two = corrupt(clean, tmp_path / "second.png", "--task=denoise", "--out", tmp_path / "out")["corrupted"]
    assert Path(one).read_bytes() != Path(two).read_bytes()


def test_a_folder_of_corrupted_pictures_with_its_mask_is_restored(tmp_path, clean):
    (tmp_path / "second.png").write_bytes(clean.read_bytes())
    out = tmp_path / "out"
    corrupt(clean, tmp_path / "second.png", "--task=inpaint", "--out", out)
    options = ["--mask", out / "inpaint.mask.png", "--lam=1", "--out", tmp_path / "restored"]
    outcome = invoke("restore", out, "--task=inpaint", *options, "--json")
    assert outcome.exit_code == 0, outcome.output
    assert len(json.loads(outcome.stdout)["pictures"]) == 2


def test_it_prints_what_was_written_and_the_command(tmp_path, clean):
    outcome = invoke("corrupt", clean, "--task=deblur", "--out", tmp_path / "out")
    path = tmp_path / "out" / "astronaut.deblur.png"
    assert outcome.stdout == (
        f"{path}\nRestore with:\naipo restore {path} --task deblur --sigma 0.02 --blur 1.5 "
        f"--prior celeba64-realnvp-small --out {tmp_path / 'out' / 'restored'}\n"
    )
    assert invoke("corrupt", clean, "--task=deblur", "--out", tmp_path / "out", "--quiet").output == ""


def test_fit_cuts_first(tmp_path):
    photo = pytest.importorskip("skimage.data").astronaut()
    Image.fromarray(photo).save(tmp_path / "photo.png")
    options = ["--task=denoise", "--sigma=0", "--fit=align", "--out", tmp_path / "out"]
    (name,) = corrupt(tmp_path / "photo.png", *options)["corrupted"]
    assert aipo.metrics.psnr(read_image(name)[None], aipo.samples.load("astronaut")[None]).item() > 20


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(("task", "fit"), [("denoise", "align"), ("deblur", "crop"), ("sense", None)])
def test_the_command_for_a_photograph_says_how_to_fit_it_if_it_must_be(tmp_path, monkeypatch, task, fit, embedded):
    monkeypatch.setattr(settings, "prior_names", lambda: ["photo-small"] * embedded)
    Image.fromarray(np.full((80, 96, 3), 128, dtype=np.uint8)).save(tmp_path / "photo.png")
    small = ["--fit=resize"] if task == "sense" else []
    words = shlex.split(corrupt(tmp_path / "photo.png", f"--task={task}", *small, "--out", tmp_path / "out")["restore"])
    assert (words[words.index("--fit") + 1] if "--fit" in words else None) == (None if embedded else fit)


BAD = {
    "missing picture": (["absent.png", "--task=denoise"], "absent.png: no such file"),
    "broken picture": (["broken.png", "--task=denoise"], "broken.png: damaged"),
    "transparent": (["clear.png", "--task=denoise"], "clear.png: is partly transparent"),
    "empty folder": (["empty", "--task=denoise"], "empty: no pictures"),
    "sigma infinite": (["a.png", "--task=denoise", "--sigma=inf"], "inf"),
    "block": (["a.png", "--task=inpaint", "--block=5"], "a.png: block is 5"),
    "fraction": (["a.png", "--task=inpaint", "--fraction=1"], "fraction is 1"),
    "mask for another task": (
        ["a.png", "--task=denoise", "--mask=m.png"],
        "--mask only works with --task inpaint, not denoise",
    ),
    "mask size": (["wide.png", "--task=inpaint", "--mask=m.png"], "m.png"),
    "factor": (["a.png", "--task=superres", "--factor=3"], "factor is 3"),
    "blur": (["a.png", "--task=deblur", "--blur=0"], "width is 0"),
    "kernel": (["a.png", "--task=deblur", "--kernel=a.png"], "must be gray"),
    "measurements": (["a.png", "--task=sense", "--measurements=99999"], "too large"),
    "too small to crop": (["tiny.png", "--task=denoise", "--fit=crop"], "tiny.png: the picture is 8x8"),
    "several sizes": (["a.png", "wide.png", "--task=inpaint"], "several sizes"),
    "same name twice": (["a.png", "other/a.png", "--task=denoise"], "both be written"),
    "something in the way": (["a.png", "--task=colorize", "--out=used"], "used/a.colorize.png already exists"),
    "a file for a folder": (["a.png", "--task=colorize", "--out=a.png/x"], "cannot create the folder"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_line_and_writes_nothing(tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "other", "used"):
        (tmp_path / folder).mkdir()
    write_image("a.png", aipo.samples.load("astronaut"))
    write_image("other/a.png", aipo.samples.load("cat"))
    write_image("wide.png", torch.rand(3, 64, 80))
    write_image("tiny.png", torch.rand(3, 8, 8))
    write_image("m.png", torch.ones(1, 64, 64))
    (tmp_path / "broken.png").write_bytes(b"broken")
    (tmp_path / "used" / "a.colorize.png").write_text("mine")
    Image.new("RGBA", (64, 64)).save("clear.png")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = invoke("corrupt", "--out=out", *arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("aipo: ")
    assert outcome.stderr.count("\n") == 1
    assert named in outcome.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
