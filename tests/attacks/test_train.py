"""`aipo train` with data and options that nobody should trust: one line, a code of 0, 1 or 2, and nothing half done."""

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import presets
from aipo.training.photos import hold_out

QUICK = ["--size", "16", "--batch", "4", "--steps", "2"]


def run(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def images(count=120, side=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def saved(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def archive(*members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for i, content in enumerate(members):
            file.writestr(f"arr_{i}.npy", content)
    return buffer.getvalue()


def promising(shape, dtype="|u1"):
    """A .npy file whose header promises more than it has."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def picture(side=24):
    buffer = io.BytesIO()
    Image.fromarray(images(1, side)[0]).save(buffer, "PNG")
    return buffer.getvalue()


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(/tmp/owned) (w) file\n%%EOF\n"
WRONG_FILES = {
    "empty.npy": b"",
    "text.npy": b"not an array",
    "truncated.npy": saved(images())[:-100],
    "objects.npy": saved(np.array([{}], dtype=object), allow_pickle=True),
    "floats.npy": saved(images().astype(np.float32)),
    "flat.npy": saved(np.zeros(10, dtype=np.uint8)),
    "scalar.npy": saved(np.uint8(3)),
    "none.npy": saved(images()[:0]),
    "few.npy": saved(images(5)),
    "promises.npy": promising((2**40, 16, 16, 3)),
    "negative.npy": promising((-1, 16, 16, 3)),
    "empty.npz": b"",
    "no-members.npz": archive(),
    "text.npz": archive(b"not an array"),
    "objects.npz": archive(saved(np.array([{}], dtype=object), allow_pickle=True)),
    "truncated.npz": archive(saved(images()))[:-40],
    "short.npz": archive(saved(images())[:-100]),
    "promises.npz": archive(promising((2**40, 16, 16, 3))),
    "bomb.npz": archive(saved(np.zeros((40_000_000,), dtype=np.uint8))),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_arrays(tmp_path, name):
    (tmp_path / name).write_bytes(WRONG_FILES[name])
    refused(run(tmp_path / name, "--out", tmp_path / "p.safetensors", *QUICK), tmp_path)


WRONG_PICTURES = {
    "truncated": picture()[:200],
    "cut in the header": picture()[:20],
    "text": b"not a picture",
    "empty": b"",
    "postscript": POSTSCRIPT,
    "an icon": b"\0\0\1\0\1\0" + b"\x10" * 100,
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        (folder / f"good{i}.png").write_bytes(picture())
    return folder


@pytest.mark.parametrize("kind", WRONG_PICTURES)
def test_pictures(folder, tmp_path, kind):
    (folder / "bad.png").write_bytes(WRONG_PICTURES[kind])
    result = run(folder, "--out", tmp_path / "p.safetensors", "--model", "realnvp-small", *QUICK)
    refused(result, tmp_path)
    assert "bad.png" in result.stderr


@pytest.mark.parametrize("kind", WRONG_PICTURES)
def test_damaged_photographs_cost_no_other(folder, tmp_path, monkeypatch, kind):
    """Whether it is one for training or for validation: there are seeds here for both."""
    sizes = {"couplings": [2, 2], "hidden": [8, 8], "blocks": [1, 1], "embedding": 8}
    monkeypatch.setitem(presets.NOISE_PRESETS, "photo-small", sizes)
    (folder / "bad.png").write_bytes(WRONG_PICTURES[kind])
    (folder / "good3.png").write_bytes(picture())
    for i in range(6):
        (folder / f"more{i}.png").write_bytes(picture())
    held = [hold_out(sorted(folder.iterdir()), 2, seed)[1] for seed in (0, 1, 2, 3)]
    assert len({any(path.name == "bad.png" for path in paths) for paths in held}) == 2
    for seed in range(4):
        out = tmp_path / f"p{seed}.safetensors"
        result = run(
            folder, "--out", out, "--model", "photo-small", "--crop", 16, "--seed", seed, *QUICK[2:], "--quiet"
        )
        assert (result.exit_code, result.stderr) == (1, "aipo: bad.png: damaged, and was left out\n")
        assert aipo.load_prior(out).card["training"]["unreadable"] == ["bad.png"]


def test_a_folder_of_damaged_photographs_is_refused(tmp_path):
    (tmp_path / "pictures").mkdir()
    for i, content in enumerate(WRONG_PICTURES.values()):
        (tmp_path / "pictures" / f"{i}.png").write_bytes(content)
    for crop in (16, 200):
        result = run(tmp_path / "pictures", "--out", tmp_path / "p.safetensors", "--model", "photo-small",
                     "--crop", crop, *QUICK[2:])  # fmt: skip
        refused(result, tmp_path)


WRONG_OPTIONS = [
    *[("--minutes", v) for v in ("nan", "inf", "-inf", "-1", "0", "1e999")],
    *[("--lr", v) for v in ("nan", "inf", "0", "-1", "1e999")],
    *[("--seed", v) for v in ("-1", str(2**63), str(2**64), "1.5", "x")],
    *[("--steps", v) for v in ("0", "-3", "1.5", "nan")],
    *[("--batch", v) for v in ("0", "-1", "nan")],
    *[("--size", v) for v in ("0", "-16", "17", "x")],
    *[("--bits", v) for v in ("0", "9", "-1")],
    *[("--ema", v) for v in ("nan", "-0.1", "1.1")],
    *[("--noise", v) for v in ("nan", "inf", "-1")],
    *[("--score-weight", v) for v in ("nan", "inf", "-1")],
    *[("--weight-decay", v) for v in ("nan", "inf", "-1")],
    *[("--every", v) for v in ("nan", "0", "-1")],
    *[("--val", v) for v in ("absent", "/dev/null", ".")],
    *[("--from", v) for v in ("absent", "absent.safetensors", "celeba64-glow", "")],
    *[("--model", v) for v in ("", "diffusion")],
    *[("--out", v) for v in ("p.pt", "p", "/dev/null/p.safetensors")],
]


@pytest.mark.parametrize(("option", "value"), WRONG_OPTIONS)
def test_options(tmp_path, option, value):
    np.save(tmp_path / "images.npy", images())
    options = dict(zip(QUICK[::2], QUICK[1::2], strict=True)) | {"--out": str(tmp_path / "p.safetensors")}
    if option == "--minutes":
        del options["--steps"]
    options[option] = value
    refused(run(tmp_path / "images.npy", *[word for pair in options.items() for word in pair]), tmp_path)


@pytest.mark.parametrize("seed", [2**63 - 1, 2**40])
def test_large_seeds_are_seeds(tmp_path, seed):
    np.save(tmp_path / "images.npy", images())
    result = run(tmp_path / "images.npy", "--out", tmp_path / "p.safetensors", "--seed", seed, *QUICK)
    assert result.exit_code == 0, result.output


def test_a_checkpoint_goes_on_with_its_own_data_only(tmp_path):
    """Once, the weights of A ended up under the card of B."""
    for name, seed in (("a", 0), ("b", 1)):
        np.save(tmp_path / f"{name}.npy", images(seed=seed))
    out = tmp_path / "p.safetensors"
    assert run(tmp_path / "a.npy", "--out", out, "--data", "A", *QUICK).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("p.*")}
    result = run(tmp_path / "b.npy", "--out", out, "--data", "B", *QUICK)
    assert result.exit_code == 2
    assert "other data" in result.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.glob("p.*")} == before
    shutil.copy(tmp_path / "a.npy", tmp_path / "renamed.npy")
    assert run(tmp_path / "renamed.npy", "--out", out, "--data", "A", *QUICK).exit_code == 0
    assert aipo.load_prior(out).card["data"] == "A"


def test_a_checkpoint_goes_on_with_its_own_beginning_only(tmp_path):
    np.save(tmp_path / "a.npy", images())
    for name, seed in (("first", 0), ("second", 1)):
        out = tmp_path / f"{name}.safetensors"
        assert run(tmp_path / "a.npy", "--out", out, "--seed", seed, *QUICK).exit_code == 0
    out = tmp_path / "p.safetensors"
    assert run(tmp_path / "a.npy", "--out", out, "--from", tmp_path / "first.safetensors", *QUICK).exit_code == 0
    result = run(tmp_path / "a.npy", "--out", out, "--from", tmp_path / "second.safetensors", *QUICK)
    assert result.exit_code == 2
    assert "another prior to begin with" in result.stderr
    assert json.loads(out.with_suffix(".json").read_text())["training"]["started_from"].endswith("first.safetensors")


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_a_damaged_checkpoint(tmp_path, damage):
    np.save(tmp_path / "a.npy", images())
    out = tmp_path / "p.safetensors"
    assert run(tmp_path / "a.npy", "--out", out, *QUICK).exit_code == 0
    checkpoint = tmp_path / "p.checkpoint.safetensors"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes({"truncated": content[:-100], "text": b"not a checkpoint", "empty": b""}[damage])
    result = run(tmp_path / "a.npy", "--out", out, *QUICK)
    assert result.exit_code == 2
    assert "not a readable checkpoint" in result.stderr
    assert result.stderr.count("\n") == 1


def refused(result, folder: Path):
    """One line of complaint, or typer's box for an option that it refuses itself; no traceback, and nothing written."""
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 1 or "Usage:" in result.stderr
    assert not list(folder.glob("p.*"))
