"""`aipo demo` writes what it says, and its numbers are those of the files."""

import json

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import NoiseFlow, RealNVP
from aipo.images import read_image
from aipo.images.metrics import psnr
from aipo.priors.files import save_prior_files
from aipo.restore.demo import DEMO_TASKS, IMAGES, PHOTO_TASKS, PHOTOGRAPH, DemoRecord, table

SHAPE = (3, 64, 64)
PAIRS = [(task.name, PHOTOGRAPH) for task in PHOTO_TASKS]
PAIRS += [(task.name, image) for task in DEMO_TASKS for image in IMAGES]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run with tiny priors: its folder and its JSON document."""
    folder = tmp_path_factory.mktemp("demo")
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, folder / "tiny.safetensors")
    photos = NoiseFlow([2, 2], [4, 4], [1, 1], embedding=8)
    photos.initialize(aipo.samples.photograph()[None])
    save_prior_files(photos, {**card, "bits": 0}, folder / "photos.safetensors")
    priors = ["--prior", str(folder / "tiny.safetensors"), "--photo-prior", str(folder / "photos.safetensors")]
    arguments = ["demo", *priors, "--out", str(folder / "out"), "--json"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return folder / "out", json.loads(outcome.stdout)


def test_every_task_and_picture_is_there(demo):
    out, document = demo
    assert [(r["task"], r["image"]) for r in document["results"]] == PAIRS
    pictures = {f"{task}.{image}.{kind}.png" for task, image in PAIRS for kind in ("truth", "naive", "restored")}
    assert {path.name for path in out.iterdir()} == pictures | {"report.html"}
    assert torch.equal(read_image(out / "denoise.cat.truth.png"), aipo.samples.load("cat"))


def test_the_numbers_are_those_of_the_files(demo):
    out, document = demo
    for record in document["results"]:
        shape = tuple(aipo.samples.photograph().shape) if record["image"] == PHOTOGRAPH else SHAPE
        truth, naive, restored = (
            read_image(out / f"{record['task']}.{record['image']}.{kind}.png", shape)[None]
            for kind in ("truth", "naive", "restored")
        )
        assert record["psnr_before"] == psnr(naive, truth).item()
        assert record["psnr_after"] == psnr(restored, truth).item()
        assert record["status"] == "done"
        if record["image"] != PHOTOGRAPH:
            assert record["loss"] == pytest.approx(record["D"] + record["lam"] * record["P"])
        assert record["seconds"] > 0


def test_corruption_is_as_described(demo):
    out, document = demo
    before = {(r["task"], r["image"]): r["psnr_before"] for r in document["results"]}
    for image in IMAGES:
        assert before["denoise", image] == pytest.approx(20, abs=1)  # -10 log10(0.1^2), a little more by clipping
        gaps = (read_image(out / f"inpaint.{image}.naive.png") == 0).all(0).float().mean()
        assert gaps == pytest.approx(0.25, abs=0.05)


def test_the_report_has_all_pictures_and_the_table(demo):
    out, document = demo
    page = (out / "report.html").read_text()
    assert document["report"] == str(out / "report.html")
    assert page.count("<img ") == len(PHOTO_TASKS) * 2 + len(DEMO_TASKS) * len(IMAGES) * 3
    header, rows = table([DemoRecord.from_json(record) for record in document["results"]])
    assert len(rows) == len(PAIRS)
    for cell in header + [cell for row in rows for cell in row]:
        assert cell in page
    assert "aipo demo --prior" in page


def test_the_photograph_is_restored(demo):
    """Even a flow that is not trained, a Gaussian, knows more than the measurement."""
    _, document = demo
    photographs = [record for record in document["results"] if record["image"] == PHOTOGRAPH]
    assert [record["evaluations"] for record in photographs] == [1, 20, 20]
    assert all(record["psnr_after"] > record["psnr_before"] for record in photographs)


def test_its_prior_must_know_noise_levels(tmp_path):
    outcome = CliRunner().invoke(
        app, ["demo", "--photo-prior", "celeba64-realnvp-small", "--out", str(tmp_path / "out")]
    )
    assert outcome.exit_code == 2
    assert "knows no noise levels" in outcome.stderr
