"""Hundreds of damaged files: each is read, or refused in one line that names it, and never costs another picture."""

import json
import os
import random
import shutil
import stat

import numpy as np
import pytest
import torch
from mutations import SHAPE, SIDE, encoded, mutated_bytes, mutated_file, mutated_json, png_chunk, saved, valid_pictures
from PIL import Image

from aipo.errors import InputError
from aipo.images import open_image, read_kernel, read_mask, read_numbers
from aipo.images.reading import FORMATS, SUFFIXES, open_picture
from aipo.restore.record import Record

PICTURES = valid_pictures()
PICTURE_SEEDS = range(60)
OTHER_SEEDS = range(60)
SECONDS = 30  # for one file, on a slow machine; most take a thousandth


def mask():
    return encoded(Image.fromarray((np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 3 > 0).astype(np.uint8) * 255), "PNG")


OTHERS = {
    "mask.png": (mask(), lambda path: read_mask(path)),
    "kernel.npy": (saved(np.ones((3, 3)) / 9), lambda path: read_kernel(path)),
    "kernel.png": (encoded(Image.new("L", (3, 3), 100), "PNG"), lambda path: read_kernel(path)),
    "matrix.npy": (saved(np.random.default_rng(0).standard_normal((4, 768))), lambda path: read_numbers(path, 2)),
    "vector.npy": (saved(np.arange(20.0)), lambda path: read_numbers(path, 1)),
}


def test_there_are_hundreds():
    assert len(PICTURES) * len(PICTURE_SEEDS) + len(OTHERS) * len(OTHER_SEEDS) >= 1000


@pytest.fixture
def read_or_refused(within):
    """What a function makes of a file; None if it refuses it as it should."""

    def attempt(read, path):
        refused = None
        with within(SECONDS):
            try:
                return read(path)
            except InputError as error:
                refused = str(error)
        assert refused.startswith(f"{path}: ")
        assert "\n" not in refused
        return None

    return attempt


@pytest.mark.parametrize("name", PICTURES)
def test_a_damaged_picture_is_read_or_refused(read_or_refused, tmp_path, name):
    read = 0
    for seed in PICTURE_SEEDS:
        changed, content = mutated_file(name, PICTURES[name], seed, PICTURES)
        path = tmp_path / changed
        path.write_bytes(content)
        opened = read_or_refused(lambda path: open_image(path, noisy=True), path)
        if opened is not None:
            read += 1
            assert opened.x.dtype == torch.float32
            assert opened.x.ndim == 3
            assert opened.x.isfinite().all()
    assert read < len(PICTURE_SEEDS), "the damage does nothing"


@pytest.mark.parametrize("name", OTHERS)
def test_a_damaged_mask_kernel_matrix_or_vector_is_read_or_refused(read_or_refused, tmp_path, name):
    content, read = OTHERS[name]
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) is not None
    for seed in OTHER_SEEDS:
        changed, damaged = mutated_file(name, content, seed, PICTURES)
        (tmp_path / changed).write_bytes(damaged)
        numbers = read_or_refused(read, tmp_path / changed)
        assert numbers is None or numbers.isfinite().all()


@pytest.mark.parametrize("value", [1e39, -1e300, np.nan, np.inf])
def test_numbers_that_solvers_cannot_hold_are_refused(tmp_path, value):
    """In float32 they would be infinite, and so would everything that is computed with them."""
    for dtype in (np.float64, np.longdouble):
        np.save(tmp_path / "vector.npy", np.array([0.0, value], dtype=dtype))
        with pytest.raises(InputError, match="beyond 3e38"):
            read_numbers(tmp_path / "vector.npy", 1)


def test_all_named_formats_are_read_and_no_other(tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
    for kind in FORMATS:
        (tmp_path / "a.png").write_bytes(encoded(picture, kind))
        assert open_image(tmp_path / "a.png").x.shape == SHAPE
    suffixes = {Image.registered_extensions()[suffix] for suffix in SUFFIXES if suffix != ".npy"}
    assert suffixes == set(FORMATS)
    for kind in ("GIF", "ICO", "PPM", "TGA", "JPEG2000", "PCX", "SGI", "EPS", "PDF", "DDS", "IM", "MSP", "SPIDER"):
        source = picture.convert("1" if kind == "MSP" else "F" if kind == "SPIDER" else "RGB")
        (tmp_path / "a.png").write_bytes(encoded(source, kind))
        with pytest.raises(InputError, match="not a PNG, JPEG, WebP, BMP, TIFF or AVIF picture"):
            open_image(tmp_path / "a.png")


def test_no_other_program_is_started(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript; whatever the suffix says, ours must not."""
    witness = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho yes > {witness}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # where Pillow keeps what it has found
    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", SHAPE[1:]), "EPS"))
    with pytest.raises(InputError), open_picture(tmp_path / "a.png") as image:
        image.load()
    assert not witness.exists()


def test_the_size_is_checked_before_anything_is_decoded(tmp_path):
    size = (7000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    content = (
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", size) + png_chunk(b"IDAT", b"never read") + png_chunk(b"IEND", b"")
    )
    (tmp_path / "a.png").write_bytes(content)

    def load(max_pixels):
        with open_picture(tmp_path / "a.png", max_pixels) as image:
            assert image.size == (7000, 7000)
            image.load()

    with pytest.raises(InputError, match="7000x7000 pixels are too many, the limit is 48 million"):
        load(48_000_000)
    with pytest.raises(InputError, match="damaged"):
        load(49_000_000)


# --- whole commands ---


def restore(run, prior, pictures, out, *options, lines=1):
    return run("restore", *pictures, "--task=denoise", "--sigma=0.1", "--lam=0.1", f"--prior={prior}", f"--out={out}",
               "--fit=resize", "--json", *options, lines=lines)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pictures_cost_no_other(run, prior, good, tmp_path, seed):
    """Eight damaged files among good ones: these come out as if they were alone."""
    rng, folder = random.Random(seed), tmp_path / "in"
    folder.mkdir()
    damaged = []
    for i in range(8):
        name = rng.choice(list(PICTURES))
        changed, content = mutated_file(name, PICTURES[name], rng.getrandbits(32), PICTURES)
        damaged.append(folder / f"{i}-{changed}")
        damaged[-1].write_bytes(content)
    for name in ("0-good.png", "9-good.png"):
        shutil.copy(good, folder / name)
    outcome = restore(run, prior, [folder], tmp_path / "out", lines=8)
    document = json.loads(outcome.stdout)
    named = [entry["picture"] for entry in document["failed"]]
    solved = [record["picture"] for record in document["pictures"]]
    assert sorted(named + solved) == sorted(map(str, folder.iterdir()))
    assert {str(folder / "0-good.png"), str(folder / "9-good.png")} <= set(solved)
    assert set(named) <= set(map(str, damaged))
    assert outcome.exit_code == bool(named)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.restored.png"))[-1] == "9-good.restored.png"


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_mask_kernel_or_matrix_ends_in_one_line(run, prior, good, tmp_path, seed):
    for option, name, task, picture in (
        ("--mask", "mask.png", "inpaint", good),
        ("--kernel", "kernel.npy", "deblur", good),
        ("--matrix", "matrix.npy", "sense", tmp_path / "vector.npy"),
    ):
        np.save(tmp_path / "vector.npy", np.arange(4.0))
        changed, content = mutated_file(name, OTHERS[name][0], 1000 + seed, PICTURES)
        (tmp_path / changed).write_bytes(content)
        run("restore", picture, f"--task={task}", option, tmp_path / changed, "--lam=0.1", f"--prior={prior}",
            f"--out={tmp_path / 'out'}", "--quiet")  # fmt: skip


# --- records of earlier runs ---


@pytest.fixture(scope="module")
def finished(run, prior, good, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    assert restore(run, prior, [good], out, "--lam=auto").exit_code == 0
    return out


def test_a_damaged_record_is_parsed_or_refused(finished):
    document = json.loads((finished / "good.json").read_text())
    assert Record.from_json(document)
    refused = []
    for seed in range(150):
        try:
            Record.from_json(mutated_json(document, seed))
        except InputError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 150
    assert not any("\n" in message for message in refused)


@pytest.mark.parametrize("seed", range(24))
def test_a_damaged_record_is_made_again_or_left_alone(run, prior, good, finished, tmp_path, seed):
    """Whatever is in the record: the same results come out, or it is not ours and stays as it is."""
    shutil.copytree(finished, tmp_path / "out")
    record = tmp_path / "out" / "good.json"
    document = json.loads(record.read_text())
    content = (
        json.dumps(mutated_json(document, seed)).encode() if seed % 2 else mutated_bytes(record.read_bytes(), seed)
    )
    record.write_bytes(content)
    outcome = restore(run, prior, [good], tmp_path / "out", "--lam=auto")
    if outcome.exit_code == 2:
        assert "is not an unchanged result of aipo" in outcome.stderr
        assert record.read_bytes() == content
    else:
        assert outcome.exit_code == 0
        for name in ("good.restored.png", "good.strip.png"):
            assert (tmp_path / "out" / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.parametrize("change", ["none", "only the chosen one", "more than fit into the strip"])
def test_a_record_with_other_tiles_than_the_strip_is_made_again(run, prior, good, finished, tmp_path, change):
    shutil.copytree(finished, tmp_path / "out")
    record = tmp_path / "out" / "good.json"
    document = json.loads(record.read_text())
    tiles = document.pop("tiles")
    if change == "only the chosen one":
        document["tiles"] = [tile for tile in tiles if tile["chosen"]]
    elif change != "none":
        document["tiles"] = tiles + 200 * [tiles[0] | {"chosen": False}]
    record.write_text(json.dumps(document))
    assert restore(run, prior, [good], tmp_path / "out", "--lam=auto").exit_code == 0
    assert json.loads(record.read_text())["tiles"] == tiles


@pytest.mark.parametrize("name", ["good.json", "good.restored.png", "report.html"])
def test_a_pipe_where_a_result_should_be_is_left_alone(run, prior, good, tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert restore(run, prior, [good], tmp_path).exit_code == 2
    assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)
