"""Tables and verdicts of the benchmark, from rows made by hand."""

import math
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from aipo.cli import app
from aipo.evaluation.analysis.cells import Key, aggregate, paper_numbers
from aipo.evaluation.analysis.summary import write_summary
from aipo.evaluation.analysis.tables import best_over_lam, references, rows_of, to_latex, to_markdown
from aipo.evaluation.analysis.verdicts import verdicts
from aipo.evaluation.methods import BUDGET_METHOD, LAM_UNUSED, METHODS
from aipo.evaluation.protocol import EXPERIMENTS, LAMBDAS, PROTOCOLS
from aipo.evaluation.store import Cell, Setup, Store
from aipo.report.html import Marked


def test_the_papers_numbers_are_all_there():
    numbers = paper_numbers()
    assert len(numbers) == 640
    assert numbers[Key("map_loss", "denoise", "realnvp", "test", 0.3, "aipo")].mean == -9956.0
    assert {key.method for key in numbers} == set(PROTOCOLS["paper"].methods) - {BUDGET_METHOD}
    assert {key.lam for key in numbers} == set(LAMBDAS)
    assert {key.task for key in numbers} == set(EXPERIMENTS)


def test_means_and_standard_errors():
    row = {"prior": "celeba64-glow", "task": "denoise", "split": "test", "lam": 0.3, "method": "aipo"}
    values = [(1.0, 20.0), (2.0, 21.0), (6.0, 25.0), (float("nan"), float("nan"))]
    rows = [{**row, "loss": loss, "psnr": quality} for loss, quality in values]
    numbers = aggregate(rows)
    loss = numbers[Key("map_loss", "denoise", "glow", "test", 0.3, "aipo")]
    assert (loss.mean, loss.median, loss.count) == (3.0, 2.0, 3)
    assert loss.se == pytest.approx((7 / 3) ** 0.5)
    assert numbers[Key("psnr", "denoise", "glow", "test", 0.3, "aipo")].mean == 22.0


def picture_rows(task, prior, split, method, lam, qualities, fingerprint="these"):
    solve = {"task": task, "prior": prior, "split": split, "method": method, "lam": lam, "fingerprint": fingerprint}
    loss = math.nan if lam == LAM_UNUSED else 1.0
    return [{**solve, "image": image, "loss": loss, "psnr": quality} for image, quality in enumerate(qualities)]


def test_classical_methods_are_compared_with_each_prior_not_with_each_other():
    rows = [
        *picture_rows("denoise", "celeba64-glow", "test", "tv", LAM_UNUSED, [26.0, 28.0]),
        *picture_rows("denoise", "celeba64-glow", "test", "bm3d", LAM_UNUSED, [29.0, 31.0]),
        *picture_rows("denoise", "celeba64-glow", "test", "path", 0.3, [29.0, 29.0]),
        *picture_rows("denoise", "celeba64-glow", "test", "path", 1.0, [26.0, 26.0]),
        *picture_rows("denoise", "celeba64-tarflow", "test", "path", 0.3, [28.0, 28.0]),
        # Images that no prior restored.
        *picture_rows("inpaint", "celeba64-glow", "ood", "biharmonic", LAM_UNUSED, [25.0], "those"),
    ]
    header, body = references(rows)
    assert header == ["where", "images", "method", "PSNR, dB", "best with glow", "best with tarflow"]
    assert body == [
        ["denoise, test", "2", "BM3D", "30.00 ± 1.00", "29.00", "28.00"],
        ["denoise, test", "2", "total variation", "27.00 ± 1.00", "29.00", "28.00"],
        ["inpaint, ood", "1", "biharmonic filling", "25.00", "-", "-"],
    ]
    assert [[isinstance(cell, Marked) for cell in line].index(True) for line in body] == [3, 4, 3]
    assert not any(isinstance(cell, Marked) for line in body for cell in line[-1:])
    # Only images that all of them have are compared.
    more = picture_rows("denoise", "celeba64-tarflow", "test", "path", 0.3, [28.0, 28.0, 99.0])[2:]
    assert references([*rows, *more]) == (header, body)
    fewer = [row for row in rows if (row["prior"], row["image"]) != ("celeba64-tarflow", 1)]
    assert references(fewer)[1][0] == ["denoise, test", "1", "BM3D", "29.00", "29.00", "28.00"]
    # Faces drawn from each prior: each has its own line, and the other is not compared.
    rows += picture_rows("denoise", "celeba64-tarflow", "test", "bm3d", LAM_UNUSED, [31.0, 31.0])
    rows = [{**row, "fingerprint": row["prior"] + row["split"]} for row in rows]
    assert [line[3:] for line in references(rows)[1] if line[2] == "BM3D"] == [
        ["30.00 ± 1.00", "29.00", "-"],
        ["31.00 ± 0.00", "-", "28.00"],
    ]


def make_rows(losses, prior="celeba64-glow"):
    """Rows of losses by method: those of the images at lam 0.3, 0.6, 0.9, ..."""
    common = {"task": "denoise", "prior": prior, "split": "test", "psnr": 20.0, "status": "done"}
    # A path counts up to its last lam, other methods start anew at each.
    spent = {"path": lambda k: 5 * k, "path_long": lambda k: 20 * k}
    rows = []
    for method, by_lam in losses.items():
        for k, at_lam in enumerate(by_lam, start=1):
            solve = {"method": method, "lam": round(0.3 * k, 1), "evals": spent.get(method, lambda k: 100)(k)}
            rows += [{**common, **solve, "image": i, "loss": loss} for i, loss in enumerate(at_lam)]
    return rows


def verdicts_of(losses):
    rows = make_rows(losses)
    return verdicts(rows)


def test_verdicts_count_cells_by_means_and_medians():
    baselines = {"mle_init": [(6, 6, 6)] * 2, "random_init": [(6, 6, 6), (8, 8, 8)], "zero_init": [(7, 7, 7)] * 2}
    # In the second cell one solve in three blows up.
    glow = make_rows(
        {"aipo": [(1, 1, 1), (5, 5, 50)], BUDGET_METHOD: [(5, 5, 5)] * 2, "path": [(6, 6, 6)] * 2, **baselines}
    )
    realnvp = make_rows({"aipo": [(9, 9, 9), (5, 5, 5)], **baselines}, "celeba64-realnvp")
    rows = [*glow, *realnvp]
    for row in rows:
        if (row["method"], row["lam"]) == ("zero_init", 0.6):
            row["status"] = "non finite"
    lines = verdicts(rows)
    than = "has a lower mean loss than all three constant steps in"
    lost = "denoise glow test at lam 0.6; denoise realnvp test at lam 0.3"
    assert lines[0] == f"AIPO {than} 2 of 4 cells (glow 1/2, realnvp 1/2). Not in {lost}."
    assert lines[1] == f"AIPO, steps as printed {than} 2 of 2 cells."
    assert lines[2] == f"follow_path, 65 {than} 0 of 2 cells."
    assert lines[3].endswith(
        "a mean. AIPO: 3 of 4 cells (glow 2/2, realnvp 1/2); AIPO, steps as printed: 2 of 2 cells; "
        "follow_path, 65: 0 of 2 cells."
    )
    assert lines[-1].startswith(f"Solves: {len(rows)}.")
    assert lines[-1].endswith("counted with the last finite one: Zero init: 6.")


@pytest.mark.parametrize(("lost", "named"), [(0, False), (8, True), (9, False)])
def test_verdicts_name_lost_cells_if_they_are_few(lost, named):
    losses = {method: [(2,)] * 10 for method in ("mle_init", "random_init", "zero_init")}
    first = verdicts_of({"aipo": [(3,)] * lost + [(1,)] * (10 - lost), **losses})[0]
    assert f"in {10 - lost} of 10 cells." in first
    assert ("Not in denoise glow test at lam 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4." in first) == named
    assert ("Not in" in first) == named


def test_verdicts_on_paths_count_cells_and_evaluations():
    lines = verdicts_of(
        {"aipo": [(1,), (9,)], BUDGET_METHOD: [(5,), (5,)], "path": [(4,), (6,)], "path_long": [(0,), (2,)]}
    )
    than = "has a lower mean loss than"
    assert lines[:4] == [
        f"follow_path, 65 {than} AIPO in 1 of 2 cells, with 5.0% to 5.0% of the evaluations of its separate solves.",
        f"follow_path, 65 {than} AIPO, steps as printed in 1 of 2 cells, with 5.0% to 5.0% of the evaluations "
        "of its separate solves.",
        f"follow_path, 300 {than} AIPO in 2 of 2 cells, with 20.0% to 20.0% of the evaluations of its separate solves.",
        f"follow_path, 300 {than} AIPO, steps as printed in 2 of 2 cells, with 20.0% to 20.0% of the evaluations "
        "of its separate solves.",
    ]


def test_shares_of_evaluations_are_of_the_images_that_both_solved():
    rows = make_rows({"aipo": [(1,), (1,)], "path": [(1, 1, 1), (1, 1, 1)]})
    rows += make_rows({"aipo": [(1,)], "path": [(1,), (1,)]}, "celeba64-realnvp")
    assert "with 5.0% to 10.0% of the evaluations" in verdicts(rows)[0]


def test_verdicts_on_tuned_baselines():
    tuned = {
        "adam_mle": [(20,), (20,), (5,), (20,), (20,)],
        "adam_random": [(13,), (9,), (14,), (13,), (13,)],
        "adam_zero": [(30,), (30,), (30,), (30,), (7,)],
        "lbfgs": [(11,), (11,), (11,), (8,), (9,)],
    }
    lines = verdicts_of({"aipo": [(10,)] * 5, **tuned})
    assert lines[0] == "AIPO has a lower mean loss than all four tuned baselines in 1 of 5 cells."
    assert lines[1].endswith(
        "AIPO's. decayed Adam from MLE: 1 of 5 cells, +10 nats; decayed Adam from random: 1 of 5 cells, +3 nats; "
        "decayed Adam from zero: 1 of 5 cells, +20 nats; L-BFGS from MLE: 2 of 5 cells, +1 nats."
    )
    others = {name: [(40,)] * 5 for name in (BUDGET_METHOD, "path", "path_long")}
    # A cell without some method is not counted.
    missing = {**others, "path": [(40,)] * 4}
    for rest, winners in ((others, ("decayed Adam from zero",)), (missing, ())):
        lines = verdicts_of({"aipo": [(10,)] * 5, **tuned, **rest})
        (lowest,) = [line for line in lines if line.startswith("Lowest")]
        winners = ("AIPO", "decayed Adam from random", "decayed Adam from MLE", "L-BFGS from MLE", *winners)
        ends = (
            f"in {len(winners)} cells that have all of these methods. {'; '.join(f'{title}: 1' for title in winners)}."
        )
        assert lowest == f"Lowest mean loss, {ends}"


def test_verdicts_say_nothing_of_methods_that_are_not_there():
    assert len(verdicts_of({"bm3d": [(1,)]})) == 1
    assert len(verdicts_of({"aipo": [(1,), (2,)]})) == 2
    (alone, spent, _) = verdicts_of({"aipo": [(1,), (2,)], "lbfgs": [(0,), (0,)]})
    assert alone.endswith("L-BFGS from MLE: 2 of 2 cells, -2 nats.")
    assert spent == "Mean evaluations for one image and lam. AIPO: 100."


def test_verdicts_say_whether_the_lowest_loss_is_the_best_picture():
    names = [name for name in PROTOCOLS["fair"].methods if METHODS[name].uses_lam]
    rows = make_rows({name: [(i,), (i,), (i,)] for i, name in enumerate(names)})
    for row in rows:
        # The first method has the lowest loss everywhere; at the second lam it has the best picture too.
        row["psnr"] = 25.0 - names.index(row["method"]) if row["lam"] == 0.6 else 20.0 + names.index(row["method"])
    assert "In 1 of them the method with the lowest mean loss" in " ".join(verdicts(rows))


def test_each_method_at_its_best_lam():
    rows = make_rows({"aipo": [(1,), (1,), (1,)], "path": [(1,), (1,)]}) + make_rows(
        {"path": [(1,)]}, "celeba64-realnvp"
    )
    quality = {("aipo", 0.3): 20, ("aipo", 0.6): 23, ("aipo", 0.9): 22, ("path", 0.3): 24, ("path", 0.6): 21}
    for row in rows:
        row["psnr"] = float(quality[row["method"], row["lam"]])
    images = {("denoise", "glow", "test"): "1 of 2", ("denoise", "realnvp", "test"): "1"}
    header, body = best_over_lam(aggregate(rows), images)
    assert header == ["where", "images", "aipo", "path"]
    assert body == [
        ["denoise, glow, test", "1 of 2", "23.00 (lam 0.6)", "24.00 (lam 0.3)"],
        ["denoise, realnvp, test", "1", "-", "24.00 (lam 0.3)"],
    ]
    assert [[isinstance(cell, Marked) for cell in line] for line in body] == [[False, False, False, True]] * 2


@pytest.mark.parametrize("paper", [True, False])
def test_the_papers_numbers_stand_beside_ours_if_wanted(paper, tmp_path):
    cell = Cell("celeba64-glow", "", "denoise", "test", "", "aipo", "", 0, 1)
    row = dict.fromkeys(("seed", "precision", "prior_sha256", "device", "torch", "aipo", "commit", "date"), "")
    row |= {"lam": 0.3, "image": 0, "loss": 7.0, "psnr": 30.0, "evals": 10, "status": "done"}
    Store(tmp_path).write(cell, Setup((0.3,), "exact", 0), [row])
    result = CliRunner().invoke(app, ["bench", "report", str(tmp_path), *([] if paper else ["--no-paper"])])
    assert result.exit_code == 0, result.output
    tables = (tmp_path / "tables.md").read_text()
    assert ("| 0.3 | **7 (-10368 ± 20)** |" in tables) == ("paper's numbers in brackets" in tables) == paper
    assert ("| 0.3 | **7** |" in tables) != paper


@pytest.mark.parametrize(
    ("methods", "images"), [("aipo", ["2"]), ("aipo path", ["2 of 3"]), ("bm3d path", ["3"]), ("bm3d", [])]
)
def test_tables_are_of_the_images_that_all_methods_have_and_say_how_many(methods, images, tmp_path):
    row = dict.fromkeys(("seed", "precision", "prior_sha256", "device", "torch", "aipo", "commit", "date"), "")
    row |= {"evals": 10, "status": "done"}
    for method in methods.split():
        lam, losses = {"aipo": (0.3, [6, 8]), "path": (0.3, [7, 9, 92]), "bm3d": (LAM_UNUSED, [math.nan] * 5)}[method]
        cell = Cell("celeba64-glow", "", "denoise", "test", "", method, "", 0, len(losses))
        rows = [{**row, "lam": lam, "image": i, "loss": loss, "psnr": 30.0} for i, loss in enumerate(losses)]
        Store(tmp_path).write(cell, Setup((0.3,), "exact", 0), rows)
    write_summary(tmp_path, beside_paper=False)
    tables = (tmp_path / "tables.md").read_text()
    assert re.findall(r"glow; test, (.*) images; PSNR", tables) == images
    assert ("| 0.3 | **7 ± 1** | 8 ± 1 |" in tables) == (methods == "aipo path")
    assert ("| 0.3 | **36 ± 28** |" in tables) == (methods == "bm3d path")
    # ... and what their columns are.
    assert ("path: follow_path, 65" in tables) == ("path" in methods)


def test_the_best_of_a_row_is_bold():
    numbers = aggregate(make_rows({"aipo": [(1,), (5,)], "path": [(2,), (3,)], "lbfgs": [(2,), (3,)]}))
    methods = ["aipo", "path", "lbfgs", "adam_mle"]
    header, body = rows_of(numbers, "map_loss", "denoise", "glow", "test", methods, beside=False)
    assert to_markdown(header, body).splitlines()[2:] == [
        "| 0.3 | **1** | 2 | 2 | - |",
        "| 0.6 | 5 | **3** | **3** | - |",
    ]
    assert r"0.3 & \textbf{1} & 2 & 2 & - \\" in to_latex(header, body, "")
    # The same numbers as PSNR, where more is better.
    numbers = {replace(key, metric="psnr"): n for key, n in numbers.items() if key.metric == "map_loss"}
    _, body = rows_of(numbers, "psnr", "denoise", "glow", "test", methods, beside=False)
    assert [[isinstance(cell, Marked) for cell in line[1:3]] for line in body] == [[False, True], [True, False]]


def test_verdicts_compare_images_that_all_methods_have():
    # The path is worse on the image that both solved, but the other method has two harder ones more.
    rows = make_rows({"aipo": [(10, 500, 500)], "path": [(20,)]})
    assert "in 0 of 1 cells" in verdicts(rows)[0]
    # Where the path won on images that a method of another comparison has not met, it still won.
    fewer = {name: [(0,)] for name in ("adam_mle", "mle_init")}
    assert "in 1 of 1 cells" in verdicts(make_rows({"aipo": [(10, 100)], "path": [(20, 1)], **fewer}))[0]
    # ... and so it is with constant steps.
    steps = {name: [(6, 60)] for name in ("mle_init", "random_init", "zero_init")}
    assert "constant steps in 1 of 1 cells" in verdicts(make_rows({"aipo": [(7, 1)], "lbfgs": [(0,)], **steps}))[0]
    # An image that one of them could not even begin is left out for both, and counted.
    rows = make_rows({"aipo": [(10, 500)], "path": [(20, math.nan)]})
    rows[-1]["status"] = "non finite"
    lines = verdicts(rows)
    assert "in 0 of 1 cells" in lines[0]
    assert lines[-1].endswith("counted with the last finite one: follow_path, 65: 1.")
    # A method that knows no lam takes no image from them: on both together the path is better.
    rows = [*make_rows({"aipo": [(10, 100)], "path": [(20, 1)]}), {**make_rows({"bm3d": [(1,)]})[0], "lam": LAM_UNUSED}]
    assert "in 1 of 1 cells" in verdicts(rows)[0]
    tuned = make_rows({"aipo": [(10, 100)], "lbfgs": [(20, 1)]})
    assert "L-BFGS from MLE: 1 of 1 cells" in verdicts([*tuned, rows[-1]])[0]
    # No image is shared: nothing to say.
    rows = [
        {**row, "image": row["image"] + (row["method"] == "path")}
        for row in make_rows({"aipo": [(1,)], "path": [(2,)]})
    ]
    assert len(verdicts(rows)) == 1


def test_an_image_without_a_loss_has_no_quality_either():
    rows = make_rows({"aipo": [(10, math.nan)]})
    rows[1]["psnr"] = 5.0
    assert aggregate(rows)[Key("psnr", "denoise", "glow", "test", 0.3, "aipo")].mean == 20.0


def test_verdicts_tell_the_papers_cells_from_the_others():
    rows = make_rows({"aipo": [(1,), (9,)], "path": [(4,), (6,), (6,), (6,)]}, "celeba64-tarflow")
    rows += make_rows({"aipo": [(9,)], "path": [(4,)]})
    line = verdicts(rows)[0]
    assert "in 2 of 3 cells (tarflow 1/2, glow 1/1), with 5.0% to 10.0% of the evaluations" in line
    assert line.endswith(" In the paper's cells: 1 of 1 cells, with 5.0% to 5.0%.")
    for row in rows[-2:]:
        row["split"] = "fairface"
    assert "paper's" not in verdicts(rows)[0]


@pytest.mark.parametrize("protocol", ["paper", "fair"])
def test_verdicts_say_which_method_has_the_highest_psnr(protocol):
    names = [name for name in PROTOCOLS[protocol].methods if METHODS[name].uses_lam]
    losses = {name: [(1,), (1,)] for name in {*names, "path"}}
    rows = [row for prior in ("celeba64-glow", "celeba64-realnvp") for row in make_rows(losses, prior)]
    # One of the protocol's methods is missing here.
    rows += make_rows({name: losses[name] for name in losses if name != names[-1]}, "celeba64-tarflow")
    for row in rows:
        best = {("path", 0.3): 25.0, ("aipo", 0.6): 24.0 if row["prior"] == "celeba64-glow" else 26.0}
        row["psnr"] = best.get((row["method"], row["lam"]), 20.0)
    lines = verdicts(rows)
    (line,) = [line for line in lines if line.startswith("Highest mean PSNR")]
    where = "in 2 combinations of task, prior and split that have all methods of a protocol"
    assert line.endswith(f"{where}. follow_path, 65: 1; AIPO: 1.")


def test_verdicts_say_how_much_the_start_matters_to_a_decayed_step():
    losses = {"adam_mle": [(5,), (9,), (0,)], "adam_random": [(5,), (2,), (0,)], "adam_zero": [(8,), (4,)]}
    rows = make_rows(losses) + make_rows({name: by_lam[:1] for name, by_lam in losses.items()}, "celeba64-tarflow")
    # The three agree on another task.
    rows += [{**row, "task": "inpaint", "loss": 1.0} for row in make_rows(losses)]
    # At the third lam one of them is missing.
    line = verdicts(rows)[0]
    assert line.endswith(
        "of the decayed Adam from its three starts. glow: 3 at lam 0.3, 7 at lam 0.6; tarflow: 3 at lam 0.3."
    )


def test_verdicts_count_the_solves_that_blew_up():
    rows = make_rows({"mle_init": [(1, 2e5), (1e6, 3)], "aipo": [(1, 2)], "zero_init": [(99_999, 2e5)]})
    (line,) = [line for line in verdicts(rows) if line.startswith("Solves that end above 100,000")]
    assert line.endswith("nats, at 20.0 dB on average. MLE init, glow: 2 of 4; Zero init, glow: 1 of 2.")
