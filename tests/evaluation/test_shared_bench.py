"""`aipo bench run --jobs`: the rows are those of one process, but for their seconds, whoever dies on the way."""

import json
import os
import signal
from dataclasses import replace
from functools import partial

import numpy
import pytest
import torch
from typer.testing import CliRunner

from aipo.cli import app
from aipo.evaluation import runner
from aipo.evaluation.methods import BUDGET_METHOD
from aipo.evaluation.runner import run
from aipo.evaluation.store import Store
from aipo.integrations.spread import Processes, spread


@pytest.fixture(scope="module")
def plan(make_plan):
    """Three chunks, of one image each, by three methods; one of them needs what another has spent."""
    methods = (BUDGET_METHOD, "zero_init", "path")
    return make_plan(tasks=("denoise",), methods=methods, subset=3, chunk=1, keep=1, trace=True)


@pytest.fixture(scope="module")
def alone(plan, tmp_path_factory):
    """What one process writes."""
    store = Store(tmp_path_factory.mktemp("alone"))
    assert run(plan, store).written == 9
    return contents(store)


def contents(store):
    """Rows without their times, and every other file."""
    files = [file for folder in (store.images, store.traces) for file in sorted(folder.iterdir())]
    rows = [{**row, "seconds": 0} for row in store.read_all()]
    return rows, {file.name: file.read_bytes() for file in files}


def dies_once(notes, plan, folder, job, deadline):
    """`measure_piece`, whose process is killed the first time that it has measured one cell of image 1."""
    if job.cells[0].start == 1 and not (notes / "died").exists():
        (notes / "died").touch()
        runner.measure_piece(plan, folder, replace(job, cells=job.cells[:1]), deadline)
        os.kill(os.getpid(), signal.SIGKILL)
    return runner.measure_piece(plan, folder, job, deadline)


def test_a_process_that_dies_costs_nothing(plan, alone, tmp_path):
    store, notes = Store(tmp_path / "out"), tmp_path / "notes"
    notes.mkdir()

    def killed_once(function, pieces):
        assert function is runner.measure_piece
        return spread(partial(dies_once, notes), pieces, Processes(2))

    tally = run(plan, store, spread=killed_once)
    assert (notes / "died").exists()
    assert (tally.total, tally.written, tally.left, tally.failed) == (9, 9, 0, [])
    assert contents(store) == alone
    # What is there is not measured again, and nobody is asked to.
    tally = run(plan, store, spread=lambda function, pieces: iter(list(pieces)))
    assert (tally.present, tally.written) == (9, 0)


def test_the_command_shares_the_chunks(prior_file, image_set, tmp_path):
    images = tmp_path / "images.npy"
    numpy.save(images, (255 * image_set.images).round().to(torch.uint8).numpy())
    options = ["--prior", prior_file, "--test", images, "--split=test", "--task=denoise", "--method=path", "--lam=0.5"]
    rows = []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        command = ["bench", "run", f"--out={out}", f"--jobs={jobs}", "--chunk=2", "--device=cpu", "--json", *options]
        result = CliRunner().invoke(app, [*map(str, command)], catch_exceptions=False)
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {"folder": str(out), "total": 2, "written": 2, "left": 0, "failed": []}
        rows.append([{**row, "seconds": 0} for row in Store(out).read_all()])
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]


class Failure:
    """What `spread` says of a piece that nobody could compute."""

    def __init__(self, index):
        self.index, self.value, self.failure = index, None, "its process was killed"


def test_chunks_that_fail_are_named_and_stop_no_other(plan, tmp_path):
    def first_fails(function, pieces):
        for index, piece in enumerate(pieces):
            if index:
                function(*piece)
            yield Failure(index) if not index else type("Done", (), {"index": index, "failure": None})

    tally = run(plan, Store(tmp_path), spread=first_fails)
    assert (tally.written, tally.left) == (6, 3)
    assert tally.failed == ["tiny.denoise.test.0000-0001: its process was killed"]


def test_a_spent_budget_shares_nothing(plan, tmp_path):
    tally = run(replace(plan, minutes=0.0), Store(tmp_path), spread=partial(spread, machines=Processes(2)))
    assert (tally.written, tally.left, tally.failed) == (0, 9, [])


def test_jobs_and_ray_exclude_each_other(prior_file, tmp_path):
    options = [f"--prior={prior_file}", "--split=fairface", "--protocol=fair", "--jobs=2", "--ray=auto", "--device=cpu"]
    outcome = CliRunner().invoke(app, ["bench", "run", f"--out={tmp_path}", *options])
    assert outcome.exit_code == 2
    assert outcome.stderr.strip() == "aipo: --jobs and --ray cannot go together; leave one out"
