"""What people get wrong with `aipo restore`: one clear line each, the right exit code, and nothing lost.

2: nothing could be done, and nothing was written. 1: something could not be done, the rest was. 130: interrupted.
"""

import io
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files

SHAPE = (3, 64, 64)


def png_header(width, height):
    """A picture that promises to be huge and has no pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def make_inputs(path):
    """A tiny prior, a good picture and mask, and one file for each way to be wrong."""
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {"name": "tiny", "bits": 5, "data": "noise", "license": "none", "metrics": {}}
    save_prior_files(flow, card, path / "tiny.safetensors")
    (path / "broken.safetensors").write_bytes(b"not weights")

    good = aipo.samples.load("astronaut")
    levels = (good.permute(1, 2, 0) * 255).byte().numpy()
    picture = Image.fromarray(levels)
    write_image(path / "good.png", good)
    write_image(path / "small.png", torch.rand(3, 32, 64))
    write_image(path / "tiny.png", torch.rand(3, 16, 16))
    write_image(path / "large.png", torch.full((3, 100, 100), 0.5))
    write_image(path / "black.png", torch.zeros(3, 64, 64))
    content = (path / "good.png").read_bytes()
    (path / "truncated.png").write_bytes(content[: len(content) // 2])
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG")
    (path / "truncated.jpg").write_bytes(buffer.getvalue()[:900])
    (path / "text.png").write_text("not a picture")
    (path / "empty.png").write_bytes(b"")
    (path / "bomb.png").write_bytes(png_header(30_000, 30_000))
    (path / "huge.png").write_bytes(png_header(9_000, 9_000))
    picture.save(path / "gif.gif")
    picture.convert("CMYK").save(path / "cmyk.jpg")
    Image.new("F", (64, 64)).save(path / "float.tif")
    picture.save(path / "pages.tif", save_all=True, append_images=[picture])
    picture.save(path / "animated.webp", save_all=True, append_images=[picture.rotate(90)])
    Image.new("RGBA", (64, 64), (200, 100, 50, 100)).save(path / "clear.png")
    painted = good.clone()
    painted[:, 10:20, 10:20] = torch.tensor([1.0, 0.0, 1.0])[:, None, None]
    write_image(path / "painted.png", painted)

    np.save(path / "nan.npy", np.full((64, 64, 3), np.nan))
    np.save(path / "infinite.npy", np.full((64, 64, 3), np.inf))
    np.save(path / "levels.npy", levels.astype(np.float32))
    np.save(path / "signed.npy", levels / 127.5 - 1)
    np.save(path / "integers.npy", levels.astype(np.int64))
    np.save(path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(path / "four.npy", np.zeros((64, 64, 4)))
    np.savez(path / "archive.npz", levels)
    (path / "archive.npz").rename(path / "archive.npy")
    content = (path / "levels.npy").read_bytes()
    (path / "truncated.npy").write_bytes(content[:-1])
    np.save(path / "vector.npy", np.zeros(10))
    np.save(path / "nan-vector.npy", np.full(10, np.nan))
    np.save(path / "matrix.npy", np.random.default_rng(0).standard_normal((20, 12288)).astype(np.float32))
    np.save(path / "narrow.npy", np.ones((10, 100)))
    np.save(path / "kernel.npy", np.ones((3, 3)))
    np.save(path / "large-kernel.npy", np.ones((65, 3)))
    np.save(path / "zero-kernel.npy", np.zeros((3, 3)))

    write_image(path / "mask.png", (torch.rand(1, 64, 64) > 0.25).float())
    write_image(path / "small-mask.png", torch.ones(1, 32, 32))
    write_image(path / "black-mask.png", torch.zeros(1, 64, 64))
    write_image(path / "gray-mask.png", torch.full((1, 64, 64), 0.5))

    for folder in ("empty", "words", "other", "mine", "my-report", "my-record", "edited"):
        (path / folder).mkdir()
    (path / "words" / "notes.txt").write_text("notes")
    write_image(path / "other" / "Good.png", aipo.samples.load("cat"))
    (path / "in-the-way").write_text("a file")
    (path / "blocked" / "good.restored.png").mkdir(parents=True)
    (path / "mine" / "good.restored.png").write_text("my own picture")
    (path / "my-report" / "report.html").write_text("<html>my thesis</html>")
    (path / "my-record" / "good.json").write_text('{"my": "data"}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("inputs")
    make_inputs(path)
    # A result of ours that its owner has painted over.
    settings = ["--task=denoise", "--sigma=0.1", "--lam=0.1", "--prior", path / "tiny.safetensors", "--quiet"]
    assert restore(path / "good.png", *settings, "--out", path / "edited").exit_code == 0
    write_image(path / "edited" / "good.restored.png", torch.rand(SHAPE))
    # An output folder from an earlier run.
    assert restore(path / "good.png", *settings, "--out", path / "out").exit_code == 0
    return path


def restore(*arguments):
    return CliRunner().invoke(app, ["restore", *map(str, arguments)], catch_exceptions=False)


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


DENOISE = ["--task", "denoise", "--sigma", "0.1"]
INPAINT = ["--task", "inpaint"]
DEBLUR = ["--task", "deblur"]
SENSE = ["--task", "sense"]
SUPERRES = ["--task", "superres"]

BAD = {
    # pictures
    "missing picture": (["absent.png", *DENOISE], "absent.png: no such file"),
    "empty folder": (["empty", *DENOISE], "empty: no pictures in this folder"),
    "folder without pictures": (["words", *DENOISE], "words: no pictures"),
    "truncated png": (["truncated.png", *DENOISE], "truncated.png: damaged"),
    "truncated jpeg": (["truncated.jpg", *DENOISE], "truncated.jpg: damaged"),
    "text": (["text.png", *DENOISE], "text.png: damaged, or not a PNG"),
    "empty file": (["empty.png", *DENOISE], "empty.png: damaged"),
    "unknown format": (["gif.gif", *DENOISE], "gif.gif: damaged, or not a PNG"),
    "decompression bomb": (["bomb.png", *DENOISE], "bomb.png: the picture is much too large"),
    "huge picture": (["huge.png", *DENOISE, "--fit=resize"], "9000x9000 pixels are too many"),
    "another size": (["small.png", *DENOISE], "is 64x32 pixels, but the prior needs 64x64; choose --fit crop"),
    "too small to crop": (["small.png", *DENOISE, "--fit=crop"], "too small for a crop"),
    "no face to align": (["large.png", *DENOISE, "--fit=align"], "large.png: no face was found"),
    "transparent": (["clear.png", *DENOISE], "clear.png: is partly transparent"),
    "CMYK": (["cmyk.jpg", *DENOISE], "cmyk.jpg: is a CMYK picture"),
    "floating point": (["float.tif", *DENOISE], "float.tif: is a floating-point picture"),
    "several pages": (["pages.tif", *DENOISE], "pages.tif: contains 2 pictures"),
    "animation": (["animated.webp", *DENOISE], "animated.webp: contains 2 pictures"),
    "NaN": (["nan.npy", *DENOISE], "nan.npy: the array has NaN"),
    "infinite": (["infinite.npy", *DENOISE], "infinite.npy: the array has NaN or infinite"),
    "0 to 255": (["levels.npy", *DENOISE], "]; did you mean values of 0..255? Then divide them by 255"),
    "-1 to 1": (["signed.npy", *DENOISE], "]; did you mean values of -1..1?"),
    "integers": (["integers.npy", *DENOISE], "has type int64"),
    "pickled objects": (["objects.npy", *DENOISE], "objects.npy: not a readable .npy"),
    "npz": (["archive.npy", *DENOISE], "archive.npy: not a readable .npy"),
    "truncated array": (["truncated.npy", *DENOISE], "truncated.npy: not a readable .npy"),
    "four channels": (["four.npy", *DENOISE], "shape (64, 64, 4)"),
    "a vector for a picture": (["vector.npy", *DENOISE], "shape (10,)"),
    "no noise to estimate": (["black.png", "--task=denoise"], "black.png: its noise cannot be estimated"),
    # noise and weight
    "sigma zero": (["good.png", "--task=denoise", "--sigma=0"], "0"),
    "sigma negative": (["good.png", "--task=denoise", "--sigma=-0.5"], "-0.5"),
    "sigma NaN": (["good.png", "--task=denoise", "--sigma=nan"], "nan"),
    "sigma infinite": (["good.png", *INPAINT, "--mask=mask.png", "--sigma=inf"], "inf"),
    "lam negative": (["good.png", *DENOISE, "--lam=-1"], "-1"),
    "lam NaN": (["good.png", *DENOISE, "--lam=nan"], "nan"),
    "lam infinite": (["good.png", *DENOISE, "--lam=inf"], "inf"),
    "lam zero": (["good.png", *DENOISE, "--lam=0"], "greater than 0"),
    "lam no number": (["good.png", *DENOISE, "--lam=best"], "auto"),
    "a solver that cannot choose lam": (["good.png", *DENOISE, "--solver=paper"], "--lam"),
    # what is missing
    "no mask": (["good.png", *INPAINT], "good.png: it is not clear which pixels are missing; give --mask"),
    "mask for another task": (
        ["good.png", *DENOISE, "--mask=mask.png"],
        "--mask only works with --task inpaint, not denoise",
    ),
    "two masks": (
        ["good.png", *INPAINT, "--mask=mask.png", "--mask-color=ff00ff"],
        "give --mask or --mask-color, not both",
    ),
    "missing mask": (["good.png", *INPAINT, "--mask=absent.png"], "absent.png: no such file"),
    "mask size": (["good.png", *INPAINT, "--mask=small-mask.png"], "small-mask.png: the mask is 32x32"),
    "mask of another picture": (["large.png", *INPAINT, "--mask=mask.png", "--fit=resize"], "the mask 64x64"),
    "mask all black": (["good.png", *INPAINT, "--mask=black-mask.png"], "black-mask.png: the mask is all black"),
    "gray mask": (["good.png", *INPAINT, "--mask=gray-mask.png"], "neither black nor white"),
    "not a color": (["painted.png", *INPAINT, "--mask-color=purplish"], "purplish is not a color"),
    "color not there": (["good.png", *INPAINT, "--mask-color=00ff00"], "no pixel has the color 00ff00"),
    "all transparent": (["clear.png", *INPAINT], "clear.png: is transparent everywhere"),
    # other tasks
    "superres of full size": (["good.png", *SUPERRES], "it must be 32x32 (factor 2) or 16x16 (factor 4)"),
    "superres factor": (["tiny.png", *SUPERRES, "--factor=2"], "it must be 32x32 (factor 2)"),
    "superres by three": (["tiny.png", *SUPERRES, "--factor=3"], "--factor is 3"),
    "superres cannot be fitted": (
        ["tiny.png", *SUPERRES, "--fit=crop"],
        "--fit crop does not work with --task superres",
    ),
    "deblur without kernel": (["good.png", *DEBLUR], "--task deblur needs --blur or --motion or --kernel"),
    "blur negative": (["good.png", *DEBLUR, "--blur=-1"], "width is -1"),
    "blur and kernel": (["good.png", *DEBLUR, "--blur=1", "--kernel=kernel.npy"], "give --blur or --kernel, not both"),
    "large kernel": (["good.png", *DEBLUR, "--kernel=large-kernel.npy"], "large-kernel.npy: kernel has shape (65, 3)"),
    "zero kernel": (["good.png", *DEBLUR, "--kernel=zero-kernel.npy"], "zero-kernel.npy"),
    "colored kernel": (["good.png", *DEBLUR, "--kernel=good.png"], "must be gray"),
    "deblur scaled": (["large.png", *DEBLUR, "--blur=1", "--fit=resize"], "would change the blur"),
    "sense without matrix": (["vector.npy", *SENSE], "--task sense needs --matrix or --seed"),
    "sense of a picture": (["good.png", *SENSE, "--seed=0"], "good.png: is not a .npy array"),
    "NaN measured": (["nan-vector.npy", *SENSE, "--seed=0"], "nan-vector.npy: the array has NaN"),
    "narrow matrix": (["vector.npy", *SENSE, "--matrix=narrow.npy"], "narrow.npy: matrix has shape (10, 100)"),
    "matrix of another vector": (
        ["vector.npy", *SENSE, "--matrix=matrix.npy"],
        "10 measurements, but the matrix has 20",
    ),
    # priors
    "unknown prior": (["good.png", *DENOISE, "--prior=nobody"], "nobody"),
    "missing prior": (["good.png", *DENOISE, "--prior=absent.safetensors"], "absent"),
    "broken prior": (["good.png", *DENOISE, "--prior=broken.safetensors"], "broken"),
    # results
    "same name twice": (["good.png", "other/Good.png", *DENOISE], "would both be written as Good"),
    "file in the way": (["good.png", *DENOISE, "--out=in-the-way"], "in-the-way: a file has that name"),
    "file in the path": (["good.png", *DENOISE, "--out=in-the-way/out"], "cannot create the folder in-the-way/out"),
    "folder in the way": (["good.png", *DENOISE, "--out=blocked"], "good.restored.png: it is a folder"),
    "output is an input": (["good.png", "out/good.restored.png", *DENOISE], "is an input and would be overwritten"),
    "my picture": (["good.png", *DENOISE, "--out=mine"], "mine/good.restored.png already exists and is not an"),
    "my page": (["good.png", *DENOISE, "--out=my-report"], "my-report/report.html already exists and is not an"),
    "my data": (["good.png", *DENOISE, "--out=my-record"], "my-record/good.json already exists and is not an"),
    "my changes to a result": (
        ["good.png", *DENOISE, "--out=edited"],
        "edited/good.restored.png already exists and is",
    ),
}


def test_there_are_forty_kinds():
    assert len(BAD) >= 40


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input(folder, monkeypatch, arguments, named):
    monkeypatch.chdir(folder)
    before = contents(folder)
    # The last of two equal options counts, so each case may override these.
    outcome = restore("--prior", "tiny.safetensors", "--out", "out", *arguments)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("aipo: ")
    assert outcome.stderr.count("\n") == 1
    assert named in outcome.stderr
    assert contents(folder) == before


def test_one_bad_picture_stops_no_other(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    options = [*DENOISE, "--lam=0.1", "--prior=tiny.safetensors", "--out", tmp_path / "out"]
    outcome = restore("truncated.png", "good.png", "absent.png", "small.png", *options, "--json")
    assert outcome.exit_code == 1
    assert [line.split(": ")[1] for line in outcome.stderr.splitlines()] == ["truncated.png", "absent.png", "small.png"]
    document = json.loads(outcome.stdout)
    assert [record["picture"] for record in document["pictures"]] == ["good.png"]
    assert [entry["picture"] for entry in document["failed"]] == ["truncated.png", "absent.png", "small.png"]
    assert (tmp_path / "out" / "good.restored.png").exists()


def test_a_line_break_in_a_name_does_not_break_the_line(folder, tmp_path):
    outcome = restore("two\nlines.png", *DENOISE, "--prior", folder / "tiny.safetensors", "--out", tmp_path / "x")
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1


# --- what needs a process of its own ---


ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}  # small tensors, and several tests at once


def command(*arguments):
    return [sys.executable, "-m", "aipo", "restore", *map(str, arguments)]


def pictures_in(folder, count):
    folder.mkdir()
    for i in range(count):
        x = aipo.samples.load("astronaut") + 0.1 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(i))
        write_image(folder / f"{i:02}.png", x)
    return folder


def test_interrupt_and_go_on(folder, tmp_path):
    pictures, out = pictures_in(tmp_path / "in", 12), tmp_path / "out"
    slow = ["--solver=decayed", "--lam=1", "--prior", folder / "tiny.safetensors", "--out", out]
    with subprocess.Popen(
        command(pictures, *DENOISE, *slow),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
    ) as process:
        while not (out / "07.json").exists():  # of the first eight
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == ("aipo: interrupted; 8 of 12 pictures are restored; run the same command again for the others\n")
    assert sorted(out.glob(".*")) == []
    finished = {path: path.read_bytes() for path in out.glob("*.png")}
    assert len(finished) == 16
    assert (out / "report.html").read_text().count('<div class="slider">') == 8

    outcome = restore(pictures, *DENOISE, *slow)
    assert outcome.exit_code == 0, outcome.output
    assert "Already there from an earlier run: 8." in outcome.stdout
    assert len(list(out.glob("*.restored.png"))) == 12
    assert {path: path.read_bytes() for path in finished} == finished
    assert (out / "report.html").read_text().count('<div class="slider">') == 12


@pytest.mark.parametrize("room", ["none", "for the pictures"])
def test_no_room_for_the_results(folder, tmp_path, room):
    """As on a full disk, writing fails: at once, or after the pictures, at the report."""
    earlier = {path.name: path.stat().st_size for path in (folder / "out").iterdir()}
    largest = max(size for name, size in earlier.items() if name != "report.html")
    assert largest < earlier["report.html"]
    limit = largest if room == "for the pictures" else 100
    options = [*DENOISE, "--lam=0.1", "--prior", folder / "tiny.safetensors", "--out", tmp_path]
    outcome = subprocess.run(
        command(folder / "good.png", *options),
        capture_output=True,
        text=True,
        env=ONE_THREAD,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "aipo: cannot write: File too large; finished results are in place, make room and run the command again\n"
    )
    expected = [] if room == "none" else ["good.json", "good.restored.png", "good.strip.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


@pytest.fixture(scope="module")
def locked():
    """A folder that someone without rights may enter, with things that he may not."""
    folder = Path(tempfile.mkdtemp())  # that of pytest is closed to others
    folder.chmod(0o755)
    make_inputs(folder)
    (folder / "locked").mkdir(mode=0o000)
    (folder / "secret.png").write_bytes((folder / "good.png").read_bytes())
    (folder / "secret.png").chmod(0o000)
    (folder / "read-only").mkdir(mode=0o555)
    yield folder
    (folder / "locked").chmod(0o755)
    shutil.rmtree(folder)


# Root may do everything, and others cannot start his interpreter: it gives up its rights when all is imported, mostly
# by way of runs that succeed.
AS_NOBODY = """
import json, os, sys
import aipo.restore.demo
from typer.testing import CliRunner
from aipo.cli import app
first, then = json.loads(sys.argv[1])
for command in first:
    outcome = CliRunner().invoke(app, command, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
if os.geteuid() == 0:
    os.setuid(65534)
outcomes = [CliRunner().invoke(app, command, catch_exceptions=False) for command in then]
print(json.dumps([(outcome.exit_code, outcome.stdout, outcome.stderr) for outcome in outcomes]))
"""
PRIOR = "--prior=tiny.safetensors"
RESTORE = ["restore", *DENOISE, PRIOR, "--lam=0.1"]
CORRUPT = ["corrupt", "good.png", "--task=denoise"]
DEMO = ["demo", PRIOR, "--quiet"]
BENCH = ["bench", "run", PRIOR, "--task=denoise", "--method=path", "--lam=1", "--subset=1", "--split=ood"]
BENCH += ["--device=cpu", "--quiet"]
FIRST = [
    [*RESTORE, "good.png", "--out=a"],
    [*CORRUPT, "--out=b"],
    [*BENCH, "--out=bench"],
    ["bench", "report", "bench"],
]
FORBIDDEN = {
    "folder": ([*RESTORE, "locked", "--out=out"], "locked: the folder cannot be read: Permission denied"),
    "picture": ([*RESTORE, "secret.png", "--out=out"], "secret.png: permission denied"),
    "place": ([*RESTORE, "good.png", "--out=locked/out"], "locked/out: Permission denied"),
    "mask": ([*RESTORE, "good.png", *INPAINT, "--mask=secret.png", "--out=out"], "secret.png: permission denied"),
    # The same for every command that writes.
    "restore": ([*RESTORE, "good.png", "--out=read-only"], "read-only: permission denied"),
    "restore to a new one": ([*RESTORE, "good.png", "--out=read-only/new"], "read-only/new: Permission denied"),
    "corrupt": ([*CORRUPT, "--out=read-only"], "read-only: permission denied"),
    "demo": ([*DEMO, "--out=read-only"], "read-only: permission denied"),
    "bench run": ([*BENCH, "--out=read-only"], "read-only: permission denied"),
    "bench run to a new one": ([*BENCH, "--out=read-only/new"], "read-only/new: Permission denied"),
    "bench report": (["bench", "report", "bench"], "bench/tables.md: Permission denied"),
    "bench pack": (["bench", "pack", "bench"], "bench: permission denied"),
}


@pytest.fixture(scope="module")
def refusals(locked):
    """How each of these ends, by its name; all in one process, as starting one takes long."""
    commands = json.dumps([FIRST, [command for command, _ in FORBIDDEN.values()]])
    command = [sys.executable, "-c", AS_NOBODY, commands]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=locked, env=ONE_THREAD)
    assert outcome.returncode == 0, outcome.stderr
    return dict(zip(FORBIDDEN, json.loads(outcome.stdout), strict=True))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_without_permission(refusals, name):
    code, printed, complaint = refusals[name]
    assert (code, printed) == (2, ""), complaint
    assert complaint.startswith("aipo: ")
    assert complaint.count("\n") == 1, complaint
    assert FORBIDDEN[name][1] in complaint
