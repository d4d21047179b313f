"""What is published in results/ is whole, and the pages that show it show just that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aipo.evaluation.analysis.cells import one_setup
from aipo.evaluation.analysis.summary import summarize
from aipo.evaluation.methods import METHODS
from aipo.evaluation.packed import decode_rows
from aipo.evaluation.store import Cell, Setup, Store

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.mark.parametrize(
    ("name", "cells", "rows", "traces"), [("evaluation", 405, 57_685, 226), ("evaluation-drawn", 96, 2_340, 0)]
)
def test_a_run_recognizes_every_published_cell(name, cells, rows, traces):
    store = Store(RESULTS / name)
    tables = decode_rows(store.packed_rows.read_bytes())
    assert (len(tables), sum(map(len, tables.values()))) == (cells, rows)
    setups = set()
    for known_as, table in tables.items():
        cell, setup = (json.loads(table.schema.metadata[key]) for key in (b"cell", b"setup"))
        setups.add(Setup(**{**setup, "lambdas": tuple(setup["lambdas"])}))
        (setup,) = setups
        assert Cell(**cell).name(setup) == known_as
        assert store.has(Cell(**cell), setup)
    assert len(store.read_traces(setup.key)) == traces


@pytest.mark.parametrize("name", ["evaluation", "evaluation-drawn"])
def test_the_methods_are_those_of_the_published_rows(name):
    """A solver's new option must not make a run measure again what is there."""
    tables = decode_rows(Store(RESULTS / name).packed_rows.read_bytes()).values()
    cells = [json.loads(table.schema.metadata[b"cell"]) for table in tables]
    published = {(cell["method"], cell["settings"]) for cell in cells}
    assert published
    assert published <= {(method.name, method.settings) for method in METHODS.values()}


def test_the_page_of_tables_is_made_from_the_published_rows():
    page = (ROOT / "docs" / "benchmark-results.md").read_text()
    tables = summarize(one_setup(Store(RESULTS / "evaluation").read_all())).markdown().removeprefix("# Results\n\n")
    assert page.endswith(tables), "run `aipo bench report results/evaluation` and put its tables.md into the page"


@pytest.mark.parametrize(
    ("script", "page"), [("path_report", "path-results"), ("engine_report", "performance-results")]
)
def test_pages_have_what_the_scripts_print(script, page):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / f"{page}.md").read_text().endswith(printed.lstrip("\n"))


@pytest.mark.parametrize(("folder", "suffix"), [("results", ".json"), ("benchmarks", ".py")])
def test_every_file_has_its_line(folder, suffix):
    text = (ROOT / folder / "README.md").read_text()
    files = [path.name for path in (ROOT / folder).iterdir() if path.suffix == suffix]
    assert files
    assert not [name for name in files if f"`{name}`" not in text and f"`results/{name}`" not in text]
