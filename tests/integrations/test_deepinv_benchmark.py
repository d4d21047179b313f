"""Our solver file for deepinv's benchmarks, run as its CBSD68 task does, on two sample pictures."""

import sys
from pathlib import Path

import pytest
import torch

import aipo
from aipo.images.writing import write_image

pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")
pytest.importorskip("benchopt", reason="benchopt is not installed: make test-deepinv")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "deepinv_task"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cbsd68(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import cbsd68

    return cbsd68


def test_the_task_gives_what_we_measure_ourselves(cbsd68, tmp_path):
    for name in ("astronaut", "cat"):
        write_image(tmp_path / f"{name}.png", aipo.samples.load(name))
    pictures = cbsd68.Pictures(tmp_path, 2)
    flow = aipo.flows.NoiseFlow(couplings=[2, 2, 2], hidden=[8, 8, 8], blocks=[1, 1, 1])
    flow.initialize(torch.stack([pictures[0], pictures[1]]))
    prior = aipo.NoisePrior(flow.requires_grad_(False))
    theirs, ours = (way(prior, pictures, 0.1) for way in (cbsd68.through_deepinv, cbsd68.our_own))
    assert theirs > 28
    assert theirs == pytest.approx(ours, abs=0.02)
