"""The benchmark: equal budgets, rows that do not depend on how the work is cut, resume."""

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
from aipo.bench.cells import aggregate, one_setup
from aipo.bench.classical import CLASSICAL, analyse_haar, synthesise_haar
from aipo.bench.lbfgs import PlainLBFGS
from aipo.bench.methods import BUDGET, LONG_PATH, METHODS, NO_LAM, SHORT_PATH
from aipo.bench.pictures import Pictures, default_pictures, read_pictures
from aipo.bench.protocol import PROTOCOLS, TASKS
from aipo.bench.runner import Plan, run
from aipo.bench.store import Store
from aipo.bench.summary import write_summary
from aipo.bench.verdicts import verdicts
from aipo.bench.work import Work
from aipo.cli import app
from aipo.errors import InputError
from aipo.flows import GaussianFlow
from aipo.metrics import psnr
from aipo.prior import load_prior_files, save_prior_files
from aipo.solvers.path import FollowPath

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def prior_file(tmp_path_factory):
    """A small prior on disk, as a user's own would be: a Gaussian, whose gradients take no time."""
    n = 3 * 16 * 16
    noise = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).tril(-1)
    flow = GaussianFlow(SHAPE, factor=0.2 * torch.eye(n) + 0.004 * noise)
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    card = {"name": "tiny", "bits": 5, "data": "none", "licence": "none", "metrics": {}}
    save_prior_files(flow, card, path)
    return path


@pytest.fixture(scope="module")
def pictures():
    return Pictures(torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(3)), "random")


def make_plan(prior_file, pictures, **changes):
    options = {
        "pictures": {"test": pictures},
        "priors": (str(prior_file),),
        "tasks": ("denoise", "inpaint"),
        "methods": PROTOCOLS["paper"].methods,
        "splits": ("test",),
        "lambdas": (0.5,),
        "subset": 2,
        "chunk": 2,
    }
    return Plan(**{**options, **changes})


def without_clocks(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(prior_file, pictures, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("bench"))
    plan = make_plan(prior_file, pictures)
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
        assert method == "aipo" or evals == spent[task, split, image, BUDGET]
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


def test_other_settings_never_mix(finished, prior_file, pictures):
    plan, store = finished
    assert len(one_setup(store.read_all())) == 20
    other = make_plan(prior_file, pictures, seed=1, tasks=("denoise",), methods=("aipo",))
    assert run(other, store).written == 1
    with pytest.raises(InputError, match="--setup"):
        one_setup(store.read_all())
    assert len(one_setup(store.read_all(), plan.setup.key)) == 20
    assert len(one_setup(store.read_all(), other.setup.key)) == 2
    with pytest.raises(InputError, match="no results have the setup"):
        one_setup(store.read_all(), "nonsense")
    for file in store.folder.glob("*.parquet"):
        if store._read(file)[0]["setup"] == other.setup.key:
            file.unlink()


def test_a_spent_budget_begins_nothing(prior_file, pictures, tmp_path):
    tally = run(make_plan(prior_file, pictures, minutes=0.0), Store(tmp_path))
    assert (tally.written, tally.left) == (0, 10)


def test_a_baseline_needs_the_method_whose_budget_it_gets(prior_file, pictures, tmp_path):
    with pytest.raises(InputError, match="evaluations of aipo"):
        run(make_plan(prior_file, pictures, methods=("zero_init",)), Store(tmp_path))


def test_measurements_and_starts_belong_to_the_image_not_to_the_chunk(prior_file, pictures):
    prior = load_prior_files(prior_file)
    operator = TASKS["inpaint"].make_operator(SHAPE)

    def work(numbers):
        truth = pictures.images[list(numbers)]
        return Work(prior, TASKS["inpaint"], operator, truth, tuple(numbers), (0.5,), 0, "exact", {})

    whole, part = work(range(4)), work((2, 3))
    assert torch.equal(whole.y[2:], part.y)
    torch.testing.assert_close(whole.random[2:], part.random)
    noise = torch.where(operator.mask > 0, whole.y - whole.truth, 0)
    assert (noise[0] - noise[1]).abs().max() > 0.01
    assert (whole.random[0] - whole.random[1]).abs().max() > 0.01


def test_the_fair_methods_run_and_stay_within_their_budget(prior_file, pictures, tmp_path):
    store = Store(tmp_path)
    plan = make_plan(
        prior_file,
        pictures,
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
    allowed = {(r["split"], r["lam"]): r["evals"] for r in rows if r["method"] == BUDGET}
    for row in rows:
        if row["lam"] == NO_LAM:
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
        assert max(at["path"], at["adam_mle"], at["lbfgs"]) < min(at["aipo"], at[BUDGET]) + 0.1


def test_methods_that_differ_in_their_start_are_one_batch(prior_file, pictures, tmp_path):
    methods = (BUDGET, "adam_mle", "adam_random", "adam_zero")
    plan = make_plan(prior_file, pictures, methods=methods, tasks=("inpaint",), lambdas=(0.5, 1.0), trace=True)
    heard = set()
    together, alone = Store(tmp_path / "together"), Store(tmp_path / "alone")
    run(plan, together, lambda tally, cell, share: heard.add(cell.rpartition(".")[2]))
    assert heard == {"", BUDGET, "adam_mle+adam_random+adam_zero"}
    for method in methods[1:]:
        run(replace(plan, methods=(BUDGET, method)), alone)

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


def test_plain_lbfgs_at_several_lam_is_that_of_each_lam(prior_file, pictures):
    prior = load_prior_files(prior_file)
    operator, noise = TASKS["inpaint"].make_operator(SHAPE), TASKS["inpaint"].noise
    y = operator.measure(pictures.images[:2], noise, seed=5)
    problem = aipo.MapProblem(prior, operator, noise, y)
    both = aipo.MapProblem(prior, operator, noise, y.repeat(2, 1, 1, 1))
    lambdas, budgets = (0.5, 2.0), (6, 9)
    x0 = torch.full((4, *SHAPE), 0.5)
    found = PlainLBFGS(lambdas, budgets=budgets).solve(both, torch.tensor([0.5, 0.5, 2.0, 2.0]), x0)
    assert found.evals.tolist() == [6, 6, 9, 9]
    assert found.status == ["done"] * 4
    for i, (lam, budget) in enumerate(zip(lambdas, budgets, strict=True)):
        single = FollowPath((lam,), budget, tolerance=0.0, model="none").solve(problem, lam, x0[:2]).at(lam)
        torch.testing.assert_close(found.x[2 * i : 2 * i + 2], single.x, rtol=0, atol=3e-4)
        torch.testing.assert_close(found.loss[2 * i : 2 * i + 2], single.loss, rtol=1e-5, atol=0.1)


@pytest.mark.parametrize("name", list(CLASSICAL))
def test_classical_methods_restore_a_face(name):
    prior = aipo.load_prior("celeba64-realnvp-small")
    truth = aipo.samples.load("astronaut")[None]
    for task, restore in list(CLASSICAL[name].items())[-1:]:
        operator = TASKS[task].make_operator(prior.image_shape)
        work = Work(prior, TASKS[task], operator, truth, (0,), (), 0, "exact", {})
        observed = psnr(operator.A_dagger(work.y).clamp(0, 1), truth)
        assert psnr(restore(work).clamp(0, 1), truth) > observed + 4


def test_the_wavelets_are_an_orthonormal_basis():
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    c = analyse_haar(x)
    torch.testing.assert_close(synthesise_haar(c), x)
    torch.testing.assert_close(c.norm(), x.norm())
    flat = analyse_haar(torch.ones(1, 3, 32, 32, dtype=torch.float64))
    assert flat.abs().flatten().sort().values[-5] < 1e-12  # brightness only, in the 2x2 coarsest coefficients


def test_the_seed_changes_noise_and_starts():
    prior = aipo.load_prior("celeba64-realnvp-small")
    operator = TASKS["denoise"].make_operator(prior.image_shape)
    truth = aipo.samples.load("astronaut")[None].repeat(2, 1, 1, 1)
    works = [Work(prior, TASKS["denoise"], operator, truth, (0, 1), (), seed, "exact", {}) for seed in (0, 1, 2)]
    for name in ("y", "random"):
        drawn = torch.cat([getattr(work, name) for work in works]).flatten(1)
        assert len(drawn.unique(dim=0)) == 6


def test_a_run_says_how_far_each_cell_is(prior_file, pictures, tmp_path):
    heard = []
    plan = make_plan(prior_file, pictures, tasks=("denoise",), methods=("aipo", BUDGET, "mle_init", "path", "lbfgs"))
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
    drawn, pictures = default_pictures(prior, "test"), default_pictures(prior, "ood")
    assert drawn.images.shape[1:] == pictures.images.shape[1:] == prior.image_shape
    assert torch.equal(drawn.images, default_pictures(prior, "test").images)
    assert len(pictures) == 2
    assert default_pictures(prior, "fairface") is None


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
        read_pictures(tmp_path, 64, mosaics=False)
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines))
    found = read_pictures(tmp_path, 64, mosaics=False)
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


def test_a_finished_run_says_that_it_keeps_no_pictures(prior_file, tmp_path):
    command = ["bench", "run", "--out", str(tmp_path), "--prior", str(prior_file), "--method", "path", "--subset", "1"]
    command += ["--device", "cpu", "--task", "denoise", "--split", "test"]
    said = [CliRunner().invoke(app, [*command, *more]).stdout for more in ((), ("--keep", "1"), ())]
    assert ["are kept of what was solved now" in text for text in said] == [False, True, False]


def test_what_a_run_needs_is_asked_for_before_it_solves(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install '\.\[bench\]'"):
        Store(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"broken\.parquet: not a readable result"):
        Store(tmp_path).read_all()


def test_a_killed_run_goes_on_to_the_same_rows(prior_file, pictures, tmp_path):
    """Killed for good, at random moments, and started again until it is done."""
    images = tmp_path / "pictures.npy"
    numpy.save(images, (255 * pictures.images).round().to(torch.uint8).numpy())

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


def test_priors_of_two_sizes(prior_file, tmp_path):
    flow = GaussianFlow((3, 12, 12), factor=0.2 * torch.eye(3 * 12 * 12))
    other = tmp_path / "other.safetensors"
    save_prior_files(flow, {"name": "other", "bits": 5, "data": "none", "licence": "none", "metrics": {}}, other)
    plan = make_plan(prior_file, None, priors=(str(prior_file), str(other)), tasks=("denoise",), methods=("path",))
    # Faces drawn from each prior have its own size.
    plan = replace(plan, pictures={}, splits=("test",), subset=1)
    assert run(plan, Store(tmp_path)).written == 2


def test_every_protocol_names_known_things():
    for protocol in PROTOCOLS.values():
        assert set(protocol.methods) <= set(METHODS)
        assert set(protocol.priors) <= set(aipo.prior_names())
