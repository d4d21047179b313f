"""`aipo restore` on files: what is written, that it can be repeated, and that a failure stays with its picture."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import open_image, png_bytes, read_image, write_image
from aipo.priors.files import load_prior_files, save_prior_files
from aipo.restore.inputs import Reader
from aipo.restore.run import prepare, run
from aipo.restore.settings import SOLVERS, Settings
from aipo.solvers import LBFGS, Amortized, FixedLambda

SHAPE = (3, 64, 64)


def save_prior(flow, path):
    return save_prior_files(flow, {"name": path.stem, "bits": 5, "data": "-", "license": "-", "metrics": {}}, path)


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    """A tiny prior that has seen only noise: no good for pictures, but every gradient takes milliseconds."""
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    save_prior(flow, path)
    return path


@pytest.fixture
def pictures(tmp_path):
    """Noisy versions of the sample pictures, as files."""
    generator = torch.Generator().manual_seed(1)
    paths = []
    for name in ("astronaut", "cat"):
        x = aipo.samples.load(name)
        paths.append(tmp_path / f"{name}.png")
        write_image(paths[-1], x + 0.1 * torch.randn(SHAPE, generator=generator))
    return paths


def restore(*arguments):
    return CliRunner().invoke(app, ["restore", *map(str, arguments)], catch_exceptions=False)


def denoise(prior, out, *pictures):
    return restore(*pictures, "--task", "denoise", "--sigma", 0.1, "--prior", prior, "--out", out, "--json")


def read_strip(record):
    strip = open_image(record["strip"]).x
    return strip.split(64, dim=2)


def levels(path):
    return np.asarray(Image.open(path)).astype(int)


def test_denoise_two_pictures(tmp_path, prior, pictures):
    out = tmp_path / "new" / "out"
    outcome = denoise(prior, out, *pictures)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stderr == ""
    names = [f"{name}.{end}" for name in ("astronaut", "cat") for end in ("json", "restored.png", "strip.png")]
    assert sorted(path.name for path in out.iterdir()) == [*names, "report.html"]

    document = json.loads(outcome.stdout)
    assert document["report"] == str(out / "report.html")
    assert document["failed"] == document["skipped"] == []
    problem = aipo.MapProblem(
        load_prior_files(prior),
        aipo.operators.Denoising(SHAPE),
        aipo.Gaussian(0.1),
        torch.stack([read_image(path) for path in pictures]),
    )
    choice = aipo.choose_lambda(problem)
    expected = choice.result
    for i, (record, picture) in enumerate(zip(document["pictures"], pictures, strict=True)):
        assert record == json.loads((out / f"{picture.stem}.json").read_text())
        assert record["picture"] == str(picture)
        assert record["status"] == "done"
        assert record["rule"] == "discrepancy"
        assert record["lam"] == expected.lam[i].item()
        assert record["loss"] == expected.loss[i].item()
        assert record["loss"] == pytest.approx(record["D"] + record["lam"] * record["P"])
        assert record["chi2"] == pytest.approx(problem.chi2(expected.x)[i].item())
        assert record["evaluations"] == expected.evals[i]
        assert record["seconds"] > 0
        assert [point["lam"] for point in record["path"]] == choice.path.lam[i][choice.path.lam[i].isfinite()].tolist()
        assert (record["sigma"], record["sigma_from"], record["noise_gain"]) == (0.1, "given", 1.0)
        assert record["target_chi2"] == choice.target[i].item()
        assert record["settings"] == dict.fromkeys(
            [
                "faces",
                "fit",
                "mask",
                "mask_color",
                "factor",
                "kernel",
                "blur",
                "motion",
                "pattern",
                "matrix",
                "seed",
                "format",
                "quality",
            ]
        ) | {
            "anyway": False,
            "compare": False,
            "task": "denoise",
            "sigma": 0.1,
            "trust_sigma": False,
            "lam": "auto",
            "solver": "path",
            "prior": "tiny",
            "prior_sha256": json.loads(prior.with_suffix(".json").read_text())["sha256"],
            "aipo": aipo.__version__,
            "torch": torch.__version__,
        }
        strip = read_strip(record)
        assert torch.equal(strip[0], problem.y[i])
        (chosen,) = [image for tile, image in zip(record["tiles"], strip[1:], strict=True) if tile["chosen"]]
        assert torch.equal(chosen, read_image(record["restored"]))
        lams = [tile["lam"] for tile in record["tiles"]]
        assert lams == sorted(lams)
        assert (out / f"{picture.stem}.restored.png").read_bytes() == png_bytes(expected.x[i])

    page = (out / "report.html").read_text()
    for name in ("astronaut.png", "cat.png"):
        assert f'alt="{name}, as measured"' in page
        assert f'alt="{name}, restored"' in page
    assert page.count('<figure class="marked">') == page.count('<div class="slider">') == 2
    assert page.count("<svg") == 4
    assert f"aipo restore {pictures[0]} {pictures[1]} --task denoise --prior {prior} --sigma 0.1 --lam auto" in page


@pytest.mark.parametrize("solver", ["path", "quick", "decayed"])
def test_a_lam_of_ones_own(tmp_path, prior, pictures, solver):
    options = ["--task=denoise", "--sigma=0.1", "--lam=0.5", f"--solver={solver}", f"--prior={prior}", "--json"]
    outcome = restore(pictures[0], *options, f"--out={tmp_path / 'out'}")
    assert outcome.exit_code == 0, outcome.output
    (record,) = json.loads(outcome.stdout)["pictures"]
    assert (record["lam"], record["rule"], record["path"]) == (0.5, "fixed", None)
    assert record["loss"] == pytest.approx(record["D"] + 0.5 * record["P"])


def test_sigma_is_estimated_for_each_picture(tmp_path, prior, pictures):
    outcome = restore(*pictures, "--task=denoise", f"--prior={prior}", f"--out={tmp_path / 'out'}", "--json")
    assert outcome.exit_code == 0, outcome.output
    records = json.loads(outcome.stdout)["pictures"]
    assert all(record["settings"]["sigma"] == record["sigma_from"] == "estimated" for record in records)
    assert all(abs(record["sigma"] - 0.1) < 0.015 for record in records)
    assert records[0]["sigma"] != records[1]["sigma"]
    assert "--sigma" not in (tmp_path / "out" / "report.html").read_text()


def test_the_same_run_gives_the_same_bytes(tmp_path, prior, pictures):
    for out in ("one", "two"):
        assert denoise(prior, tmp_path / out, *pictures).exit_code == 0
    for picture in pictures:
        name = f"{picture.stem}.restored.png"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_picture_does_not_depend_on_its_neighbors(tmp_path, prior, pictures):
    assert denoise(prior, tmp_path / "both", *pictures).exit_code == 0
    assert denoise(prior, tmp_path / "alone", pictures[1]).exit_code == 0
    together, alone = (levels(tmp_path / folder / "cat.restored.png") for folder in ("both", "alone"))
    assert np.abs(together - alone).max() <= 1


def test_inpaint_keeps_what_the_mask_shows(tmp_path, prior):
    picture, mask = tmp_path / "astronaut.png", tmp_path / "mask.png"
    observed = torch.ones(1, 64, 64)
    observed[:, 20:36, 16:48] = 0
    # Whatever is under the mask must not matter.
    write_image(picture, torch.where(observed.bool(), aipo.samples.load("astronaut"), torch.rand(SHAPE)))
    write_image(mask, observed)
    out = tmp_path / "out"
    outcome = restore(
        picture,
        "--task",
        "inpaint",
        "--mask",
        mask,
        "--lam",
        0.1,
        "--prior",
        prior,
        "--out",
        out,
        "--solver",
        "decayed",
    )
    assert outcome.exit_code == 0, outcome.output
    record = json.loads((out / "astronaut.json").read_text())
    assert (record["settings"]["sigma"], record["settings"]["mask"]) == (0.02, str(mask))
    assert record["evaluations"] == 251
    difference = np.abs(levels(out / "astronaut.restored.png") - levels(picture))[observed[0].bool().numpy()]
    assert difference.max() < 0.1 * 255
    assert "Restored 1 of 1 pictures" in outcome.stdout


def test_quiet_prints_nothing(tmp_path, prior, pictures):
    outcome = restore(
        pictures[0], "--task=denoise", "--sigma=0.1", f"--prior={prior}", f"--out={tmp_path / 'out'}", "--quiet"
    )
    assert (outcome.exit_code, outcome.output) == (0, "")


def test_a_failure_stays_with_its_picture(tmp_path):
    """A prior whose density overflows for every picture but mid-gray, which it maps to z = 0."""
    flow = RealNVP(SHAPE, couplings=[1], hidden=[4])
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith("log_scale"):
                parameter.fill_(60.0)
    prior = tmp_path / "overflow.safetensors"
    save_prior(flow, prior)
    gray, cat = tmp_path / "gray.npy", tmp_path / "cat.png"
    np.save(gray, np.full((64, 64, 3), 0.5))
    write_image(cat, aipo.samples.load("cat"))
    out = tmp_path / "out"
    outcome = restore(
        cat,
        gray,
        "--task=denoise",
        "--sigma=0.1",
        "--lam=0.3",
        "--solver=quick",
        "--json",
        f"--prior={prior}",
        f"--out={out}",
    )
    assert outcome.exit_code == 1
    assert outcome.stderr == f"aipo: {cat}: not restored, the solver stopped with: non finite\n"
    names = ["cat.json", "cat.strip.png", "gray.json", "gray.restored.png", "gray.strip.png", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == names
    failed, done = json.loads(outcome.stdout)["pictures"]
    assert (failed["status"], failed["restored"], failed["loss"]) == ("non finite", None, None)
    assert done["status"] == "done"
    page = (out / "report.html").read_text()
    assert 'alt="gray.npy, restored"' in page
    assert 'alt="cat.png, restored"' not in page
    assert "Not restored: non finite" in page


@pytest.mark.parametrize("order", [1, -1])
def test_what_cannot_be_solved_stays_with_its_picture(tmp_path, prior, order):
    """A single measurement cannot be held out, and is only found to be too few by the rule."""
    operator = aipo.operators.CompressedSensing(SHAPE, 100, seed=5)
    one, many = tmp_path / "one.npy", tmp_path / "many.npy"
    np.save(one, np.ones(1))
    np.save(many, operator.A(aipo.samples.load("cat")[None])[0].numpy())
    options = ["--task=sense", "--seed=5", "--lam=held-out", f"--prior={prior}", f"--out={tmp_path / 'out'}", "--json"]
    outcome = restore(*[one, many][::order], *options)
    assert outcome.exit_code == 1
    document = json.loads(outcome.stdout)
    assert [(record["picture"], record["status"]) for record in document["pictures"]] == [(str(many), "done")]
    (failed,) = document["failed"]
    assert failed["picture"] == str(one)
    assert failed["error"].startswith(f"{one}: CompressedSensing")
    assert "too few measurements" in failed["error"]
    assert outcome.stderr == f"aipo: {failed['error']}\n"
    assert "too few measurements" in (tmp_path / "out" / "report.html").read_text()


class Recorder:
    """Keeps how far a run was, in pictures."""

    def __init__(self):
        self.shares = []

    def begin(self, total): ...

    def reached(self, pictures):
        self.shares.append(pictures)

    def say(self, text): ...


def test_of_pictures_solved_together_only_the_bad_one_fails(tmp_path, prior, pictures, monkeypatch):
    import aipo.restore.face_restorer

    bad, solve = read_image(pictures[0]), aipo.restore.face_restorer.solve

    def refuse(problem, *others):
        if any(torch.equal(y, bad) for y in problem.y):
            raise aipo.InputError("the astronaut cannot be solved")
        return solve(problem, *others)

    monkeypatch.setattr(aipo.restore.face_restorer, "solve", refuse)
    third = tmp_path / "third.png"
    third.write_bytes(pictures[1].read_bytes())
    settings = Settings("denoise", str(prior), sigma=0.1, lam=0.1)
    watcher = Recorder()
    outcome = run(prepare([*pictures, third], tmp_path / "out", settings), watcher)
    assert outcome.failed == [(pictures[0], f"{pictures[0]}: the astronaut cannot be solved")]
    assert [(r.picture, r.status, r.batch) for r in outcome.records] == [
        (str(path), "done", 1) for path in (pictures[1], third)
    ]
    assert watcher.shares == sorted(watcher.shares)
    assert watcher.shares[-1] == 3


# Those of `SOLVERS`, but short, and with increments of lam that are never larger than their budget assumes.
SHORT = {
    "path": LBFGS(evals=12, tolerance=0.0),
    "quick": replace(Amortized.quick(), mle_iterations=5, last_K=10, r=1e-6),
    "paper": Amortized(K=2, mle_iterations=10, delta_min_share=1 / 8, r=1e-6),
    "decayed": FixedLambda.decayed(steps=12),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_progress_rises_to_the_end(tmp_path, prior, pictures, monkeypatch, solver):
    monkeypatch.setitem(SOLVERS, solver, SHORT[solver])
    mask = tmp_path / "mask.png"
    write_image(mask, (torch.arange(64).expand(1, 64, 64) % 4 > 0).float())
    settings = Settings("inpaint", str(prior), mask=mask, lam=0.1, solver=solver)
    watcher = Recorder()
    run(prepare(pictures[:1], tmp_path / "out", settings), watcher)
    *solving, end = watcher.shares
    assert solving == sorted(solving)
    assert end == 1
    assert 0.8 < solving[-1] <= 1
    # The evaluations of the start are spent before the solver first reports, and belong to the work.
    assert (solving[0] > 0) == (solver in ("quick", "paper"))


@pytest.mark.parametrize("rule", ["auto", "held-out"])
def test_progress_rises_to_the_end_while_lam_is_chosen(tmp_path, pictures, rule):
    """Also with the rule that follows two paths; with a prior that needs all the evaluations."""
    watcher = Recorder()
    settings = Settings("denoise", "celeba64-realnvp-small", sigma=0.1, lam=rule)
    run(prepare(pictures[:1], tmp_path / "out", settings), watcher)
    *solving, end = watcher.shares
    assert solving == sorted(solving)
    assert 0.8 < solving[-1] <= end == 1


# --- tasks ---


def quickly(prior, out, *arguments):
    """Restore at one lam in a hundred small steps, and return the records."""
    outcome = restore(*arguments, f"--prior={prior}", f"--out={out}", "--lam=0.1", "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)["pictures"]


def residual(prior, operator, y, record):
    """chi2 of the record, by hand."""
    x = read_image(record["restored"])[None]
    return ((operator.A(x) - y).square().mean() / record["sigma"] ** 2).item()


def test_superres_finds_its_factor(tmp_path, prior):
    x = aipo.samples.load("astronaut")[None]
    operators = {f: aipo.operators.SuperResolution(SHAPE, f) for f in (2, 4)}
    for factor, operator in operators.items():
        write_image(tmp_path / f"x{factor}.png", operator.A(x)[0])
    records = quickly(prior, tmp_path / "out", tmp_path / "x2.png", tmp_path / "x4.png", "--task=superres")
    for (factor, operator), record in zip(operators.items(), records, strict=True):
        y = read_image(tmp_path / f"x{factor}.png", (3, 64 // factor, 64 // factor))[None]
        assert residual(prior, operator, y, record) == pytest.approx(record["chi2"], abs=0.2)
        assert (record["sigma"], record["sigma_from"], record["batch"]) == (0.01, "assumed", 1)


def test_deblur_with_a_kernel_or_a_width(tmp_path, prior):
    operator = aipo.operators.Blur.gaussian(SHAPE, 1.5)
    write_image(tmp_path / "a.png", operator.A(aipo.samples.load("astronaut")[None])[0])
    np.save(tmp_path / "kernel.npy", 3 * operator.kernel.numpy())
    (one,) = quickly(prior, tmp_path / "one", tmp_path / "a.png", "--task=deblur", "--blur=1.5")
    (two,) = quickly(prior, tmp_path / "two", tmp_path / "a.png", "--task=deblur", "--kernel", tmp_path / "kernel.npy")
    assert np.abs(levels(one["restored"]) - levels(two["restored"])).max() <= 1
    assert residual(prior, operator, read_image(tmp_path / "a.png")[None], one) == pytest.approx(one["chi2"], abs=0.2)
    assert two["settings"]["kernel_sha256"]


def test_colorize_keeps_the_brightness(tmp_path, prior):
    operator = aipo.operators.Grayscale(SHAPE)
    x = aipo.samples.load("astronaut")[None]
    write_image(tmp_path / "gray.png", operator.A(x)[0])
    write_image(tmp_path / "color.png", x[0])
    pictures = [tmp_path / "gray.png", tmp_path / "color.png"]
    gray, color = quickly(prior, tmp_path / "out", *pictures, "--task=colorize", "--anyway")
    assert residual(prior, operator, operator.A(x), gray) < 1
    assert gray["notes"] == []
    assert color["notes"] == ["in color: only its brightness is used"]
    assert color["batch"] == 2


@pytest.mark.parametrize(
    ("name", "side", "named"),
    [
        ("astronaut", 64, None),
        ("cat", 64, "no face was found in it, and"),
        ("color", 64, "is in color already; --anyway"),
        ("astronaut", 160, "is 160x160 pixels, but the prior needs 64x64; --fit align colors the largest face"),
        ("cat", 160, "it knows the colors of faces, and none was found here"),
    ],
)
def test_only_gray_faces_are_colored_without_a_question(tmp_path, prior, name, side, named):
    x = aipo.samples.load("astronaut" if name == "color" else name)[None]
    x = torch.nn.functional.interpolate(x, (side, side), mode="bicubic").clamp(0, 1)
    write_image(tmp_path / "a.png", x[0] if name == "color" else x[0].mean(0, keepdim=True))
    options = ["--task=colorize", f"--prior={prior}", "--lam=0.1", f"--out={tmp_path / 'out'}"]
    outcome = restore(tmp_path / "a.png", *options)
    assert outcome.exit_code == (0 if named is None else 2), outcome.output
    assert named is None or (named in outcome.stderr and outcome.stderr.count("\n") == 1)
    if side == 64:
        assert restore(tmp_path / "a.png", *options, "--anyway").exit_code == 0


def test_sense_with_a_matrix_or_its_seed(tmp_path, prior):
    operator = aipo.operators.CompressedSensing(SHAPE, 100, seed=5)
    y = operator.A(aipo.samples.load("astronaut")[None])
    np.save(tmp_path / "y.npy", y[0].numpy())
    np.save(tmp_path / "matrix.npy", operator.matrix.numpy())
    (one,) = quickly(prior, tmp_path / "one", tmp_path / "y.npy", "--task=sense", "--seed=5")
    (two,) = quickly(prior, tmp_path / "two", tmp_path / "y.npy", "--task=sense", "--matrix", tmp_path / "matrix.npy")
    assert np.array_equal(levels(one["restored"]), levels(two["restored"]))
    assert residual(prior, operator, y, one) == pytest.approx(one["chi2"], abs=0.2)


def test_three_ways_to_say_what_is_missing(tmp_path, prior):
    """A mask, a painted color and transparency say the same, so the same comes out."""
    x, observed = aipo.samples.load("astronaut"), torch.ones(1, 64, 64)
    observed[:, 20:30, 10:40] = 0
    folder = tmp_path / "in"
    folder.mkdir()
    write_image(folder / "plain.png", x)
    write_image(tmp_path / "mask.png", observed)
    magenta = torch.tensor([1.0, 0.0, 1.0])[:, None, None]
    write_image(folder / "painted.png", torch.where(observed.bool(), x, magenta))
    Image.fromarray(np.dstack([levels(folder / "plain.png"), levels(tmp_path / "mask.png")]).astype(np.uint8)).save(
        folder / "clear.png"
    )
    results = [
        quickly(prior, tmp_path / name, folder / f"{name}.png", "--task=inpaint", *options)[0]
        for name, *options in (
            ("plain", "--mask", tmp_path / "mask.png"),
            ("painted", "--mask-color", "magenta"),
            ("clear",),
        )
    ]
    first, second, third = (levels(record["restored"]) for record in results)
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    view = read_strip(results[1])[0]
    assert (view[:, 20:30, 10:40] - 0.5).abs().max() < 0.01
    assert torch.equal(torch.where(observed.bool(), view, x), x)


# --- pictures of other sizes ---


@pytest.fixture(scope="module")
def photo():
    return pytest.importorskip("skimage.data").astronaut()


def test_align_puts_the_face_back(tmp_path, prior, photo):
    noisy = np.clip(photo / 255 + 0.1 * np.random.default_rng(0).standard_normal(photo.shape), 0, 1)
    Image.fromarray((noisy * 255).round().astype(np.uint8)).save(tmp_path / "photo.png")
    (record,) = quickly(prior, tmp_path / "out", tmp_path / "photo.png", "--task=denoise", "--fit=align")
    before, after = levels(tmp_path / "photo.png"), levels(record["restored"])
    assert after.shape == before.shape
    changed = np.abs(after - before).max(axis=2) > 0
    rows, columns = np.nonzero(changed)
    assert 60 < rows.min() < rows.max() < 180
    assert 165 < columns.min() < columns.max() < 285
    assert changed[110:130, 210:240].all()
    face = read_image(record["face"])
    assert aipo.metrics.psnr(face[None], aipo.samples.load("astronaut")[None]).item() > 18
    # Averaging over the face's pixels has taken noise away, and the record says how much.
    assert record["sigma_from"] == "estimated"
    assert 0.4 < record["noise_gain"] < 0.8
    assert record["sigma"] == pytest.approx(0.1 * record["noise_gain"], rel=0.15)
    assert "with the restored face" in (tmp_path / "out" / "report.html").read_text()


def test_only_what_was_missing_is_put_back(tmp_path, prior, photo):
    painted = photo.copy()
    painted[112:122, 196:212] = painted[400:410, 100:110] = (255, 0, 255)
    Image.fromarray(painted).save(tmp_path / "photo.png")
    options = ["--task=inpaint", "--mask-color=magenta", "--fit=align"]
    (record,) = quickly(prior, tmp_path / "out", tmp_path / "photo.png", *options)
    after = levels(record["restored"])
    changed = (after != painted).any(axis=2)
    assert changed[112:122, 196:212].all()
    changed[112:122, 196:212] = False
    assert not changed.any()
    assert "missing pixels elsewhere in the picture stay as they are" in record["notes"]


@pytest.mark.parametrize("task", ["denoise", "inpaint", "colorize"])
def test_what_lies_beyond_the_border_is_missing(tmp_path, prior, photo, task):
    """Of a face that is cut at the border only what the picture shows counts as observed, whatever the task."""
    photos = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in photos:
        Image.fromarray(photo[:, 205:]).save(path)
    mask = tmp_path / "mask.png"
    write_image(mask, torch.ones(1, *photo[:, 205:].shape[:2]))
    options = {"mask": mask} if task == "inpaint" else {}
    reader = Reader(Settings(task, str(prior), sigma=0.1, fit="align", anyway=True, **options))
    item, other = map(reader.read, photos)
    inside = item.window.inside(read_image(photos[0], (3, *photo[:, 205:].shape[:2])))
    assert 0.5 < inside.float().mean() < 0.9
    y = torch.ones(1, *item.operator.measurement_shape)
    assert torch.equal(item.operator.restrict(y)[0], inside.float().expand_as(y[0]))
    assert item.operator.num_measurements == inside.expand_as(y[0]).sum()
    assert ((item.view - 0.5).abs().amax(0) == 0)[~inside[0]].all()
    assert item.view.shape == SHAPE
    assert f"{1 - inside.float().mean():.0%} of the restored part lies beyond the border of the picture" in item.notes
    assert other.operator is item.operator  # so that they are solved together


@pytest.mark.parametrize("solver", ["path", "quick"])
def test_a_cut_face_is_colorized(tmp_path, prior, photo, solver):
    Image.fromarray(photo[:, 205:]).save(tmp_path / "photo.png")
    options = ["--task=colorize", "--fit=align", "--anyway", f"--solver={solver}"]
    (record,) = quickly(prior, tmp_path / "out", tmp_path / "photo.png", *options)
    gray, face = read_strip(record)[0], read_image(record["face"])[None]
    shown = (gray - 0.5).abs().amax(0) > 0.01  # 0.5 is where nothing is observed
    assert (~shown).float().mean() > 0.2
    error = aipo.operators.Grayscale(SHAPE).A(face)[0, 0] - gray[0]
    assert error[shown].square().mean().sqrt() < 0.05


@pytest.mark.parametrize("task", ["denoise", "colorize"])
def test_a_scaled_picture_is_observed_up_to_its_edges(tmp_path, prior, task):
    write_image(tmp_path / "a.png", torch.rand(3, 100, 100))
    item = Reader(Settings(task, str(prior), sigma=0.1, fit="resize", anyway=True)).read(tmp_path / "a.png")
    assert item.operator.num_measurements == item.y.numel()
    assert not any("beyond" in note for note in item.notes)


def test_a_given_sigma_is_that_of_the_picture_as_it_is(tmp_path, prior):
    x = torch.rand(3, 256, 300, generator=torch.Generator().manual_seed(0))
    write_image(tmp_path / "a.png", x)
    options = ["--task=denoise", "--sigma=0.2"]
    (cut,) = quickly(prior, tmp_path / "crop", tmp_path / "a.png", "--fit=crop", *options)
    assert (cut["sigma"], cut["noise_gain"]) == (0.2, 1)
    assert torch.equal(read_strip(cut)[0], read_image(tmp_path / "a.png", (3, 256, 300))[:, 96:160, 118:182])
    (scaled,) = quickly(prior, tmp_path / "resize", tmp_path / "a.png", "--fit=resize", *options)
    assert scaled["sigma"] == pytest.approx(0.05, rel=0.1)
    assert levels(scaled["restored"]).shape == (64, 64, 3)


def test_a_mask_is_fitted_with_its_picture(tmp_path, prior):
    write_image(tmp_path / "a.png", torch.rand(3, 128, 128))
    observed = torch.ones(1, 128, 128)
    observed[:, 31:60, :] = 0  # half of what becomes row 15
    write_image(tmp_path / "mask.png", observed)
    options = ["--task=inpaint", "--mask", tmp_path / "mask.png", "--fit=resize"]
    (record,) = quickly(prior, tmp_path / "out", tmp_path / "a.png", *options)
    missing = (read_strip(record)[0] - 0.5).abs().amax(dim=(0, 2)) < 0.01
    assert missing.nonzero().flatten().tolist() == list(range(15, 30))
    # What is assumed stands for more than noise: averaging does not make it smaller.
    assert (record["sigma"], record["sigma_from"]) == (0.02, "assumed")


def test_a_small_sigma_is_taken_as_it_is_given(tmp_path, prior, pictures):
    (record,) = quickly(prior, tmp_path / "out", pictures[0], "--task=denoise", "--sigma=0.001")
    assert record["sigma"] == 0.001


# --- many pictures ---


def test_a_folder_with_all_sorts(tmp_path, prior, pictures):
    folder = tmp_path / "all sorts"
    folder.mkdir()
    for picture in pictures:
        (folder / picture.name).write_bytes(picture.read_bytes())
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("notes")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "cat.restored.png").write_bytes(pictures[0].read_bytes())
    (folder / "deeper").mkdir()
    out = tmp_path / "out"
    options = ["--task=denoise", "--lam=0.1", f"--prior={prior}", f"--out={out}"]
    outcome = restore(folder, *options, "--json")
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith(f"aipo: {folder / 'broken.jpg'}: damaged")
    assert outcome.stderr.count("\n") == 1
    document = json.loads(outcome.stdout)
    assert [record["picture"] for record in document["pictures"]] == [str(folder / p.name) for p in pictures]
    assert [entry["picture"] for entry in document["failed"]] == [str(folder / "broken.jpg")]
    assert document["skipped"] == [str(folder / "cat.restored.png"), str(folder / "notes.txt")]
    assert "broken.jpg" in (out / "report.html").read_text()

    # Again: nothing is solved anew, and what is broken is still said.
    before = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != "report.html"}
    outcome = restore(folder, *options, "--verbose")
    assert outcome.exit_code == 1
    assert "Already there from an earlier run: 2." in outcome.stdout
    assert "Restored 2 of 3 pictures" in outcome.stdout
    assert "notes.txt: skipped" in outcome.stderr
    assert "solving" not in outcome.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    page = (out / "report.html").read_text()
    assert 'alt="astronaut.png, restored"' in page


def test_results_are_known_from_another_folder(tmp_path, prior, pictures, monkeypatch):
    options = ["--task=denoise", "--lam=0.1", f"--prior={prior}"]
    monkeypatch.chdir(tmp_path)
    assert restore("astronaut.png", *options, "--out=out").exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    outcome = restore("../astronaut.png", "../cat.png", *options, "--out=../out")
    assert outcome.exit_code == 0, outcome.output
    assert "Already there from an earlier run: 1." in outcome.stdout
    assert (tmp_path / "out" / "report.html").read_text().count('<div class="slider">') == 2


@pytest.mark.parametrize("change", ["lam", "picture", "result", "mask"])
def test_a_result_is_made_again_when_something_changed(tmp_path, prior, pictures, change):
    out, mask = tmp_path / "out", tmp_path / "mask.png"
    write_image(mask, (torch.arange(64).expand(1, 64, 64) % 4 > 0).float())

    def outcome(lam="0.1"):
        options = ["--task=inpaint", "--mask", mask, f"--lam={lam}", f"--prior={prior}", f"--out={out}"]
        return restore(pictures[0], *options)

    assert outcome().exit_code == 0
    assert "Already there" in outcome().stdout
    if change == "picture":
        pictures[0].write_bytes(pictures[1].read_bytes())
    elif change == "result":
        (out / "astronaut.restored.png").unlink()
    elif change == "mask":
        write_image(mask, (torch.arange(64).expand(1, 64, 64) % 5 > 0).float())
    again = outcome("0.2" if change == "lam" else "0.1")
    assert again.exit_code == 0, again.output
    assert "Already there" not in again.stdout
    assert (out / "astronaut.restored.png").exists()


def test_a_run_that_died_while_writing_is_no_obstacle(tmp_path, prior, pictures):
    """Killed between two files, so that the record and the pictures do not agree."""
    out = tmp_path / "out"
    options = ["--task=denoise", "--lam=0.1", f"--prior={prior}", f"--out={out}"]
    assert restore(pictures[0], *options).exit_code == 0
    good = (out / "astronaut.restored.png").read_bytes()
    record = json.loads((out / "astronaut.json").read_text())
    (out / "astronaut.json").write_text(json.dumps(record | {"status": "being written"}))
    (out / "astronaut.restored.png").write_bytes(pictures[1].read_bytes())
    outcome = restore(pictures[0], *options)
    assert outcome.exit_code == 0, outcome.output
    assert "Already there" not in outcome.stdout
    assert (out / "astronaut.restored.png").read_bytes() == good
    assert json.loads((out / "astronaut.json").read_text())["status"] == "done"


def test_more_pictures_than_are_solved_together(tmp_path, prior, pictures, monkeypatch):
    from aipo.restore.face_restorer import FaceRestorer

    monkeypatch.setattr(FaceRestorer, "together", 2)
    names = [tmp_path / f"{i}.png" for i in range(5)]
    for i, name in enumerate(names):
        name.write_bytes(pictures[i % 2].read_bytes())
    names[1].write_bytes(b"broken")
    options = ["--task=denoise", "--lam=0.1", f"--prior={prior}", f"--out={tmp_path / 'out'}", "--json"]
    outcome = restore(*names, *options)
    assert outcome.exit_code == 1
    records = json.loads(outcome.stdout)["pictures"]
    assert [record["batch"] for record in records] == [1, 2, 2, 1]
    assert [record["picture"] for record in records] == [str(names[i]) for i in (0, 2, 3, 4)]


def test_verbose_says_what_is_done(tmp_path, prior, pictures):
    options = ["--task=denoise", "--lam=0.1", f"--prior={prior}", f"--out={tmp_path / 'out'}", "--verbose"]
    outcome = restore(pictures[0], *options)
    assert outcome.exit_code == 0
    assert f"{pictures[0]}: sigma 0." in outcome.stderr
    assert "estimated" in outcome.stderr
    assert "solving 1 together: Denoising" in outcome.stderr
    assert f"{pictures[0]}: done, lam 0.100" in outcome.stderr
