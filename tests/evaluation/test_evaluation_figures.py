"""Figures of the benchmark show every method's own picture, pixel by pixel, with bars in its color."""

import base64
import io
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from aipo.evaluation.analysis import summary
from aipo.evaluation.analysis.cells import Key, Number, aggregate
from aipo.evaluation.analysis.figures import COLORS, comparisons, draw_comparison, draw_curves, draw_traces, png
from aipo.evaluation.analysis.summary import write_summary
from aipo.evaluation.methods import LAM_UNUSED, METHODS
from aipo.evaluation.store import Cell, Setup, Store

SIZE = 16
SETUP = Setup((0.5, 1.0), "exact", 0)
SHOWN = SETUP.lambdas.index(1.0)
# In dB, by lam: the first method's best lam is not that of all together.
QUALITY = {"aipo": (26.0, 25.0), "path": (20.0, 24.0), "path_long": (20.0, 25.5), "bm3d": (15.0,)}


def keep(store, method, split, count, task="denoise", settings="now", sha256="now", image_set="now", rows=True):
    """Random images of a cell, and its rows; all images of a method are equally good."""
    cell = Cell("celeba64-tiny", sha256, task, split, image_set, method, settings, 0, count)
    lambdas = METHODS[method].lambdas(SETUP.lambdas)
    arrays = {name: noise(f"{name} {split}", count) for name in ("truth", "observed")}
    arrays["restored"] = noise(cell.name(SETUP), len(lambdas), count)
    about = {**asdict(cell), "setup": SETUP.key, "lambdas": lambdas}
    store.write_images(cell, SETUP, {**arrays, "about": np.array(json.dumps(about))})
    if rows:
        common = {"loss": 1.0, "evals": 10, "status": "done", "prior_sha256": sha256, "date": "2026-01-01"}
        common |= dict.fromkeys(("seed", "precision", "device", "torch", "aipo", "commit"), "")
        solved = [(lam, i, dB) for lam, dB in zip(lambdas, QUALITY[method], strict=True) for i in range(count)]
        store.write(cell, SETUP, [{**common, "lam": lam, "image": i, "psnr": dB} for lam, i, dB in solved])
    return arrays


def noise(name, *counts):
    return np.random.default_rng([*name.encode()]).integers(0, 256, (*counts, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def comparison_of(store):
    (comparison,) = comparisons(store, store.read_all())
    return comparison


def tiles(figure):
    """The images of a figure, as rows of columns; None where there is none."""
    (canvas,) = figure.axes
    found = {(image.get_extent()[3], image.get_extent()[0]): image.get_array() for image in canvas.images}
    tops, lefts = (sorted(set(values)) for values in zip(*found, strict=True))
    return [[found.get((top, left)) for left in lefts] for top in tops]


def texts(figure):
    return [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]


def test_every_tile_is_the_picture_of_its_row_and_column(store):
    # Written in another order than shown, and more test images than there is room for.
    kept = {
        (method, split): keep(store, method, split, count)
        for split, count in (("ood", 2), ("test", 7))
        for method in ("path_long", "bm3d", "path", "aipo")
    }
    comparison = comparison_of(store)
    assert comparison.lam == 1.0
    figure = draw_comparison(comparison)
    columns = [("test", i) for i in range(5)] + [("ood", i) for i in range(2)]
    wanted = [[kept["aipo", split][name][i] for split, i in columns] for name in ("truth", "observed")]
    for method in ("aipo", "path", "path_long"):
        wanted.append([kept[method, split]["restored"][SHOWN][i] for split, i in columns])
    wanted.append([kept["bm3d", split]["restored"][0][i] for split, i in columns])
    np.testing.assert_array_equal(np.array(tiles(figure)), np.array(wanted))
    rows = ["Ground truth", "Observed", "AIPO", "follow_path, 65", "follow_path, 300", "BM3D"]
    assert texts(figure)[0] == "Denoising, sigma 0.1; tiny; lam = 1"
    assert texts(figure)[1:7] == rows
    assert texts(figure)[-2:] == ["Test", "OOD"]


def test_sensing_shows_no_observation(store):
    kept = keep(store, "aipo", "test", 2, task="ncs4000")
    shown = tiles(draw_comparison(comparison_of(store)))
    np.testing.assert_array_equal(np.array(shown), np.array([kept["truth"], kept["restored"][0]]))


def test_a_third_split_and_missing_images_keep_their_place(store):
    keep(store, "aipo", "test", 1)
    keep(store, "path", "test", 1)
    kept = keep(store, "path", "fairface", 1)
    figure = draw_comparison(comparison_of(store))
    shown = tiles(figure)
    assert len(shown) == 4
    assert [(i, j) for i, line in enumerate(shown) for j, tile in enumerate(line) if tile is None] == [(2, 1)]
    np.testing.assert_array_equal(shown[3][1], kept["restored"][SHOWN][0])
    assert texts(figure)[-2:] == ["Test", "FairFace"]


def test_pixels_are_crisp(store):
    keep(store, "aipo", "test", 2)
    figure = draw_comparison(comparison_of(store))
    drawn = np.array(Image.open(io.BytesIO(png(figure))).convert("RGB"))
    for image in figure.axes[0].images:
        left, right, bottom, top = map(int, image.get_extent())
        scale = (right - left) // SIZE
        assert right - left == bottom - top == scale * SIZE >= 110
        enlarged = np.asarray(image.get_array()).repeat(scale, axis=0).repeat(scale, axis=1)
        np.testing.assert_array_equal(drawn[top:bottom, left:right], enlarged)


def test_bars_have_the_height_of_their_psnr_and_the_color_of_their_row(store):
    methods = ("aipo", "path", "path_long")
    for method in methods:
        keep(store, method, "test", 2)
    figure = draw_comparison(comparison_of(store))
    (canvas,) = figure.axes
    bars = canvas.patches
    assert [to_hex(bar.get_facecolor()) for bar in bars] == 2 * [COLORS[method] for method in methods]
    strips = [to_hex(strip.get_facecolor()[0]) for strip in canvas.collections if len(strip.get_facecolor())]
    assert strips[:3] == [COLORS[method] for method in methods]
    # 25, 24 and 25.5 dB: the lowest bar is short but there, and differences are in proportion.
    aipo, path, path_long = (-bar.get_height() for bar in bars[:3])
    assert 0 < path < 0.25 * path_long
    assert (path_long - path) / (aipo - path) == pytest.approx(1.5)
    left, *_, right = (bar.get_x() for bar in bars[:3])
    assert canvas.images[0].get_extent()[0] < left < right < canvas.images[0].get_extent()[1]
    assert [text for text in texts(figure) if text.endswith(("5.0", "4.0", "5.5"))] == 2 * ["25.0", "24.0", "25.5"]


def test_a_restoration_without_psnr_has_no_bar_and_no_say(store, monkeypatch):
    monkeypatch.setitem(QUALITY, "aipo", (float("nan"),) * 2)
    keep(store, "path", "test", 1)
    keep(store, "aipo", "test", 1)
    comparison = comparison_of(store)
    assert comparison.lam == 1.0
    figure = draw_comparison(comparison)
    assert len(figure.axes[0].patches) == 1
    assert len(tiles(figure)) == 4


def test_images_without_rows_are_not_shown(store):
    kept = keep(store, "path", "test", 1)
    for other in ("before", "after"):
        keep(store, "path", "test", 1, settings=other, rows=False)
        keep(store, "path", "test", 1, sha256=other, rows=False)
        keep(store, "path", "test", 1, image_set=other, rows=False)
    keep(store, "aipo", "test", 1, rows=False)
    comparison = comparison_of(store)
    assert comparison.methods == ["path"]
    np.testing.assert_array_equal(comparison.columns[0].restored["path"], kept["restored"][SHOWN][0])


def test_classical_methods_alone_make_a_table_but_no_figure(store, tmp_path):
    keep(store, "bm3d", "test", 1)
    assert {row["lam"] for row in store.read_all()} == {LAM_UNUSED}
    assert not [file for file in write_summary(tmp_path) if file.suffix == ".png"]
    assert "| denoise, test | 1 | BM3D | **15.00** |" in (tmp_path / "tables.md").read_text()


def test_curves_leave_out_where_nothing_was_solved(store):
    keep(store, "path", "test", 1)
    keep(store, "aipo", "test", 1)
    keep(store, "path", "ood", 1, task="inpaint")
    keep(store, "bm3d", "fairface", 1)
    figure = draw_curves(aggregate(store.read_all()), "tiny")
    shown = [(axis.get_title(), axis.get_ylabel()) for axis in figure.axes if axis.get_visible()]
    # One method alone has no loss to be compared with.
    assert shown == [
        ("denoise, test", "loss above the lowest, nats"),
        ("denoise, test", "PSNR, dB"),
        ("inpaint, ood", "PSNR, dB"),
    ]
    assert len(figure.axes) == 4 * 2


def test_curves_are_above_the_lowest_loss_of_each_lam():
    losses = {"aipo": {0.3: 5.0, 1.0: 70.0}, "path": {0.3: 45.0, 1.0: 50.0}}
    where = ("map_loss", "denoise", "tiny", "test")
    numbers = {Key(*where, lam, name): Number(loss, 0) for name, at in losses.items() for lam, loss in at.items()}
    # Those of another prior are on another sheet.
    for split in ("test", "ood"):
        numbers[Key("map_loss", "denoise", "other", split, 0.3, "aipo")] = Number(-1e9, 0)
    (loss, _) = draw_curves(numbers, "tiny").axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[1.0, 20.0], [40.0, 1.0]]


def test_traces_have_a_row_for_each_task_and_lam_and_a_column_for_each_split():
    about = {"prior": "celeba64-tiny", "lambdas": [0.3, 2.0], "stop": 1}
    aipo = [[1, 50.0, 900.0], [10, 5.0, 200.0]]
    traces = [
        {**about, "task": task, "split": split, "method": "aipo", "trace": aipo}
        for task, split in (("inpaint", "ood"), ("denoise", "test"), ("ncs2000", "ood"))
    ]
    row = {"task": "denoise", "split": "test", "method": "path", "prior": "celeba64-tiny", "lam": 2.0}
    rows = [{**row, "image": 0, "evals": 65, "loss": 100.0}, {**row, "image": 1, "evals": 1, "loss": -1e9}]
    axes = draw_traces(traces, rows).axes
    places = [axis.get_title() for axis in axes if axis.get_visible()]
    assert places == [
        *("denoise, test, lam 0.3", "denoise, test, lam 2"),
        *("ncs2000, ood, lam 0.3", "ncs2000, ood, lam 2"),
        *("inpaint, ood, lam 0.3", "inpaint, ood, lam 2"),
    ]
    assert len(axes) == 6 * 2
    above = [[list(line.get_ydata()) for line in axis.lines] for axis in axes]
    assert above[2] == [[800.0, 100.0], [1.0]]
    assert above[11] == [[700.0, 1.0]]


def test_traces_of_other_settings_are_not_drawn(store, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(summary, "draw_traces", lambda traces, rows: drawn.extend(traces) or Figure())
    keep(store, "aipo", "test", 1)
    now = Cell("celeba64-tiny", "now", "denoise", "test", "now", "aipo", "now", 0, 1)
    for cell in (now, *(replace(now, **{name: "other"}) for name in ("settings", "prior_sha256", "fingerprint"))):
        store.write_trace(cell, SETUP, [[1, 5.0, 5.0]])
    write_summary(tmp_path)
    assert [trace["settings"] for trace in drawn] == ["now"]


def test_of_several_chunks_the_largest_is_traced():
    about = {"task": "denoise", "split": "test", "prior": "celeba64-tiny", "lambdas": [0.3], "method": "aipo"}
    small, large = ({**about, "stop": stop, "trace": [[1, loss]]} for stop, loss in ((2, 30.0), (5, 50.0)))
    row = {"task": "denoise", "split": "test", "method": "path", "prior": "celeba64-tiny", "lam": 0.3, "evals": 65}
    rows = [{**row, "image": i, "loss": 10.0 * i} for i in range(9)]
    for traces in ([small, large], [large, small]):
        aipo, path = draw_traces(traces, rows).axes[0].lines
        assert (list(aipo.get_ydata()), list(path.get_ydata())) == ([30.0], [1.0])


def test_the_report_has_the_figure_and_says_at_which_lam(store, tmp_path):
    for split in ("test", "ood"):
        keep(store, "path", split, 1)
    file = tmp_path / "figure-denoise-tiny.png"
    assert file in write_summary(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert base64.b64encode(file.read_bytes()).decode() in page
    assert "<figcaption>Restored at lam = 1, where" in page


def test_every_method_has_its_own_color():
    assert list(COLORS) == list(METHODS)
    assert len(set(COLORS.values())) == len(METHODS)
