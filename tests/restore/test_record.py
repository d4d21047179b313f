"""A record survives the way to JSON and back. A damaged one is an InputError or is made again, never a traceback."""

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.errors import InputError
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files
from aipo.restore.page import COLUMNS, table
from aipo.restore.record import LATER, PathPoint, Record, Tile

SHAPE = (3, 64, 64)
POINTS = (PathPoint(0.1, 0.5, 12.0, 10.0, 20.0, 0.0), PathPoint(1.0, None, 30.0, 10.0, 20.0, None))
RECORD = Record(
    status="done",
    lam=0.5,
    loss=20.0,
    D=10.0,
    P=20.0,
    chi2=0.9,
    evaluations=60,
    picture="a.png",
    picture_sha256="00",
    sigma=0.1,
    sigma_from="given",
    noise_gain=1.0,
    rule="discrepancy",
    target_chi2=None,
    path=POINTS,
    tiles=(Tile(0.1, 0.5, False), Tile(0.5, 0.9, True), Tile(1.0, None, False)),
    notes=("gray: taken as R = G = B",),
    seconds=1.25,
    batch=2,
    settings={"task": "denoise", "sigma": 0.1, "seed": None},
    restored="out/a.restored.png",
    strip="out/a.strip.png",
    files={"a.restored.png": "01", "a.strip.png": "02"},
)
DOCUMENT = json.loads(json.dumps(RECORD.to_json()))


def test_json_and_back():
    assert Record.from_json(DOCUMENT) == RECORD
    assert Record.from_json(DOCUMENT | {"a later version": 1}) == RECORD
    assert Record.from_json({key: value for key, value in DOCUMENT.items() if key not in LATER}) == RECORD


def test_the_keys_on_disk_are_those_of_earlier_runs():
    """A folder of results must stay usable, so these never change."""
    assert set(DOCUMENT) == {
        "picture", "picture_sha256", "status", "lam", "loss", "D", "P", "chi2", "evaluations", "sigma", "sigma_from",
        "noise_gain", "rule", "target_chi2", "path", "tiles", "notes", "seconds", "batch", "settings", "restored",
        "face", "strip", "files", "classical",
    }  # fmt: skip
    assert set(DOCUMENT["path"][0]) == {"lam", "chi2", "loss", "D", "P", "gap"}
    assert set(DOCUMENT["tiles"][0]) == {"lam", "chi2", "chosen"}


@pytest.mark.parametrize("key", [key for key in DOCUMENT if key not in LATER])
def test_a_missing_field_is_named(key):
    document = {name: value for name, value in DOCUMENT.items() if name != key}
    with pytest.raises(InputError, match=f"no {key}; the file is damaged"):
        Record.from_json(document)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lam": "0.5"}, "lam is '0.5'"),
        ({"lam": True}, "lam is True"),
        ({"lam": float("nan")}, "lam is nan"),
        ({"lam": None}, "lam is None"),
        ({"lam": -0.5}, "lam is -0.5"),
        ({"evaluations": 1.5}, "evaluations is 1.5"),
        ({"sigma_from": "guessed"}, "sigma_from is 'guessed'"),
        ({"path": [{"lam": 1.0}]}, "path"),
        ({"path": 7}, "path is 7"),
        ({"tiles": [1]}, "tiles is 1"),
        ({"tiles": []}, "tiles contradict"),
        ({"status": "non finite"}, "tiles contradict"),
        ({"notes": "a note"}, "notes is 'a note'"),
        ({"settings": []}, "settings is"),
        ({"files": {"a": 1}}, "files a is 1"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(change, named):
    with pytest.raises(InputError, match=named) as caught:
        Record.from_json(DOCUMENT | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "done", 7, {}])
def test_something_else_is_not_a_record(document):
    with pytest.raises(InputError):
        Record.from_json(document)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=5)


@given(key=st.sampled_from(sorted(DOCUMENT)), value=values)
def test_any_value_in_any_field_gives_a_record_or_an_input_error(key, value):
    document = copy.deepcopy(DOCUMENT) | {key: value}
    try:
        record = Record.from_json(document)
    except InputError:
        return
    assert json.loads(json.dumps(record.to_json())) == document


def test_the_table_is_made_from_named_fields():
    header, rows = table([RECORD], ("picture", "lam", "chi2", "seconds"))
    assert header == ["picture", "lam", "chi2", "seconds"]
    assert rows == [["a.png", "0.50", "0.900", "1.2"]]
    header, ((picture, status, *_),) = table([RECORD])
    assert header == list(COLUMNS)
    assert (picture, status) == ("a.png", "done")


# --- records of earlier runs, on disk ---


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A tiny prior and an image."""
    folder = tmp_path_factory.mktemp("inputs")
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, folder / "tiny.safetensors")
    write_image(folder / "a.png", aipo.samples.load("astronaut"))
    return folder


def restore(inputs, out):
    options = ["--task=denoise", "--sigma=0.1", f"--prior={inputs / 'tiny.safetensors'}", f"--out={out}"]
    outcome = CliRunner().invoke(app, ["restore", str(inputs / "a.png"), *options], catch_exceptions=False)
    return outcome.exit_code, outcome.stdout, outcome.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"lam": "much"},
        {"chi2": [1]},
        {"tiles": []},
        {"path": [{"lam": -1}]},
        {"notes": None},
        {"sigma_from": "guessed"},
        {"files": {}},
        {"picture": 7},
    ],
)
def test_a_damaged_record_is_made_again(inputs, tmp_path, change):
    assert restore(inputs, tmp_path)[0] == 0
    file = tmp_path / "a.json"
    good = json.loads(file.read_text())
    if change == {"files": {}}:  # then nothing says that these are ours
        for name in good["files"]:
            (tmp_path / name).unlink()
    file.write_text(json.dumps(good | change))
    code, stdout, stderr = restore(inputs, tmp_path)
    assert (code, stderr) == (0, "")
    assert "Already there" not in stdout
    again = json.loads(file.read_text())
    assert again | {"seconds": 0} == good | {"seconds": 0}
    code, stdout, _ = restore(inputs, tmp_path)
    assert (code, "Already there from an earlier run: 1." in stdout) == (0, True)


@pytest.mark.parametrize("content", ["", "[" * 100_000, "{}", "[]", '{"files": [], "settings": {}}', "\udcff"])
def test_a_foreign_file_is_never_overwritten(inputs, tmp_path, content):
    file = tmp_path / "a.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    code, stdout, stderr = restore(inputs, tmp_path)
    assert (code, stdout) == (2, "")
    assert (
        stderr
        == f"aipo: {file} already exists and is not an unchanged result of aipo; move it, or choose another --out\n"
    )
    assert file.read_bytes() == content.encode("utf-8", "surrogateescape")
