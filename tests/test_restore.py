"""`aipo restore` on files: what is written, that it can be repeated, and that a failure stays with its picture."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import png_bytes, read_image, write_image
from aipo.prior import load_prior_files, save_prior_files

SHAPE = (3, 64, 64)


def save_prior(flow, path):
    return save_prior_files(flow, {"name": path.stem, "bits": 5, "data": "-", "licence": "-", "metrics": {}}, path)


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    """A tiny prior that has seen only noise: no good for pictures, but every gradient takes milliseconds."""
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    flow = RealNVP(SHAPE, couplings=[2, 1], hidden=[4, 4])
    flow.initialise(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
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


def levels(path):
    return np.asarray(Image.open(path)).astype(int)


def test_denoise_two_pictures(tmp_path, prior, pictures):
    out = tmp_path / "new" / "out"
    outcome = denoise(prior, out, *pictures)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stderr == ""
    names = ["astronaut.json", "astronaut.restored.png", "cat.json", "cat.restored.png", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == names

    document = json.loads(outcome.stdout)
    assert document["report"] == str(out / "report.html")
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
        assert record["settings"] == {
            "task": "denoise",
            "sigma": 0.1,
            "lam": "auto",
            "solver": "path",
            "mask": None,
            "prior": "tiny",
            "prior_sha256": json.loads(prior.with_suffix(".json").read_text())["sha256"],
            "aipo": aipo.__version__,
            "torch": torch.__version__,
        }
        assert (out / f"{picture.stem}.restored.png").read_bytes() == png_bytes(expected.x[i])

    page = (out / "report.html").read_text()
    for name in ("astronaut.png", "cat.png"):
        assert f'alt="{name}: as measured"' in page
        assert f'alt="{name}: restored"' in page
        assert f"{name} over lam" in page
    assert page.count('<figure class="marked">') == 2
    assert f"aipo restore {pictures[0]} {pictures[1]} --task denoise --sigma 0.1 --lam auto" in page


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
    assert all(record["settings"]["sigma"] == "estimated" for record in records)
    assert all(abs(record["sigma"] - 0.1) < 0.015 for record in records)
    assert records[0]["sigma"] != records[1]["sigma"]
    assert "--sigma" not in (tmp_path / "out" / "report.html").read_text()


def test_the_same_run_gives_the_same_bytes(tmp_path, prior, pictures):
    for out in ("one", "two"):
        assert denoise(prior, tmp_path / out, *pictures).exit_code == 0
    for picture in pictures:
        name = f"{picture.stem}.restored.png"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_picture_does_not_depend_on_its_neighbours(tmp_path, prior, pictures):
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
    """A prior whose density overflows for every picture but mid-grey, which it maps to z = 0."""
    flow = RealNVP(SHAPE, couplings=[1], hidden=[4])
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith("log_scale"):
                parameter.fill_(60.0)
    prior = tmp_path / "overflow.safetensors"
    save_prior(flow, prior)
    grey, cat = tmp_path / "grey.npy", tmp_path / "cat.png"
    np.save(grey, np.full((64, 64, 3), 0.5))
    write_image(cat, aipo.samples.load("cat"))
    out = tmp_path / "out"
    outcome = restore(
        cat,
        grey,
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
    assert sorted(path.name for path in out.iterdir()) == ["cat.json", "grey.json", "grey.restored.png", "report.html"]
    failed, done = json.loads(outcome.stdout)["pictures"]
    assert (failed["status"], failed["restored"], failed["loss"]) == ("non finite", None, None)
    assert done["status"] == "done"
    page = (out / "report.html").read_text()
    assert 'alt="grey.npy: restored"' in page
    assert 'alt="cat.png: restored"' not in page
