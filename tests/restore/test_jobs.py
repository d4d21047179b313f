"""`aipo restore --jobs`: the files are those of one process, byte for byte but for timings, whoever dies on the way."""

import json
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import NoiseFlow, RealNVP
from aipo.images import write_image
from aipo.integrations.spread import Processes, fitting_processes, spread
from aipo.priors.files import save_prior_files
from aipo.restore import run as running
from aipo.restore.settings import Settings

COUNT = 10


def save(flow, path, bits):
    save_prior_files(flow, {"name": path.stem, "bits": bits, "data": "-", "license": "-", "metrics": {}}, path)
    return path


@pytest.fixture(scope="module")
def priors(tmp_path_factory):
    """A prior for photographs and one for images of 64x64, both as good as untrained."""
    folder, x = tmp_path_factory.mktemp("priors"), aipo.samples.load("astronaut")[None]
    photo = NoiseFlow(couplings=[2, 2], hidden=[4, 4], blocks=[1, 1]).requires_grad_(False)
    face = RealNVP((3, 64, 64), couplings=[2, 1], hidden=[4, 4])
    for flow in (photo, face):
        flow.initialize(x.expand(8, -1, -1, -1) + 0.05 * torch.randn(8, 3, 64, 64))
    return {"photo": save(photo, folder / "photo.safetensors", 0), "face": save(face, folder / "face.safetensors", 5)}


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    x = aipo.samples.load("astronaut")
    for i in range(COUNT):
        write_image(folder / f"{i}.png", x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(i)))
    (folder / "3.png").write_bytes(b"damaged")
    return folder


def restore(*arguments):
    return CliRunner().invoke(app, ["restore", *map(str, arguments)], catch_exceptions=False)


def contents(folder):
    """Files by name; records without their times."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".png"}
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text().replace(str(folder), ""))
        found[path.name] = {key: value for key, value in record.items() if key != "seconds"}
    return found


@pytest.mark.parametrize("kind", ["photo", "face"])
def test_two_processes_write_what_one_does(tmp_path, priors, pictures, kind):
    command = [pictures, "--task=denoise", f"--prior={priors[kind]}"]
    outcomes = [restore(*command, f"--out={tmp_path / f'out{jobs}'}", f"--jobs={jobs}") for jobs in (1, 2)]
    assert [outcome.exit_code for outcome in outcomes] == [1, 1]
    assert [outcome.stderr for outcome in outcomes] == [outcomes[0].stderr] * 2
    one, two = (contents(tmp_path / f"out{jobs}") for jobs in (1, 2))
    assert len(one) == (COUNT - 1) * (2 if kind == "photo" else 3)
    assert one == two


def dies_once(folder, *piece):
    """`restore_piece`, whose process is killed the first time it comes to picture 5."""
    (images, _) = piece[2:]
    marker = folder / "died"
    if any(image.stem == "5" for image in images) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return running.restore_piece(*piece)


def test_a_process_that_dies_costs_nothing(tmp_path, priors, pictures):
    expected = tmp_path / "expected"
    assert restore(pictures, "--task=denoise", f"--prior={priors['photo']}", f"--out={expected}").exit_code == 1
    job = running.prepare([pictures], tmp_path / "out", Settings("denoise", str(priors["photo"])))

    def killed_once(function, pieces):
        assert function is running.restore_piece
        return spread(partial(dies_once, tmp_path), pieces, Processes(2))

    outcome = running.run(job, running._Nobody(), spread=killed_once)
    assert (tmp_path / "died").exists()
    assert outcome.done == COUNT - 1
    assert [path.name for path, _ in outcome.failed] == ["3.png"]
    assert contents(tmp_path / "out") == contents(expected)


def test_a_piece_that_fails_names_its_pictures(tmp_path, priors, pictures):
    job = running.prepare([pictures], tmp_path / "out", Settings("denoise", str(priors["photo"])))

    class Failure:
        def __init__(self, index):
            self.index, self.value, self.failure = index, None, "its process was killed"

    outcome = running.run(job, running._Nobody(), spread=lambda _, pieces: map(Failure, range(len(pieces))))
    assert outcome.done == 0
    assert [reason for _, reason in outcome.failed] == [f"{path}: its process was killed" for path, _ in outcome.failed]
    assert len(outcome.failed) == COUNT


def test_processes_are_started_where_there_is_work_for_them():
    assert fitting_processes(1) == fitting_processes(7) == 1
    assert 1 <= fitting_processes(10**6) <= (os.cpu_count() or 1)


def test_jobs_and_ray_exclude_each_other(tmp_path, priors, pictures):
    options = ["--task=denoise", f"--prior={priors['photo']}", f"--out={tmp_path / 'out'}", "--jobs=2", "--ray=auto"]
    outcome = restore(pictures, *options)
    assert outcome.exit_code == 2
    assert "--ray" in outcome.stderr


def test_object_storage_through_fsspec(tmp_path, priors, pictures, monkeypatch, capfd):
    """The script that the documentation gives, with the storage that fsspec has in memory."""
    fsspec = pytest.importorskip("fsspec")
    page = (Path(__file__).parents[2] / "docs" / "photographs.md").read_text()
    (script,) = re.findall(r"```python\n(.*?rsync.*?)```", page, re.DOTALL)
    script = script.replace("s3", "memory").replace("photo-small", str(priors["photo"]))
    store = fsspec.filesystem("memory")
    store.put(f"{pictures}/", "/bucket/photos", recursive=True)
    monkeypatch.chdir(tmp_path)
    found = []
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"^1$"):  # one of the pictures is damaged
            exec(script, {})
        found.append({name: store.cat(name) for name in store.find("/bucket/restored")})
        shutil.rmtree(tmp_path / "work")
    out = tmp_path / "alone"
    assert restore(pictures, "--task=denoise", f"--prior={priors['photo']}", f"--out={out}").exit_code == 1
    for path in [*out.glob("*.png"), *out.glob("*.json")]:
        assert f"/bucket/restored/{path.name}" in found[0]
    assert all(found[0][f"/bucket/restored/{path.name}"] == path.read_bytes() for path in out.glob("*.png"))
    records = [name for name in found[0] if name.endswith(".json")]
    assert len(records) == COUNT - 1
    assert all(found[1][name] == found[0][name] for name in records), "not done again: even the seconds are the same"
    assert "3.png" in capfd.readouterr().err
