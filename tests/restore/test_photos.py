"""`aipo restore` on whole photographs: every task, any size, the kind of file stays, tiles, interrupts, questions.

The prior is a noise flow before its training: the density of a Gaussian, whose restorations are Wiener's. Real pictures
gain by that too, so what is asserted holds for every prior.
"""

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.choose.sigma import automatic_sigma, noise_curve
from aipo.cli import app
from aipo.errors import InputError
from aipo.files import FolderLock
from aipo.flows import NoiseFlow
from aipo.images import read_image
from aipo.images.metrics import psnr
from aipo.operators import Blur, SuperResolution
from aipo.priors import zoo
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.restore import classical, photo_restorer, settings, whole
from aipo.restore.operators import mosaic_mask
from aipo.restore.whole import FinishedTiles, Whole, filled, restore_whole


@pytest.fixture(scope="module")
def prior_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prior") / "gauss.safetensors"
    flow = NoiseFlow(couplings=[2, 2, 2], hidden=[4, 4, 4], blocks=[1, 1, 1])
    flow.initialize(torch.stack([aipo.samples.load(name) for name in ("astronaut", "cat")]))
    card = {"name": "gauss", "bits": 0, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow.requires_grad_(False), card, path)
    return path


@pytest.fixture(scope="module")
def prior(prior_file):
    return load_prior_files(prior_file)


def truth(height=64, width=64):
    """The astronaut, as large as asked: (1, 3, H, W)."""
    x = aipo.samples.load("astronaut")[None]
    return torch.nn.functional.interpolate(x, (height, width), mode="bicubic", antialias=True).clamp(0, 1)


def noise(x, sigma, seed=0):
    return x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def as_picture(x):
    return Image.fromarray((x.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).squeeze(2).numpy())


def restore(*arguments):
    return CliRunner().invoke(app, ["restore", *map(str, arguments)], catch_exceptions=False)


def measured(task, x):
    """What is at hand of x (1, 3, H, W), and the simple reconstruction that must be beaten."""
    if task == "denoise":
        y = noise(x, 0.1)
        return Whole(y[0], 0.1), y
    if task == "inpaint":
        observed = aipo.operators.Inpainting.random_blocks(x.shape[1:], 0.25, 4, seed=0).mask[:1].bool()
        y = torch.where(observed, noise(x, 0.01), torch.tensor(0.5))
        return Whole(y[0], 0.01, observed=observed), y
    if task == "superres":
        y = noise(SuperResolution(x.shape[1:], 2).A(x), 0.01)
        return Whole(y[0], 0.01, factor=2), y.repeat_interleave(2, 2).repeat_interleave(2, 3)
    if task == "deblur":
        blur = Blur.gaussian(x.shape[1:], 1.5)
        y = noise(blur.A(x), 0.01)
        return Whole(y[0], 0.01, kernel=blur.kernel), y
    observed = mosaic_mask(tuple(x.shape[1:]), "rggb").bool()
    y = torch.where(observed, noise(x, 0.01), torch.tensor(0.5))
    return Whole(y[0], 0.01, observed=observed), y


FACES, PHOTOS = "celeba64-realnvp-small", "photo-small"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"task": "denoise"}, PHOTOS),
        ({"task": "demosaic"}, PHOTOS),
        ({"task": "sense"}, FACES),
        ({"task": "colorize"}, FACES),
        ({"task": "denoise", "fit": "align"}, FACES),
        ({"task": "inpaint", "lam": "0.5"}, FACES),
        ({"task": "denoise", "solver": "paper"}, FACES),
    ],
)
def test_photographs_have_their_prior_where_it_is_embedded(monkeypatch, options, names):
    monkeypatch.setattr(settings, "prior_names", lambda: [FACES, PHOTOS])
    assert settings.default_prior(**options) == names
    monkeypatch.setattr(settings, "prior_names", lambda: [FACES])
    assert settings.default_prior(**options) == FACES


def test_nothing_else_to_say(tmp_path, prior_file, monkeypatch):
    """With a prior of that name in the zoo a photograph is restored whole, and the report says by which prior."""
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"photo-small{suffix}").write_bytes(prior_file.with_suffix(suffix).read_bytes())
    monkeypatch.setattr(zoo, "_FOLDER", tmp_path)
    as_picture(noise(truth(40, 72)[0], 0.1)).save(tmp_path / "a.jpg")
    outcome = restore(tmp_path / "a.jpg", "--task=denoise", f"--out={tmp_path / 'out'}")
    assert outcome.exit_code == 0, outcome.output
    with Image.open(tmp_path / "out" / "a.restored.jpg") as image:
        assert image.size == (72, 40)
    assert "--prior photo-small" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("task", ["denoise", "inpaint", "superres", "deblur", "demosaic"])
def test_every_task_is_better_than_what_was_at_hand(prior, task):
    x = truth()
    item, simple = measured(task, x)
    restored, evaluations = restore_whole(prior, item, evals=8)
    assert restored.shape == x.shape[1:]
    assert evaluations == (1 if task == "denoise" else 8)
    inside = (..., slice(8, -8), slice(8, -8))  # the blurred picture was blurred around its border
    gain = psnr(restored[None][inside], x[inside]) - psnr(simple[inside], x[inside])
    assert gain > (0.1 if task in ("superres", "deblur") else 1)


@pytest.mark.parametrize("task", ["denoise", "inpaint", "superres", "deblur", "demosaic"])
def test_every_task_has_a_classical_method_to_compare_with(task, monkeypatch):
    pytest.importorskip("skimage")
    x = truth(96, 96)
    item, simple = measured(task, x)
    compared = classical.classical(item)
    inside = (..., slice(8, -8), slice(8, -8))
    assert psnr(compared[None][inside], x[inside]) > psnr(simple[inside], x[inside]) + 0.5
    for size in ("SIDE", "MARGIN"):
        monkeypatch.setattr(classical, size, 36)
    assert (classical.classical(item) - compared).abs().mean() < 2e-3


def test_the_classical_result_is_a_file_and_in_the_report(tmp_path, prior_file):
    pytest.importorskip("skimage")
    as_picture(noise(truth(64, 256)[0], 0.1)).save(tmp_path / "a.jpg")
    out = tmp_path / "out"
    command = [tmp_path / "a.jpg", "--task=denoise", f"--prior={prior_file}", f"--out={out}"]
    assert restore(*command, "--compare").exit_code == 0
    page = (out / "report.html").read_text()
    for said in ("for comparison: non-local means", "the difference, ", "sigma in flat places", "between neighboring"):
        assert said in page
    with Image.open(out / "a.classical.jpg") as image:
        assert image.size == (256, 64)
    assert "Already there" in restore(*command, "--compare").stdout
    assert restore(*command).exit_code == 0
    assert not (out / "a.classical.jpg").exists()
    assert "non-local" not in (out / "report.html").read_text()


def test_a_comparison_needs_its_package(tmp_path, prior_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.restoration", None)
    as_picture(truth()[0]).save(tmp_path / "a.png")
    command = [tmp_path / "a.png", f"--prior={prior_file}", "--compare", f"--out={tmp_path / 'out'}"]
    outcome = restore(*command, "--task=denoise")
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "--compare needs the package scikit-image: pip install scikit-image" in outcome.stderr
    assert restore(*command, "--task=superres").exit_code == 0


def test_the_report_keeps_what_other_runs_have_left_in_the_folder(tmp_path, prior_file):
    out = tmp_path / "out"
    for name in ("a", "b", "c"):
        as_picture(noise(truth()[0], 0.1)).save(tmp_path / f"{name}.png")
        outcome = restore(tmp_path / f"{name}.png", "--task=denoise", f"--prior={prior_file}", f"--out={out}")
        assert outcome.exit_code == 0
    page = (out / "report.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == ["c.png", "Numbers", "Earlier in this folder", "b.png", "a.png", "Settings"]
    (out / "a.restored.png").write_bytes(b"no longer ours")
    (tmp_path / "b.png").unlink()
    assert restore(tmp_path / "c.png", "--task=denoise", f"--prior={prior_file}", f"--out={out}").exit_code == 0
    page = (out / "report.html").read_text()
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page)[3:] == ["b.png", "Settings"]
    assert "The picture itself is gone" in page


@pytest.mark.parametrize("task", ["denoise", "inpaint", "superres", "deblur", "demosaic"])
def test_tiles_make_the_whole(prior, task, monkeypatch):
    item, _ = measured(task, truth(192, 192))
    at_once, _ = restore_whole(prior, item, evals=4)
    monkeypatch.setattr(whole, "SIDE", 48)
    assert len(item.tiles()) > 1
    by_tiles, _ = restore_whole(prior, item, evals=4)
    assert (by_tiles - at_once).abs().max() < 0.02


def test_a_tile_without_holes_costs_nothing(prior, monkeypatch):
    monkeypatch.setattr(whole, "SIDE", 48)
    monkeypatch.setattr(whole, "MARGIN", 16)
    x = truth(144, 144)[0]
    observed = torch.ones(1, 144, 144, dtype=torch.bool)
    observed[:, 4:8, 4:8] = False
    seen = []
    monkeypatch.setattr(whole, "_estimates", lambda p, w, tile, e: seen.append(tile) or iter([w.cut(tile)[0]]))
    restore_whole(prior, Whole(x, 0.01, observed=observed))
    assert [(tile.kept_rows.start, tile.kept_columns.start) for tile in seen] == [(0, 0)]


def test_what_is_known_stays_as_it_is(prior):
    item, _ = measured("inpaint", truth())
    restored, _ = restore_whole(prior, item, evals=2)
    known = item.observed.expand_as(restored)
    assert torch.equal(restored[known], item.y[known].clamp(0, 1))


def test_finished_tiles_are_used_again_and_damaged_ones_are_not(prior, tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "SIDE", 48)
    monkeypatch.setattr(whole, "MARGIN", 16)
    item, _ = measured("denoise", truth(144, 144))
    expected, _ = restore_whole(prior, item)
    calls, estimates = [], whole._estimates

    def some(p, w, tile, evals):
        calls.append(tile)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return estimates(p, w, tile, evals)

    monkeypatch.setattr(whole, "_estimates", some)
    with pytest.raises(KeyboardInterrupt):
        restore_whole(prior, item, finished=FinishedTiles(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "1.npy").write_bytes(b"damaged")
    monkeypatch.setattr(whole, "_estimates", lambda *a: calls.append(a) or estimates(*a))
    calls.clear()
    again, _ = restore_whole(prior, item, finished=FinishedTiles(tmp_path))
    assert len(calls) == len(item.tiles()) - 2
    assert torch.equal(again, expected)


def test_a_filling_keeps_what_is_known_and_is_smooth():
    x = truth(37, 53)
    observed = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.6
    result = filled(torch.where(observed, x, torch.tensor(9.0)), observed)
    assert torch.equal(result[observed], x[observed])
    assert (result <= 1.001).all(), "nothing of the unknown values comes through"
    assert psnr(result, x) > 20
    flat = filled(torch.full((1, 1, 9, 9), 0.3), torch.eye(9).bool()[None, None])
    torch.testing.assert_close(flat, torch.full((1, 1, 9, 9), 0.3))


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "tif", "npy"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_result_is_a_file_of_the_same_kind_and_size(tmp_path, prior_file, ending, channels):
    y = noise(truth(33, 50)[0, :channels], 0.05)
    path = tmp_path / f"photo.{ending}"
    if ending == "npy":
        np.save(path, y.permute(1, 2, 0).numpy())
    else:
        as_picture(y).save(path)
    outcome = restore(path, "--task=denoise", f"--prior={prior_file}", f"--out={tmp_path / 'out'}", "--json")
    assert outcome.exit_code == 0, outcome.output
    (record,) = json.loads(outcome.stdout)["pictures"]
    assert record["restored"] == str(tmp_path / "out" / f"photo.restored.{ending}")
    assert (record["status"], record["rule"], record["evaluations"]) == ("done", "noise levels", 1)
    if ending == "npy":
        assert np.load(record["restored"]).shape == (33, 50, channels)
    else:
        with Image.open(record["restored"]) as image:
            assert image.size == (50, 33)
            assert image.mode == ("L" if channels == 1 and ending != "webp" else "RGB")
    assert "photo" in (tmp_path / "out" / "report.html").read_text()


def test_all_tasks_from_the_command_line(tmp_path, prior_file):
    x = truth(48, 64)
    as_picture(x[0]).save(tmp_path / "clean.png")
    options = {
        "inpaint": [],
        "superres": ["--factor=3"],
        "deblur": ["--blur=1.2"],
        "demosaic": ["--pattern=gbrg"],
    }
    for task, more in options.items():
        y, out = tmp_path / f"{task}.png", tmp_path / task
        if task == "inpaint":
            alpha = torch.ones(1, 48, 64)
            alpha[:, 10:14, 10:30] = 0
            Image.fromarray((torch.cat([x[0], alpha]) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()).save(
                y
            )
        elif task == "demosaic":
            as_picture((x[0] * mosaic_mask((3, 48, 64), "gbrg")).sum(0, keepdim=True)).save(y)
        else:
            as_picture(x[0]).save(y)
        outcome = restore(y, f"--task={task}", *more, f"--prior={prior_file}", f"--out={out}", "--json")
        assert outcome.exit_code == 0, outcome.output
        (record,) = json.loads(outcome.stdout)["pictures"]
        with Image.open(record["restored"]) as image:
            assert image.size == ((192, 144) if task == "superres" else (64, 48))
            assert image.mode == "RGB"
        if task in ("inpaint", "demosaic"):
            assert psnr(read_image(record["restored"], (3, 48, 64))[None], x) > 28


def test_a_second_run_finds_everything_done_and_another_format_replaces_it(tmp_path, prior_file):
    as_picture(noise(truth()[0], 0.05)).save(tmp_path / "a.png")
    out = tmp_path / "out"
    command = [tmp_path / "a.png", "--task=denoise", f"--prior={prior_file}", f"--out={out}"]
    assert restore(*command).exit_code == 0
    before = (out / "a.restored.png").stat().st_mtime_ns
    assert "Already there" in restore(*command).stdout
    assert (out / "a.restored.png").stat().st_mtime_ns == before
    assert restore(*command, "--format=jpg", "--quality=80").exit_code == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["a.json", "a.restored.jpg", "report.html"]


def test_an_interrupt_leaves_tiles_and_the_same_command_goes_on(tmp_path, prior_file, monkeypatch):
    monkeypatch.setattr(whole, "SIDE", 48)
    monkeypatch.setattr(whole, "MARGIN", 16)
    as_picture(noise(truth(144, 144)[0], 0.05)).save(tmp_path / "a.png")
    command = [tmp_path / "a.png", "--task=denoise", f"--prior={prior_file}"]
    assert restore(*command, f"--out={tmp_path / 'unbroken'}").exit_code == 0
    calls, estimates = [], whole._estimates

    def some(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return estimates(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(whole, "_estimates", some)
    assert restore(*command, f"--out={out}").exit_code == 130
    assert len(list(out.glob(f"{photo_restorer.TILES}*/*.npy"))) == 4
    assert restore(*command, f"--out={out}").exit_code == 0
    assert len(calls) == 5 + 9 - 4
    assert not list(out.glob(f"{photo_restorer.TILES}*"))
    assert (out / "a.restored.png").read_bytes() == (tmp_path / "unbroken" / "a.restored.png").read_bytes()


def test_gray_stored_in_three_channels_is_restored_as_gray(tmp_path, prior_file):
    gray = noise(truth()[0].mean(0, keepdim=True), 0.08).expand(3, -1, -1)
    as_picture(gray).save(tmp_path / "a.png")
    out = tmp_path / "out"
    assert restore(tmp_path / "a.png", "--task=denoise", f"--prior={prior_file}", f"--out={out}").exit_code == 0
    image = np.asarray(Image.open(out / "a.restored.png"))
    assert image.shape == (64, 64, 3)
    assert (image == image[..., :1]).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--task=denoise", "--sigma=25"], "did you mean 25/255 = 0.098"),
        (["--task=denoise", "--sigma=0.9"], "knows noise up to 0.3"),
        (["--task=colorize"], "knows one kind of picture"),
        (["--task=denoise", "--fit=align"], "restores the whole picture"),
        (["--task=denoise", "--lam=0.3"], "needs neither"),
        (["--task=denoise", "--format=gif"], "--format is gif"),
        (["--task=denoise", "--quality=0"], "--quality is 0"),
        (["--task=inpaint", "--faces=auto"], "--faces only works with --task denoise"),
        (["--task=denoise", "--faces=all"], "--faces is all; it must be auto"),
        (["--task=denoise", "--device=tpu"], "--device is tpu; it must be auto, cpu, cuda"),
        (["--task=denoise", "--device=cuda:99"], "there is no GPU here for --device cuda:99"),
        (["--task=deblur", "--motion=9"], "length and angle"),
        (["--task=demosaic"], "in color"),
        (["--task=inpaint"], "which pixels are missing"),
        (["--task=inpaint", "--mask=MASK"], "would be made up"),
    ],
)
def test_a_strange_wish_gets_a_question(tmp_path, prior_file, options, named):
    as_picture(truth()[0]).save(tmp_path / "a.png")
    Image.fromarray(np.repeat([[255] * 4 + [0] * 60], 64, 0).astype(np.uint8)).save(tmp_path / "mask.png")
    options = [option.replace("MASK", str(tmp_path / "mask.png")) for option in options]
    outcome = restore(tmp_path / "a.png", *options, f"--prior={prior_file}", f"--out={tmp_path / 'out'}")
    assert outcome.exit_code == 2
    assert named in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_the_device_is_no_reason_to_restore_again(tmp_path, prior_file):
    as_picture(noise(truth()[0], 0.05)).save(tmp_path / "a.png")
    command = [tmp_path / "a.png", "--task=denoise", f"--prior={prior_file}", f"--out={tmp_path / 'out'}"]
    assert restore(*command, "--device=cpu").exit_code == 0
    assert "--device cpu" in (tmp_path / "out" / "report.html").read_text()
    assert "Already there" in restore(*command).stdout


def test_a_deep_hole_is_filled_if_one_insists(tmp_path, prior_file):
    as_picture(truth()[0]).save(tmp_path / "a.png")
    Image.fromarray(np.repeat([[255] * 4 + [0] * 60], 64, 0).astype(np.uint8)).save(tmp_path / "mask.png")
    command = [tmp_path / "a.png", "--task=inpaint", f"--mask={tmp_path / 'mask.png'}", "--anyway"]
    assert restore(*command, f"--prior={prior_file}", f"--out={tmp_path / 'out'}").exit_code == 0


def test_options_for_photographs_are_refused_with_a_face_prior(tmp_path):
    as_picture(truth()[0]).save(tmp_path / "a.png")
    for options in (["--task=denoise", "--format=jpg"], ["--task=denoise", "--faces=auto"], ["--task=demosaic"]):
        outcome = restore(tmp_path / "a.png", *options, "--prior=celeba64-realnvp-small", f"--out={tmp_path / 'out'}")
        assert outcome.exit_code == 2
        assert "celeba64-realnvp-small" in outcome.stderr


def test_a_level_beyond_the_prior_is_named_by_the_library(prior):
    with pytest.raises(InputError, match=r"0\.3"):
        restore_whole(prior, Whole(truth()[0], 0.9))


def test_a_folder_that_another_process_writes_to_is_left_alone(tmp_path, prior_file):
    as_picture(noise(truth()[0], 0.05)).save(tmp_path / "a.png")
    out = tmp_path / "out"
    command = [tmp_path / "a.png", "--task=denoise", f"--prior={prior_file}", f"--out={out}"]
    assert restore(*command).exit_code == 0
    tiles = out / f"{photo_restorer.TILES}others"
    tiles.mkdir()
    with FolderLock(out) as lock:
        lock.acquire()
        outcome = restore(*command, "--sigma=0.1")
        assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
        assert "is writing to the folder" in outcome.stderr
        assert restore(*command).exit_code == 2, "nothing is missing, but the report would be written"
        assert tiles.exists()
    assert restore(*command, "--sigma=0.1").exit_code == 0
    assert not tiles.exists()


def test_what_is_not_finite_is_not_written(tmp_path, prior_file, monkeypatch):
    np.save(tmp_path / "a.npy", truth()[0].permute(1, 2, 0).numpy())
    monkeypatch.setattr(whole, "_estimates", lambda p, w, tile, e: iter([torch.full_like(w.cut(tile)[0], torch.nan)]))
    outcome = restore(
        tmp_path / "a.npy", "--task=denoise", "--sigma=0.1", f"--prior={prior_file}", f"--out={tmp_path / 'out'}"
    )
    assert outcome.exit_code == 2
    assert "no finite density" in outcome.stderr
    assert not (tmp_path / "out" / "a.restored.npy").exists()


def test_a_damaged_picture_costs_no_other_and_alone_leaves_no_folder(tmp_path, prior_file):
    (tmp_path / "bad.png").write_bytes(b"damaged")
    as_picture(noise(truth()[0], 0.05)).save(tmp_path / "good.png")
    out = tmp_path / "out"
    command = ["--task=denoise", f"--prior={prior_file}", f"--out={out}"]
    outcome = restore(tmp_path / "bad.png", *command)
    assert (outcome.exit_code, out.exists()) == (2, False)
    outcome = restore(tmp_path / "bad.png", tmp_path / "good.png", *command)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith(f"aipo: {tmp_path / 'bad.png'}: damaged")
    assert (out / "good.restored.png").exists()


def test_the_noise_level_of_a_photograph(prior):
    """White noise is measured; what a JPEG file does to its colors is seen; a camera's smooth noise has one level."""
    x = torch.nn.functional.interpolate(truth(16, 16), (128, 128), mode="bicubic").clamp(0, 1)
    sigma, white, notes = automatic_sigma(prior, noise(x, 0.1))
    assert sigma == pytest.approx(0.1, rel=0.1)
    assert white
    assert not notes
    gray = noise(x, 0.1).mean(1, keepdim=True) - x.mean(1, keepdim=True)
    sigma, white, notes = automatic_sigma(prior, x + 1.5 * gray)  # the same in all colors
    assert 0.03 < sigma < 0.12
    assert "brightness" in notes[0]
    blurred = torch.nn.functional.avg_pool2d(noise(torch.zeros_like(x), 0.03), 7, 1, 3)
    assert noise_curve((x + blurred)[0]).correlation > 0.5
    sigma, white, notes = automatic_sigma(prior, x + blurred)
    assert (sigma, white) == (0.04, False)
    assert "camera" in notes[0]
    flat = torch.full((1, 3, 128, 128), 0.5)
    sigma, white, notes = automatic_sigma(prior, noise(flat, 0.008))
    assert white
    assert sigma == pytest.approx(0.008, rel=0.15), "little noise that is white stays what it is"
    assert not any("camera" in note for note in notes)
