"""Whatever a picture is called, it is restored; and what is wrong with its name or its place costs no other."""

import json
import os

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.files import FolderLock
from aipo.flows import NoiseFlow, RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files
from aipo.restore.run import prepare, run
from aipo.restore.settings import Settings

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    flow = RealNVP(SHAPE, couplings=[1], hidden=[4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    save_prior_files(flow, {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}, path)
    return path


@pytest.fixture(scope="module")
def demo_priors(prior):
    path = prior.with_name("photos.safetensors")
    flow = NoiseFlow(couplings=[1], hidden=[4], blocks=[1])
    flow.initialize(aipo.samples.load("cat")[None])
    save_prior_files(flow, {"name": "photos", "bits": 0, "data": "-", "license": "-", "metrics": {}}, path)
    return [f"--prior={prior}", f"--photo-prior={path}"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def put(folder, *names):
    """The same picture under several names."""
    for name in names:
        write_image(folder / name, aipo.samples.load("astronaut"))
    return [folder / name for name in names]


def restore(prior, out, *pictures):
    options = ["--task=denoise", "--sigma=0.1", "--lam=0.1", f"--prior={prior}", f"--out={out}", "--json"]
    return CliRunner().invoke(app, ["restore", *map(str, pictures), *options], catch_exceptions=False)


LONG = {
    "ascii": "n" * 246 + ".png",
    "emoji": "🙂" * 61 + ".png",
    "accents": "é" * 123 + ".png",
    "Chinese": "名" * 83 + ".png",
    "Hindi": "नि" * 41 + ".png",
    "bytes": "\udcff" * 250 + ".png",
}


@pytest.mark.parametrize("name", LONG.values(), ids=LONG)
def test_a_long_name_is_restored_and_costs_no_other(prior, folder, tmp_path, name):
    long, plain = put(folder, name, "~behind.png")
    out = tmp_path / "out"
    outcome = restore(prior, out, folder)
    assert outcome.exit_code == 0, outcome.output
    records = {record["picture"]: record for record in json.loads(outcome.stdout)["pictures"]}
    assert set(records) == {str(long), str(plain)}
    restored = records[str(long)]["restored"]
    assert os.path.exists(restored)
    assert os.path.basename(restored).startswith(name[:20])
    assert restored.endswith(".restored.png")
    # The next run knows it again.
    assert "Already there" not in outcome.stdout
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.png")}
    assert restore(prior, out, folder).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.png")} == before


def test_long_names_that_begin_alike_are_both_restored(prior, folder, tmp_path):
    put(folder, "n" * 245 + "a.png", "n" * 245 + "b.png")
    outcome = restore(prior, tmp_path / "out", folder)
    assert outcome.exit_code == 0, outcome.output
    assert len(list((tmp_path / "out").glob("*.restored.png"))) == 2


def test_a_long_name_is_corrupted_too(folder, tmp_path):
    put(folder, "🙂" * 61 + ".png", "🙂" * 60 + "🙃.png")
    arguments = ["corrupt", str(folder), "--task=denoise", f"--out={tmp_path / 'out'}"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    assert len(list((tmp_path / "out").glob("🙂*.denoise.png"))) == 2


def test_pictures_that_share_a_name_cost_no_other(prior, folder, tmp_path):
    (tmp_path / "other").mkdir()
    a, good = put(folder, "a.png", "good.png")
    (b,) = put(tmp_path / "other", "A.png")
    outcome = restore(prior, tmp_path / "out", folder, b)
    assert outcome.exit_code == 1
    assert outcome.stderr == f"aipo: {a} and {b} would both be written as A; restore them one by one\n"
    assert [record["picture"] for record in json.loads(outcome.stdout)["pictures"]] == [str(good)]


def test_what_is_the_users_costs_no_other(prior, folder, tmp_path):
    put(folder, "a.png", "good.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.restored.png").write_text("mine")
    outcome = restore(prior, tmp_path / "out", folder)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith(f"aipo: {tmp_path / 'out' / 'a.restored.png'} already exists and is not an")
    assert outcome.stderr.count("\n") == 1
    assert (tmp_path / "out" / "a.restored.png").read_text() == "mine"
    assert (tmp_path / "out" / "good.restored.png").exists()


class PutsInTheWay:
    """While pictures are solved, somebody makes a folder where a file should go."""

    def __init__(self, path):
        self.path = path

    def begin(self, total):
        self.path.mkdir(parents=True)

    def reached(self, images): ...

    def say(self, text): ...


@pytest.mark.parametrize("kind", ["restored", "face"])  # written, and removed: an InputError and an OSError
def test_a_result_that_cannot_be_written_costs_no_other(prior, folder, tmp_path, kind):
    a, good = put(folder, "a.png", "good.png")
    settings = Settings("denoise", str(prior), sigma=0.1, lam=0.1)
    job = prepare([folder], tmp_path / "out", settings)
    outcome = run(job, PutsInTheWay(tmp_path / "out" / f"a.{kind}.png"))
    ((failed, reason),) = outcome.failed
    assert failed == a
    assert reason.startswith(f"{a}: ")
    assert [record.picture for record in outcome.records] == [str(good)]
    assert (tmp_path / "out" / "report.html").exists()


class TakesAway(PutsInTheWay):
    """While pictures are solved, somebody removes one."""

    def begin(self, total): ...

    def say(self, text):
        if text.startswith("solving"):
            self.path.unlink()


def test_a_picture_that_vanishes_costs_no_other(prior, tmp_path):
    """The whole photo is read again when its face is put back."""
    photo = pytest.importorskip("skimage.data").astronaut()
    x = torch.from_numpy(photo).permute(2, 0, 1).float() / 255
    paths = [tmp_path / "a.png", tmp_path / "good.png"]
    for path in paths:
        write_image(path, x)
    settings = Settings("denoise", str(prior), sigma=0.1, lam=0.1, fit="align")
    outcome = run(prepare(paths, tmp_path / "out", settings), TakesAway(paths[0]))
    assert [(path, "no such file" in reason) for path, reason in outcome.failed] == [(paths[0], True)]
    assert [record.picture for record in outcome.records] == [str(paths[1])]


# --- two commands and one folder ---


@pytest.mark.parametrize("command", ["restore", "corrupt", "demo"])
def test_two_commands_do_not_write_to_one_folder(prior, demo_priors, folder, tmp_path, command):
    (picture,) = put(folder, "a.png")
    out = tmp_path / "out"
    options = {
        "restore": [str(picture), "--task=denoise", "--sigma=0.1", f"--prior={prior}"],
        "corrupt": [str(picture), "--task=denoise"],
        "demo": demo_priors,
    }
    arguments = [command, *options[command], f"--out={out}", "--quiet"]
    with FolderLock(out) as lock:
        lock.acquire()
        outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert os.listdir(out) == [".aipo-lock"]
    assert outcome.exit_code == 2
    assert outcome.stderr == (
        f"aipo: process {os.getpid()} is writing to the folder {out}; wait until it has finished, or choose another "
        "folder\n"
    )
    if command != "demo":
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0


def test_a_demo_overwrites_no_page_of_yours(demo_priors, tmp_path):
    (tmp_path / "report.html").write_text("<html>my thesis</html>")
    outcome = CliRunner().invoke(app, ["demo", *demo_priors, f"--out={tmp_path}"], catch_exceptions=False)
    assert outcome.exit_code == 2
    assert "already exists and is not a report of aipo" in outcome.stderr
    assert os.listdir(tmp_path) == ["report.html"]


# --- going on ---


def test_neighbors_are_solved_together_again(prior, folder, tmp_path):
    """Rounding depends on who is solved together: one lost result comes back with the bytes that it had."""
    put(folder, *(f"{i}.png" for i in range(5)))
    for i, path in enumerate(sorted(folder.iterdir())):
        write_image(path, torch.rand(SHAPE, generator=torch.Generator().manual_seed(i)))
    out = tmp_path / "out"
    assert restore(prior, out, folder).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.glob("*.png")}
    untouched = {path: path.stat().st_mtime_ns for path in out.glob("[0-35-9].*")}
    for path in out.glob("4.*"):
        path.unlink()
    outcome = restore(prior, out, folder)
    assert {path.name: path.read_bytes() for path in out.glob("*.png")} == before
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    assert [record["batch"] for record in json.loads(outcome.stdout)["pictures"]] == [5] * 5
