"""The page for deepinv's users does what it says."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("deepinv", reason="deepinv is not installed: make test-deepinv")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_tutorial_prints_what_it_says(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    import run_tutorials

    notebook = run_tutorials.Notebook(tmp_path)
    blocks = list(run_tutorials.blocks((ROOT / "docs" / "tutorials" / "deepinv.md").read_text()))
    assert len(blocks) > 5
    for language, code, printed in blocks:
        assert run_tutorials.same_output(printed, notebook.run(language, code)), code
