"""Noise flows are trained on photographs as they are; the run is the same whether it was interrupted or not."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import aipo
from aipo.errors import InputError
from aipo.flows import NoiseFlow, presets
from aipo.training import Data, Settings, Trainer, fit, photos
from aipo.training.objectives import KNEE, Denoising
from aipo.training.optimizers import Muon, orthogonalized
from aipo.training.photos import Photos, hold_out, list_photos, read_crops, with_patterns
from small_problem import build_noise_flow, smooth_images

TINY = {"couplings": [2, 2], "hidden": [8, 8], "blocks": [1, 1], "embedding": 8}


def settings(**changes):
    return Settings(**{"steps": 10, "batch": 4, "warmup": 2, "compile": False, "optimizer": "muon", **changes})


@pytest.fixture
def folder(tmp_path):
    """Photographs of several sizes, one of them too small."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, (width, height) in enumerate([(60, 48), (48, 60), (80, 50), (40, 40), (20, 90), (64, 64)]):
        pixels = (255 * smooth_images(1, 96, seed=i)[0, :, :height, :width]).byte()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def files(folder):
    return list_photos(folder, 32)


class TestPhotos:
    def test_small_photographs_are_left_out(self, folder):
        assert [p.stem for p in list_photos(folder, 32)] == ["0", "1", "2", "3", "5"]
        with pytest.raises(InputError, match="no photograph of 500x500"):
            list_photos(folder, 500)
        with pytest.raises(InputError, match="not a folder"):
            list_photos(folder / "0.png", 32)

    def test_crops_are_parts_of_the_photograph(self, folder):
        # At full scale a crop is found in the photograph, pixel by pixel.
        side = 40
        crops = read_crops(folder / "3.png", side, 5, torch.Generator().manual_seed(0))
        whole = torch.from_numpy(np.array(Image.open(folder / "3.png"))).permute(2, 0, 1)
        assert crops.shape == (5, 3, side, side)
        assert torch.equal(crops, whole.expand(5, -1, -1, -1))

    def test_a_step_sees_the_same_whenever_it_comes(self, files):
        def batch(step):
            return Photos(files, 32, 4, seed=3).batch(step, 4, torch.Generator().manual_seed(step))

        source = Photos(files, 32, 4, seed=3)
        far = 3 * source.steps_per_pool + 1
        steps = [0, 1, source.steps_per_pool, far, 2]
        for step in steps:
            found = source.batch(step, 4, torch.Generator().manual_seed(step))
            assert torch.equal(found, batch(step)), step
        assert not torch.equal(batch(0), batch(source.steps_per_pool))
        other = Photos(files, 32, 4, seed=4).batch(0, 4, torch.Generator().manual_seed(0))
        assert not torch.equal(batch(0), other)

    def test_every_photograph_comes_before_any_comes_twice(self, files, monkeypatch):
        monkeypatch.setattr(photos, "POOL_PHOTOS", 2)
        seen = []
        monkeypatch.setattr(photos, "read_crops", lambda path, *_: seen.append(path) or torch.zeros(1, 3, 32, 32))
        source = Photos(files, 32, 1, seed=0)
        for number in range(5):
            for part in source._decode(number):
                part.result()
        assert sorted(seen[:5]) == sorted(seen[5:10]) == files

    def test_a_damaged_photograph_costs_no_other(self, folder, files):
        (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:200])
        source = Photos(files, 32, 4, seed=0)
        assert source.batch(0, 8, torch.Generator().manual_seed(0)).shape == (8, 3, 32, 32)
        assert [path.stem for path in source.unreadable] == ["1"]

    def test_fingerprint_is_of_the_contents(self, folder, files):
        before = Photos(files, 32, 4, seed=0).fingerprint()
        (folder / "0.png").rename(folder / "9.png")
        assert Photos(list_photos(folder, 32), 32, 4, seed=1).fingerprint() == before
        (folder / "9.png").write_bytes((folder / "5.png").read_bytes())
        assert Photos(list_photos(folder, 32), 32, 4, seed=0).fingerprint() != before

    def test_held_out_photographs_are_not_trained_on(self, files):
        train, held = hold_out(files, 2, seed=0)
        assert len(held) == 2
        assert sorted(train + held) == files
        assert hold_out(files, 2, seed=0) == (train, held)


class TestObjective:
    def test_noise_is_what_it_says(self):
        images = torch.full((4000, 3, 4, 4), 128, dtype=torch.uint8)
        objective = Denoising(NoiseFlow(**TINY))
        x, y, s, gray = objective.draw(images, torch.Generator().manual_seed(0))
        assert ((255 * x - 128).abs() <= 0.5).all()
        residual = (y - x) / s[:, None, None, None]
        assert abs(residual.std().item() - 1) < 0.01
        # Log-uniform over the range; the brightness of a gray image has sqrt(3) times its noise.
        level = torch.where(gray, s / math.sqrt(3), s)
        low, high = objective.flow.levels_of_noise
        assert low <= level.min()
        assert level.max() <= high
        share = ((level / low).log() / math.log(high / low)).sort().values
        assert (share - torch.linspace(0, 1, len(share))).abs().max() < 0.03
        assert 0.08 < gray.float().mean() < 0.12

    def test_images_are_flipped_and_transposed(self):
        image = 4 * torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
        for turn, count in ((True, 8), (False, 2)):
            drawn = Denoising(NoiseFlow(**TINY), turn=turn).draw(image.expand(200, -1, -1, -1), torch.Generator())
            assert len((255 / 4 * drawn[0]).round().int().unique(dim=0)) == count

    def test_error_is_relative_to_the_noise_and_to_a_good_denoiser(self):
        """Before training the flow is a Gaussian: its estimate, hence its error, has a closed form."""
        flow = NoiseFlow(**TINY).double()
        flow.variances.fill_(0.01)
        generator = torch.Generator().manual_seed(0)
        x = 0.5 + 0.1 * torch.randn(64, 3, 16, 16, generator=generator, dtype=torch.float64)
        s = torch.full((64,), 0.1, dtype=torch.float64)
        y = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        loss, nats, error = Denoising(flow, weight=2.0)(x, y, s, torch.zeros(64, dtype=torch.bool))
        estimate = 0.5 + 0.01 / 0.02 * (y - 0.5)
        expected = (estimate - x).square().mean() / 0.01 * (1 + 0.1 / KNEE)
        torch.testing.assert_close(error, expected)
        torch.testing.assert_close(nats, 0.5 * (math.log(2 * math.pi * 0.02) + (y - 0.5).square().mean() / 0.02))
        torch.testing.assert_close(loss, nats + 2 * error)

    def test_a_strange_image_does_not_outweigh_the_others(self):
        flow = NoiseFlow(**TINY).double()
        x = torch.full((2, 3, 16, 16), 0.5, dtype=torch.float64)
        y = x.clone()
        y[1] += 1e3  # as far from anything seen as can be
        s, gray = torch.full((2,), 0.1, dtype=torch.float64), torch.zeros(2, dtype=torch.bool)
        _, nats, error = Denoising(flow)(x, y, s, gray)
        assert nats < 100
        assert error < 200
        further = Denoising(flow)(x, x + 2 * (y - x), s, gray)
        assert further[1] > nats  # but it counts
        assert further[2] > error

    def test_only_the_brightness_of_a_gray_image_counts(self):
        flow = build_noise_flow()
        x = smooth_images(2, 16).double()
        y = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        s, gray = torch.full((2,), 0.1, dtype=torch.float64), torch.tensor([True, True])
        before = Denoising(flow)(x, y, s, gray)
        colored = y + torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64).view(1, 3, 1, 1)
        torch.testing.assert_close(Denoising(flow)(x, colored, s, gray), before)

    def test_validation_is_psnr_of_the_clipped_estimate(self, monkeypatch):
        monkeypatch.setattr(aipo.priors.noise_prior, "MOST_TAKEN", math.inf)  # random weights take away more than noise
        flow = build_noise_flow(dtype=torch.float32)
        images = (255 * smooth_images(3, 32)).byte()
        metrics = Denoising(flow).validate(flow, images)
        x = images.float() / 255
        y = x + 25 / 255 * torch.randn(x.shape, generator=torch.Generator().manual_seed(25))
        estimate = aipo.priors.NoisePrior(flow).denoise(y, 25 / 255).clamp(0, 1)
        assert metrics["psnr_25"] == pytest.approx(aipo.metrics.psnr(estimate, x).mean().item(), abs=1e-3)


class TestMuon:
    def test_singular_values_become_about_one(self):
        for shape in ((2, 8, 30), (2, 30, 8)):
            values = torch.linalg.svdvals(
                orthogonalized(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
            )
            assert 0.6 < values.min()
            assert values.max() < 1.3

    def test_a_step_is_orthogonal_momentum(self):
        generator = torch.Generator().manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(6, 4, 3, 3, generator=generator)) for _ in range(2)]
        before = [w.detach().clone() for w in weights]
        optimizer = Muon(weights, torch.tensor(0.1), weight_decay=0.5)
        gradients = [torch.randn(w.shape, generator=generator) for w in weights]
        for w, g in zip(weights, gradients, strict=True):
            w.grad = g.clone()
        optimizer.step()
        for w, old, g in zip(weights, before, gradients, strict=True):
            # The first momentum is a multiple of the gradient, and so is Nesterov's.
            expected = 0.95 * old - 0.1 * orthogonalized(g.flatten(1)[None])[0].view_as(w)
            torch.testing.assert_close(w.detach(), expected, atol=1e-3, rtol=1e-3)

    def test_a_step_that_is_not_finite_moves_nothing(self):
        weight = torch.nn.Parameter(torch.ones(4, 2, 3, 3))
        optimizer = Muon([weight], torch.tensor(0.1))
        weight.grad = torch.full_like(weight, math.nan)
        optimizer.found_inf = torch.ones(())
        optimizer.step()
        assert torch.equal(weight.detach(), torch.ones(4, 2, 3, 3))
        assert all(m.isfinite().all() for state in optimizer.state.values() for m in state.values())


def make_trainer(files, **changes):
    return Trainer(flow := NoiseFlow(**TINY), Photos(files, 32, 4, 0), settings(**changes), objective=Denoising(flow))


def test_training_lowers_the_loss(files):
    trainer = make_trainer(files, steps=100, lr=3e-3, ema=0.9)
    crops = torch.cat([read_crops(path, 32, 2, torch.Generator().manual_seed(1)) for path in files])
    before = trainer.validate(crops)
    trainer.run(crops)
    after = trainer.progress.history[-1]
    assert after["psnr_25"] > before["psnr_25"] + 1
    assert after["val"] < before["val"]
    assert {"train", "nats", "error"} <= after.keys()


def test_killed_and_resumed_gives_the_same_weights(files, tmp_path):
    path = tmp_path / "c.safetensors"
    unbroken = make_trainer(files)
    for _ in range(4):
        unbroken.step()
    unbroken.save(path)
    resumed = make_trainer(files)
    resumed.resume(path)
    for trainer in (unbroken, resumed):
        for _ in range(4):
            trainer.step()
    for name, value in unbroken.flow.state_dict().items():
        assert torch.equal(value, resumed.flow.state_dict()[name]), name
    for name, value in unbroken.ema.items():
        assert torch.equal(value, resumed.ema[name]), name


def test_what_is_learned_does_not_depend_on_when_checkpoints_are_taken(files, tmp_path):
    """The clock says when, and averages are rounded in them."""
    often, once = make_trainer(files, steps=20), make_trainer(files, steps=20)
    often.run(every=0.0, checkpoint=tmp_path / "often.safetensors")
    once.run(every=1e9, checkpoint=tmp_path / "once.safetensors")
    assert len(often.progress.history) > len(once.progress.history) == 1
    for name, value in often.ema.items():
        assert torch.equal(value, once.ema[name]), name


def test_a_checkpoint_of_the_largest_prior_is_small(files, tmp_path):
    sizes = presets.NOISE_PRESETS["photo"]
    trainer = Trainer(flow := NoiseFlow(**sizes), Photos(files, 32, 1, 0), settings(batch=1), objective=Denoising(flow))
    trainer.step()
    trainer.save(tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").stat().st_size <= 60e6


def test_a_checkpoint_meets_only_its_own_photographs(folder, files, tmp_path):
    make_trainer(files).save(tmp_path / "c.safetensors")
    (folder / "0.png").write_bytes((folder / "5.png").read_bytes())
    with pytest.raises(InputError, match="data"):
        make_trainer(files).resume(tmp_path / "c.safetensors")


@pytest.fixture
def tiny_presets(monkeypatch):
    for name in ("photo-small", "face"):
        monkeypatch.setitem(presets.NOISE_PRESETS, name, TINY)


def test_fit_writes_a_prior_of_photographs(folder, tmp_path, tiny_presets):
    out = tmp_path / "mine.safetensors"
    card = fit(Data(folder, size=32, about="six pictures"), out, "photo-small", settings(steps=2))
    prior = aipo.load_prior(out)
    assert isinstance(prior, aipo.NoisePrior)
    assert prior.card == card
    assert (card["data"], card["bits"], card["offset"]) == ("six pictures", 0, 0)
    assert {"psnr_15", "psnr_25", "psnr_50", "bits_per_dim_val", "nats_per_dim_25_val"} == card["metrics"].keys()
    assert prior.surrogate((3, 40, 24), 0.1).mean.shape == (3, 40, 24)
    with Image.open(tmp_path / "mine.samples.png") as samples:
        assert min(samples.size) >= 4 * 64
    assert prior.denoise(torch.rand(1, 3, 37, 41), 0.1).shape == (1, 3, 37, 41)


def test_fine_tuning_starts_where_a_prior_ended(folder, tmp_path, tiny_presets):
    fit(Data(folder, size=32), tmp_path / "a.safetensors", "photo-small", settings(steps=2))
    first = aipo.load_prior(tmp_path / "a.safetensors").flow.state_dict()
    # With a vanishing learning rate nothing is learned: what comes out is what went in.
    gently = settings(steps=1, lr=1e-12, seed=5)
    card = fit(
        Data(folder, size=32), tmp_path / "b.safetensors", "photo-small", gently, start=tmp_path / "a.safetensors"
    )
    assert card["training"]["started_from"].endswith("a.safetensors")
    for name, value in aipo.load_prior(tmp_path / "b.safetensors").flow.state_dict().items():
        torch.testing.assert_close(value, first[name], atol=1e-3, rtol=1e-3)


def test_fine_tuning_needs_the_same_model(folder, tmp_path, tiny_presets, monkeypatch):
    fit(Data(folder, size=32), tmp_path / "a.safetensors", "photo-small", settings(steps=1))
    monkeypatch.setitem(presets.NOISE_PRESETS, "photo-small", {**TINY, "hidden": [8, 9]})
    with pytest.raises(InputError, match="another model"):
        fit(
            Data(folder, size=32),
            tmp_path / "b.safetensors",
            "photo-small",
            settings(steps=1),
            start=tmp_path / "a.safetensors",
        )


def test_faces_are_images_of_one_size(tmp_path, tiny_presets):
    faces = (255 * smooth_images(120, 16)).byte().permute(0, 2, 3, 1).numpy()
    np.save(tmp_path / "faces.npy", faces)
    card = fit(Data(tmp_path / "faces.npy", size=16), tmp_path / "f.safetensors", "face", settings(steps=2))
    assert card["training"]["images"] == 117
    assert isinstance(aipo.load_prior(tmp_path / "f.safetensors"), aipo.NoisePrior)


def test_photographs_are_no_mosaics(folder, tmp_path, tiny_presets):
    with pytest.raises(InputError, match="mosaics"):
        fit(Data(folder, size=32, mosaics=True), tmp_path / "a.safetensors", "photo-small", settings())


def test_a_checkpoint_says_what_it_is_of(files, tmp_path):
    trainer = make_trainer(files)
    trainer.step()
    trainer.save(tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", "pt") as file:
        meta = file.metadata()
    assert meta["architecture"] == "noise-flow"
    assert json.loads(meta["progress"])["step"] == 1
    assert meta["data"] == trainer.source.fingerprint()


def test_patterns_are_woven_into_a_share_of_the_crops():
    crops = torch.randint(0, 256, (400, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    woven = with_patterns(crops, torch.Generator().manual_seed(1))
    assert woven.dtype == torch.uint8
    changed = (woven != crops).flatten(1).any(1).float().mean()
    assert 0.06 < changed < 0.14
    assert torch.equal(woven, with_patterns(crops, torch.Generator().manual_seed(1)))
