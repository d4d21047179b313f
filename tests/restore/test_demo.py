"""`aipo demo` writes what it says, and its numbers are those of the files."""

import json

import pytest
import torch
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import read_image
from aipo.images.metrics import psnr
from aipo.priors.files import save_prior_files
from aipo.restore.demo import DEMO_TASKS, IMAGES, DemoRecord, table

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run with a tiny prior: its folder and its JSON document."""
    folder = tmp_path_factory.mktemp("demo")
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    card = {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, folder / "tiny.safetensors")
    arguments = ["demo", "--prior", str(folder / "tiny.safetensors"), "--out", str(folder / "out"), "--json"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return folder / "out", json.loads(outcome.stdout)


def test_every_task_and_picture_is_there(demo):
    out, document = demo
    pairs = [(task.name, image) for task in DEMO_TASKS for image in IMAGES]
    assert [(r["task"], r["image"]) for r in document["results"]] == pairs
    pictures = {f"{task}.{image}.{kind}.png" for task, image in pairs for kind in ("truth", "naive", "restored")}
    assert {path.name for path in out.iterdir()} == pictures | {"report.html"}
    assert torch.equal(read_image(out / "denoise.cat.truth.png"), aipo.samples.load("cat"))


def test_the_numbers_are_those_of_the_files(demo):
    out, document = demo
    for record in document["results"]:
        truth, naive, restored = (
            read_image(out / f"{record['task']}.{record['image']}.{kind}.png")[None]
            for kind in ("truth", "naive", "restored")
        )
        assert record["psnr_before"] == psnr(naive, truth).item()
        assert record["psnr_after"] == psnr(restored, truth).item()
        assert record["status"] == "done"
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
    assert page.count("<img ") == len(DEMO_TASKS) * len(IMAGES) * 3
    header, rows = table([DemoRecord.from_json(record) for record in document["results"]])
    assert len(rows) == len(DEMO_TASKS) * len(IMAGES)
    for cell in header + [cell for row in rows for cell in row]:
        assert cell in page
    assert "aipo demo --prior" in page
