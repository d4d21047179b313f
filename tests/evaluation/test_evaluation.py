"""The benchmark: equal budgets, rows that do not depend on how a split is cut into chunks, resume."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.errors import InputError
from aipo.evaluation.analysis.cells import one_setup
from aipo.evaluation.analysis.summary import write_summary
from aipo.evaluation.image_set import default_image_set, read_image_set
from aipo.evaluation.methods import BUDGET_METHOD
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.evaluation.runner import run
from aipo.evaluation.store import Store
from aipo.flows import GaussianFlow
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.solvers.follow_path import FollowPath
from aipo.solvers.lbfgs import LBFGS

SHAPE = (3, 16, 16)


def without_clocks(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(make_plan, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("bench"))
    plan = make_plan()
    tally = run(plan, store)
    assert (tally.total, tally.written, tally.left) == (10, 10, 0)
    return plan, store


def test_every_image_lam_and_method_has_a_row(finished):
    _, store = finished
    rows = store.read_all()
    keys = {(r["task"], r["split"], r["method"], r["lam"], r["image"]) for r in rows}
    assert len(keys) == len(rows) == 2 * 5 * 1 * 2
    for row in rows:
        assert row["status"] == "done"
        assert row["loss"] == pytest.approx(row["D"] + row["lam"] * row["P"])
        assert row["psnr"] > 0
        assert -1 <= row["ssim"] <= 1
        assert row["prior_sha256"]
        assert row["torch"] == torch.__version__


def test_methods_spend_the_same_on_each_image(finished):
    _, store = finished
    spent = {(r["task"], r["split"], r["image"], r["method"]): r["evals"] for r in store.read_all()}
    for (task, split, image, method), evals in spent.items():
        assert method == "aipo" or evals == spent[task, split, image, BUDGET_METHOD]
    # Inpainting pays for its start, denoising has it for nothing.
    assert min(e for (task, *_), e in spent.items() if task == "inpaint") > 500


def test_a_second_run_does_nothing(finished):
    plan, store = finished
    before = {file: file.stat().st_mtime_ns for file in store.folder.iterdir()}
    tally = run(plan, store)
    assert (tally.present, tally.written) == (10, 0)
    assert {file: file.stat().st_mtime_ns for file in store.folder.iterdir()} == before


def test_a_lost_file_comes_back_the_same(finished):
    plan, store = finished
    rows = without_clocks(store.read_all())
    for file in random.Random(0).sample(sorted(store.folder.glob("*.parquet")), 3):
        file.unlink()
    assert run(plan, store).written == 3
    assert without_clocks(store.read_all()) == rows


def test_other_settings_never_mix(make_plan, finished):
    plan, store = finished
    files = set(store.folder.iterdir())
    assert len(one_setup(store.read_all())) == 20
    other = make_plan(seed=1, tasks=("denoise",), methods=("aipo",))
    assert run(other, store).written == 1
    with pytest.raises(InputError, match="--setup"):
        one_setup(store.read_all())
    assert len(one_setup(store.read_all(), plan.setup.key)) == 20
    assert len(one_setup(store.read_all(), other.setup.key)) == 2
    with pytest.raises(InputError, match="no results have the setup"):
        one_setup(store.read_all(), "nonsense")
    (new,) = set(store.folder.iterdir()) - files
    new.unlink()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("settings", "aipo was measured with different settings"),
        ("prior_sha256", "p was measured with different weights"),
        ("fingerprint", "p test was measured with different images"),
    ],
)
def test_a_report_refuses_what_does_not_belong_together(column, message):
    row = {"setup": "s", "date": "", "prior": "p", "task": "denoise", "split": "test", "lam": 1.0, "method": "aipo"}
    row |= {"image": 0, "settings": "", "prior_sha256": "", "fingerprint": ""}
    other = {**row, "image": 1, column: "other"}
    assert one_setup([row, row]) == [row]
    with pytest.raises(InputError, match=message):
        one_setup([row, other])
    # Another split has other images, and another prior other weights.
    other |= {"fingerprint": {"prior": "q"}, "prior_sha256": {"prior": "q"}}.get(column, {"method": "path"})
    assert len(one_setup([row, other])) == 2


def test_a_spent_budget_begins_nothing(make_plan, tmp_path):
    tally = run(make_plan(minutes=0.0), Store(tmp_path))
    assert (tally.written, tally.left) == (0, 10)


def test_a_baseline_needs_the_method_whose_budget_it_gets(make_plan, tmp_path):
    with pytest.raises(InputError, match="evaluations of aipo"):
        run(make_plan(methods=("zero_init",)), Store(tmp_path))


def test_plain_lbfgs_at_several_lam_is_that_of_each_lam(prior_file, image_set):
    prior = load_prior_files(prior_file)
    operator, noise = EXPERIMENTS["inpaint"].make_operator(SHAPE), EXPERIMENTS["inpaint"].noise
    y = operator.measure(image_set.images[:2], noise, seed=5)
    problem = aipo.MapProblem(prior, operator, noise, y)
    both = aipo.MapProblem(prior, operator, noise, y.repeat(2, 1, 1, 1))
    lambdas, budgets = (0.5, 2.0), (6, 9)
    x0 = torch.full((4, *SHAPE), 0.5)
    solver = LBFGS((6, 6, 9, 9), tolerance=0.0, model="none")
    found = solver.solve(both, torch.tensor([0.5, 0.5, 2.0, 2.0]), x0)
    assert found.evals.tolist() == [6, 6, 9, 9]
    assert found.status == ["done"] * 4
    for i, (lam, budget) in enumerate(zip(lambdas, budgets, strict=True)):
        single = FollowPath((lam,), budget, tolerance=0.0, model="none").solve(problem, x0=x0[:2]).at(lam)
        torch.testing.assert_close(found.x[2 * i : 2 * i + 2], single.x, rtol=0, atol=3e-4)
        torch.testing.assert_close(found.loss[2 * i : 2 * i + 2], single.loss, rtol=1e-5, atol=0.1)


def test_a_run_says_how_far_each_cell_is(make_plan, tmp_path):
    heard = []
    plan = make_plan(tasks=("denoise",), methods=("aipo", BUDGET_METHOD, "mle_init", "path", "lbfgs"))
    run(plan, Store(tmp_path), lambda tally, cell, share: heard.append((cell, share)))
    for method in plan.methods:
        shares = [share for cell, share in heard if cell.endswith(f".{method}")]
        assert shares == sorted(shares)
        assert shares[0] == 0
        assert len(shares) > 3
        assert shares[-1] <= 1
        # With a Gaussian prior a quasi-Newton method needs little of its budget.
        assert method in ("path", "lbfgs") or shares[-1] > 0.5


def test_defaults_need_no_data():
    prior = aipo.load_prior("celeba64-realnvp-small")
    drawn, sample_images = default_image_set(prior, "test"), default_image_set(prior, "ood")
    assert drawn.images.shape[1:] == sample_images.images.shape[1:] == prior.image_shape
    assert torch.equal(drawn.images, default_image_set(prior, "test").images)
    assert len(sample_images) == 2
    assert default_image_set(prior, "fairface") is None


def test_celeba_is_read_from_its_own_layout(tmp_path):
    folder = tmp_path / "img_align_celeba"
    folder.mkdir()
    lines = []
    for i, partition in enumerate((0, 2, 1, 2, 2), start=1):
        # White where the priors expect the left eye, so that the crop can be checked.
        pixels = numpy.full((218, 178, 3), 10 * i, dtype=numpy.uint8)
        pixels[106:117, 64:75] = 255
        Image.fromarray(pixels).save(folder / f"{i:06}.png")
        lines.append(f"{i:06}.png {partition}")
    with pytest.raises(InputError, match="list_eval_partition"):
        read_image_set(tmp_path, 64, mosaics=False)
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines))
    found = read_image_set(tmp_path, 64, mosaics=False)
    assert found.images.shape == (3, 3, 64, 64)
    assert [round(255 * image[0, -1, -1].item()) for image in found.images] == [20, 40, 50]
    assert (found.images[:, :, 19, 18] > 0.9).all()


def test_the_command_line_reports_what_it_ran(finished):
    _, store = finished
    folder = store.folder.parent
    result = CliRunner().invoke(app, ["bench", "report", str(folder)])
    assert result.exit_code == 0, result.output
    tables = (folder / "tables.md").read_text()
    assert "AIPO has a lower mean loss than all three constant steps in" in tables
    latex = (folder / "tables.tex").read_text()
    # Two tables for each task, and one of the best lam with a line for each.
    assert (latex.count(r"\begin{table}"), latex.count(r"\textbf{")) == (5, 6)
    assert (folder / "tables.csv").read_text().startswith("metric,task,prior")
    page = (folder / "report.html").read_text()
    # ... and on the page one that names the methods, and the counts as a list.
    assert (page.count("<table"), page.count('<td class="marked">')) == (6, 6)
    assert "<li>AIPO has a lower mean loss than all three constant steps in" in page
    assert 'class="chart"' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--out", "x", "--protocol", "best"], "unknown protocol best"),
        (["run", "--out", "x", "--task", "juggle"], "unknown task juggle"),
        (["run", "--out", "x", "--method", "guess"], "unknown method guess"),
        (["run", "--out", "x", "--test", "nowhere"], "nowhere does not exist"),
        (["run", "--out", "x", "--lam", "0"], "lam must be positive"),
        (["run", "--out", "x", "--fairface", "."], "the protocol paper has no such split"),
        pytest.param(
            ["run", "--out", "x", "--device", "cuda"],
            "there is no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (["report", "nowhere"], "no results"),
        (["pack", "nowhere"], "no results"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_is_named_twice_is_done_once(prior_file, tmp_path):
    twice = ["--task", "denoise", "--method", "path", "--split", "test", "--prior", str(prior_file)]
    result = CliRunner().invoke(
        app, ["bench", "run", "--out", str(tmp_path), "--subset", "1", "--device", "cpu", "--json", *twice, *twice]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["total"] == json.loads(result.stdout)["written"] == 1


def test_a_finished_run_says_that_it_keeps_no_images(prior_file, tmp_path):
    command = ["bench", "run", "--out", str(tmp_path), "--prior", str(prior_file), "--method", "path", "--subset", "1"]
    command += ["--device", "cpu", "--task", "denoise", "--split", "test"]
    said = [CliRunner().invoke(app, [*command, *more]).stdout for more in ((), ("--keep", "1"), ())]
    assert ["are kept only of what was solved now" in text for text in said] == [False, True, False]


def test_a_killed_run_goes_on_to_the_same_rows(prior_file, image_set, tmp_path):
    """Killed for good, at random moments, and started again until it is done."""
    images = tmp_path / "images.npy"
    numpy.save(images, (255 * image_set.images).round().to(torch.uint8).numpy())

    def command(out):
        options = {"--out": tmp_path / out, "--prior": prior_file, "--test": images, "--ood": images, "--subset": 2}
        options |= {"--lam": 0.5, "--chunk": 2, "--task": "denoise", "--device": "cpu"}
        words = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, "-m", "aipo", "bench", "run", "--quiet", *words]

    def written():
        return {file: file.stat().st_mtime_ns for file in (tmp_path / "broken/rows").glob("*.parquet")}

    subprocess.run(command("unbroken"), check=True)
    clock = random.Random(1)
    for _ in range(3):
        before = written()
        process = subprocess.Popen(command("broken"))
        while process.poll() is None and written() == before:
            time.sleep(0.005)
        time.sleep(clock.uniform(0, 0.2))
        process.kill()
        process.wait()
        assert before.items() <= written().items()
    before = written()
    subprocess.run(command("broken"), check=True)
    assert before
    assert before.items() <= written().items()
    broken, unbroken = (without_clocks(Store(tmp_path / name).read_all()) for name in ("broken", "unbroken"))
    assert broken == unbroken
    assert len(broken) == 2 * 5 * 2


def test_a_run_goes_on_in_a_packed_folder(make_plan, tmp_path):
    plan = make_plan(tasks=("denoise",), methods=(BUDGET_METHOD, "mle_init", "zero_init"))
    whole, packed = Store(tmp_path / "whole"), Store(tmp_path / "packed")
    run(plan, whole)
    run(replace(plan, methods=(BUDGET_METHOD,)), packed)
    packed.pack(remove=True)
    assert run(replace(plan, methods=(BUDGET_METHOD,)), packed).written == 0
    # The others get the evaluations that the packed rows name.
    tally = run(plan, packed)
    assert (tally.present, tally.written) == (1, 2)
    assert without_clocks(packed.read_all()) == without_clocks(whole.read_all())
    packed.pack()
    assert run(plan, packed).written == 0


def test_a_report_of_packed_results_is_the_same(make_plan, tmp_path):
    store = Store(tmp_path)
    plan = make_plan(tasks=("denoise",), methods=("aipo", "path"), trace=True, keep=1)
    run(plan, store)
    before = {file: file.read_bytes() for file in write_summary(tmp_path)}
    assert any(file.name.startswith("traces-") for file in before)
    store.pack(remove=True)
    assert {file: file.read_bytes() for file in write_summary(tmp_path)} == before


def test_priors_of_two_sizes(make_plan, prior_file, tmp_path):
    flow = GaussianFlow((3, 12, 12), factor=0.2 * torch.eye(3 * 12 * 12))
    other = tmp_path / "other.safetensors"
    save_prior_files(flow, {"name": "other", "bits": 5, "data": "none", "license": "none", "metrics": {}}, other)
    plan = make_plan(priors=(str(prior_file), str(other)), tasks=("denoise",), methods=("path",))
    # Faces drawn from each prior have its own size.
    plan = replace(plan, image_sets={}, splits=("test",), subset=1)
    assert run(plan, Store(tmp_path)).written == 2
