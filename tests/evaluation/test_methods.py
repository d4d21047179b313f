"""Every method solves what it is given: equal budgets, starts and noise that belong to the image, classical oracles.

What is published of them in results/ is whole, and the pages that show it show just that.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import aipo
from aipo.evaluation.analysis.cells import aggregate, one_setup
from aipo.evaluation.analysis.summary import summarize, write_summary
from aipo.evaluation.analysis.verdicts import verdicts
from aipo.evaluation.chunk import Chunk
from aipo.evaluation.classical import CLASSICAL, analyze_haar, synthesize_haar
from aipo.evaluation.methods import BUDGET_METHOD, LAM_UNUSED, LONG_PATH, METHODS, SHORT_PATH
from aipo.evaluation.packed import decode_rows
from aipo.evaluation.protocol import EXPERIMENTS, PROTOCOLS
from aipo.evaluation.runner import run
from aipo.evaluation.store import Cell, Setup, Store
from aipo.images.metrics import psnr
from aipo.priors.files import load_prior_files

SHAPE = (3, 16, 16)


def test_measurements_and_starts_belong_to_the_image_not_to_the_chunk(prior_file, image_set):
    prior = load_prior_files(prior_file)
    operator = EXPERIMENTS["inpaint"].make_operator(SHAPE)

    def chunk_of(numbers):
        truth = image_set.images[list(numbers)]
        return Chunk(prior, EXPERIMENTS["inpaint"], operator, truth, tuple(numbers), (0.5,), 0, "exact", {})

    whole, part = chunk_of(range(4)), chunk_of((2, 3))
    assert torch.equal(whole.y[2:], part.y)
    torch.testing.assert_close(whole.random[2:], part.random)
    noise = torch.where(operator.mask > 0, whole.y - whole.truth, 0)
    assert (noise[0] - noise[1]).abs().max() > 0.01
    assert (whole.random[0] - whole.random[1]).abs().max() > 0.01


def test_the_fair_methods_run_and_stay_within_their_budget(make_plan, tmp_path):
    store = Store(tmp_path)
    plan = make_plan(
        methods=PROTOCOLS["fair"].methods,
        tasks=("denoise",),
        lambdas=(0.5, 1.0),
        subset=1,
        trace=True,
        keep=1,
    )
    run(plan, store)
    files = write_summary(tmp_path)
    assert {"curves-tiny.png", "traces-tiny.png", "figure-denoise-tiny.png"} <= {file.name for file in files}
    tables = (tmp_path / "tables.md").read_text()
    assert "| denoise, test | 1 | BM3D |" in tables
    assert "nan" not in tables
    (trace,) = [t["trace"] for t in store.read_traces(plan.setup.key) if t["method"] == "adam_mle"]
    assert trace[0][1] > trace[-1][1]
    assert [t[0] for t in trace] == sorted(t[0] for t in trace)
    assert (tmp_path / "report.html").read_text().count("<figure") == 3
    rows = store.read_all()
    assert {row["method"] for row in rows} == set(PROTOCOLS["fair"].methods) - {"biharmonic", "wavelets"}
    allowed = {(r["split"], r["lam"]): r["evals"] for r in rows if r["method"] == BUDGET_METHOD}
    for row in rows:
        if row["lam"] == LAM_UNUSED:
            assert METHODS[row["method"]].tasks == ("denoise",)
            continue
        if row["method"] == "aipo":
            continue
        paths = {"path": SHORT_PATH, "path_long": LONG_PATH}
        assert row["evals"] <= paths.get(row["method"], allowed[row["split"], row["lam"]])
    numbers = aggregate(rows)
    lines = " ".join(verdicts(rows))
    assert "follow_path, 65 has a lower mean loss than AIPO in" in lines
    # With a Gaussian all methods should find the same minimum; the paper's constant step ends a little above it.
    for lam in (0.5, 1.0):
        at = {k.method: n.mean for k, n in numbers.items() if (k.metric, k.lam) == ("map_loss", lam)}
        assert max(at["path"], at["adam_mle"], at["lbfgs"]) < min(at["aipo"], at[BUDGET_METHOD]) + 0.1


def test_methods_that_differ_in_their_start_are_one_batch(make_plan, tmp_path):
    methods = (BUDGET_METHOD, "adam_mle", "adam_random", "adam_zero")
    plan = make_plan(methods=methods, tasks=("inpaint",), lambdas=(0.5, 1.0), trace=True)
    heard = set()
    together, alone = Store(tmp_path / "together"), Store(tmp_path / "alone")
    run(plan, together, lambda tally, cell, share: heard.add(cell.rpartition(".")[2]))
    assert heard == {"", BUDGET_METHOD, "adam_mle+adam_random+adam_zero"}
    for method in methods[1:]:
        run(replace(plan, methods=(BUDGET_METHOD, method)), alone)

    def by_cell(store):
        return {(r["method"], r["lam"], r["image"]): (r["loss"], r["psnr"], r["evals"]) for r in store.read_all()}

    ours, theirs = by_cell(together), by_cell(alone)
    assert ours.keys() == theirs.keys()
    for key, numbers in ours.items():
        assert numbers == pytest.approx(theirs[key], abs=1e-2), key
    # They do not all end at the same place by chance: before the last step they are far apart.
    first = {t["method"]: t["trace"][0][1] for t in together.read_traces(plan.setup.key)}
    assert first == pytest.approx({t["method"]: t["trace"][0][1] for t in alone.read_traces(plan.setup.key)}, rel=1e-4)
    assert len({round(first[method]) for method in methods[1:]}) == 3


@pytest.mark.parametrize("name", list(CLASSICAL))
def test_classical_methods_restore_a_face(name):
    prior = aipo.load_prior("celeba64-realnvp-small")
    truth = aipo.samples.load("astronaut")[None]
    for task, restore in list(CLASSICAL[name].items())[-1:]:
        operator = EXPERIMENTS[task].make_operator(prior.image_shape)
        chunk = Chunk(prior, EXPERIMENTS[task], operator, truth, (0,), (), 0, "exact", {})
        observed = psnr(operator.A_dagger(chunk.y).clamp(0, 1), truth)
        assert psnr(restore(chunk).clamp(0, 1), truth) > observed + 4


def test_the_wavelets_are_an_orthonormal_basis():
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    c = analyze_haar(x)
    torch.testing.assert_close(synthesize_haar(c), x)
    torch.testing.assert_close(c.norm(), x.norm())
    flat = analyze_haar(torch.ones(1, 3, 32, 32, dtype=torch.float64))
    assert flat.abs().flatten().sort().values[-5] < 1e-12  # brightness only, in the 2x2 coarsest coefficients


def test_the_seed_changes_noise_and_starts():
    prior = aipo.load_prior("celeba64-realnvp-small")
    operator = EXPERIMENTS["denoise"].make_operator(prior.image_shape)
    truth = aipo.samples.load("astronaut")[None].repeat(2, 1, 1, 1)
    chunks = [
        Chunk(prior, EXPERIMENTS["denoise"], operator, truth, (0, 1), (), seed, "exact", {}) for seed in (0, 1, 2)
    ]
    for name in ("y", "random"):
        drawn = torch.cat([getattr(chunk, name) for chunk in chunks]).flatten(1)
        assert len(drawn.unique(dim=0)) == 6


def test_every_protocol_names_known_things():
    for protocol in PROTOCOLS.values():
        assert set(protocol.methods) <= set(METHODS)
        assert set(protocol.priors) <= set(aipo.prior_names())


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
