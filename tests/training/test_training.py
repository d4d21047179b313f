"""Images are read; training lowers the loss, resumes exactly, counts what it skips, and writes a prior that loads."""

import math
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

import aipo
from aipo.errors import InputError
from aipo.flows import RealNVP
from aipo.priors.likelihood import bits_per_dim, dequantize
from aipo.training.dataset import load_images
from aipo.training.settings import Settings
from aipo.training.trainer import Trainer

SHAPE = (3, 8, 8)


def make_flow():
    return RealNVP(SHAPE, couplings=[2, 2], hidden=[8, 8])


def make_images(count=256):
    """Smooth random pictures: neighbors agree, so there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 2, 2, generator=generator)
    return (255 * torch.nn.functional.interpolate(coarse, size=8, mode="bilinear")).to(torch.uint8)


def settings(**changes):
    return Settings(**{"steps": 30, "batch": 32, "warmup": 5, "compile": False, **changes})


def test_dequantization_stays_in_its_cell():
    images = torch.arange(256, dtype=torch.uint8)
    for bits in (5, 8):
        low, high = dequantize(images, bits, torch.zeros(256)), dequantize(images, bits, torch.full((256,), 0.999))
        assert ((low * 2**bits) == images.div(2 ** (8 - bits), rounding_mode="floor")).all()
        assert (high < low + 2**-bits).all()
        assert high.max() < 1


def test_bits_per_dim_of_a_uniform_density():
    """A density of 1 on [0, 1]^n costs exactly `bits` bits per dimension."""

    class Uniform(RealNVP):
        def log_prob(self, x):
            return torch.zeros(len(x))

    flow = Uniform(SHAPE, couplings=[1], hidden=[4])
    torch.testing.assert_close(bits_per_dim(flow, make_images(4), bits=5), torch.full((4,), 5.0))


def test_noise_is_added_before_quantization():
    """With 8 bits and no flips to be seen on a flat image, what is left beside dequantization is the noise."""
    images = torch.full((64, *SHAPE), 128, dtype=torch.uint8)
    plain, noisy = (Trainer(make_flow(), images, settings(bits=8, noise=s))._draw(64)[0] for s in (0.0, 0.03))
    cell = 1 / 256
    assert abs(plain.std().item() - cell / 12**0.5) < 0.1 * cell
    assert abs(noisy.std().item() - 0.03) < 0.002
    assert abs(noisy.mean().item() - plain.mean().item()) < 0.002
    black = Trainer(make_flow(), 0 * images, settings(noise=0.2))._draw(64)[0]
    assert black.min() >= 0
    assert black.max() < 1


def test_training_lowers_the_loss():
    images = make_images()
    trainer = Trainer(make_flow(), images, settings(steps=120, lr=5e-3, ema=0.9))
    before = trainer.validate(images[:64])["val"]
    trainer.run(images[:64])
    assert trainer.progress.history[-1]["val"] < before - 0.1
    assert trainer.progress.step == 120


def test_schedule_warms_up_and_finishes():
    trainer = Trainer(make_flow(), make_images(), settings(steps=20, warmup=5, final_lr=0.01))
    rates = []
    while trainer.fraction < 1:
        rates.append(trainer.lr)
        trainer.step()
    assert rates[0] < rates[2] < rates[4]
    assert trainer.lr == pytest.approx(1e-3 * 0.01)
    assert all(a >= b for a, b in pairwise(rates[5:]))


def test_minutes_end_the_run_with_the_schedule_finished():
    trainer = Trainer(make_flow(), make_images(), settings(steps=None, minutes=0.02, warmup=1))
    trainer.run()
    assert trainer.fraction >= 1
    assert trainer.lr == pytest.approx(1e-3 * 0.01)
    assert trainer.progress.step > 1


def test_killed_and_resumed_gives_the_same_weights(tmp_path):
    images = make_images()
    unbroken = Trainer(make_flow(), images, settings(steps=12))
    for _ in range(12):
        unbroken.step()
    broken = Trainer(make_flow(), images, settings(steps=12))
    for _ in range(7):
        broken.step()
    broken.save(tmp_path / "c.safetensors")
    resumed = Trainer(make_flow(), images, settings(steps=12))
    resumed.resume(tmp_path / "c.safetensors")
    assert resumed.progress.step == 7
    for _ in range(5):
        resumed.step()
    for name, value in unbroken.flow.state_dict().items():
        assert torch.equal(value, resumed.flow.state_dict()[name]), name
    for name, value in unbroken.ema.items():
        assert torch.equal(value, resumed.ema[name]), name


def test_a_checkpoint_meets_only_its_own_run(tmp_path):
    trainer = Trainer(make_flow(), make_images(), settings())
    trainer.save(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="settings"):
        Trainer(make_flow(), make_images(), settings(lr=1e-4)).resume(tmp_path / "c.safetensors")
    other = RealNVP(SHAPE, couplings=[2, 2], hidden=[8, 9])
    with pytest.raises(InputError, match="model"):
        Trainer(other, make_images(), settings()).resume(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="data"):
        Trainer(make_flow(), make_images() // 2, settings()).resume(tmp_path / "c.safetensors")


@pytest.mark.parametrize("damage", ["truncated", "another file"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    path = tmp_path / "c.safetensors"
    trainer = Trainer(make_flow(), make_images(), settings())
    trainer.save(path)
    path.write_bytes(path.read_bytes()[:100] if damage == "truncated" else save({"x": torch.zeros(1)}))
    with pytest.raises(InputError, match="checkpoint") as caught:
        trainer.resume(path)
    assert "\n" not in str(caught.value)


def test_non_finite_steps_are_skipped_and_counted():
    trainer = Trainer(make_flow(), make_images(), settings(steps=3))
    healthy = trainer.objective
    trainer.step()
    weights = {k: v.clone() for k, v in trainer.flow.state_dict().items()}
    trainer.objective = lambda x: healthy(x) * math.nan
    trainer.step()
    for name, value in trainer.flow.state_dict().items():
        assert torch.equal(value, weights[name]), name
    trainer.objective = healthy
    trainer.run()
    assert trainer.progress.history[-1]["skipped"] == 1
    assert all(v.isfinite().all() for v in trainer.flow.state_dict().values())


@pytest.mark.parametrize(
    "bad", [{"steps": None}, {"minutes": 1.0}, {"bits": 0}, {"bits": 9}, {"batch": 0}, {"lr": 0.0}, {"steps": 0}]
)
def test_bad_settings(bad):
    with pytest.raises(InputError):
        settings(**bad)


DISTRIBUTED = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from test_training import make_flow, make_images, settings
from aipo.training.distributed import start_distributed, stop_distributed
from aipo.training.trainer import Trainer
torch.set_num_threads(1)
device = start_distributed()
trainer = Trainer(make_flow(), make_images(), settings(steps=4), device)
trainer.run()
if trainer.rank == 0:
    trainer.save(__import__("pathlib").Path(sys.argv[1]))
weights = torch.cat([p.detach().flatten() for p in trainer.flow.parameters()])
others = [torch.zeros_like(weights) for _ in range(trainer.world)]
torch.distributed.all_gather(others, weights)
assert all(torch.equal(weights, o) for o in others), "the processes drifted apart"
assert trainer.world == 2
stop_distributed()
"""


def test_two_processes_stay_in_step(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "c.safetensors"), str(Path(__file__).parent)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [p.communicate(timeout=120)[1] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], errors
    assert (tmp_path / "c.safetensors").exists()


def test_fit_writes_a_prior_that_loads(tmp_path):
    import numpy as np

    from aipo.flows.presets import PRESETS
    from aipo.training import Data, fit

    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 256, (120, 16, 16, 3), dtype=np.uint8))
    rows = []
    assert "realnvp-small" in PRESETS
    data = Data(tmp_path / "images.npy", size=16)
    card = fit(data, tmp_path / "p.safetensors", "realnvp-small", settings(steps=2, batch=8), report=rows.append)
    prior = aipo.load_prior(tmp_path / "p.safetensors")
    assert prior.image_shape == (3, 16, 16)
    assert prior.card["metrics"] == card["metrics"]
    assert prior.card["training"]["steps_taken"] == 2
    assert rows[-1]["step"] == 2
    assert (tmp_path / "p.samples.png").exists()
    with pytest.raises(InputError, match="unknown model"):
        fit(data, tmp_path / "q.safetensors", "gan", settings())


RNG = np.random.default_rng(0)


def tiles(count):
    return RNG.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


def mosaic(images, columns):
    rows = [np.concatenate(list(images[i : i + columns]), axis=1) for i in range(0, len(images), columns)]
    return Image.fromarray(np.concatenate(rows, axis=0))


def test_mosaic_is_read_row_by_row_and_its_empty_end_skipped(tmp_path):
    images = tiles(6)
    images[5] = 3  # a flat tile: the unused end
    mosaic(images, columns=3).save(tmp_path / "m.png")
    loaded = load_images(tmp_path / "m.png", size=8, mosaics=True)
    assert loaded.dtype == torch.uint8
    assert np.array_equal(loaded.permute(0, 2, 3, 1), images[:5])


def test_folder_in_the_order_of_names(tmp_path):
    images = tiles(4)
    for name, image in zip(("d", "b", "a", "c"), images, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    loaded = load_images(tmp_path, size=8)
    assert np.array_equal(loaded.permute(0, 2, 3, 1), images[[2, 1, 3, 0]])
    assert len(load_images(tmp_path, size=8, limit=2)) == 2


def test_other_sizes_are_cropped_and_resized(tmp_path):
    picture = np.zeros((20, 37, 3), dtype=np.uint8)
    picture[:, 8:28] = 200  # the center square
    Image.fromarray(picture).save(tmp_path / "p.png")
    loaded = load_images(tmp_path, size=8)
    assert loaded.shape == (1, 3, 8, 8)
    assert (loaded[0, :, 2:6, 2:6] > 190).all()


def test_a_large_picture_is_a_picture_unless_it_is_called_a_mosaic(tmp_path):
    Image.fromarray(tiles(1)[0]).resize((32, 32)).save(tmp_path / "p.png")
    assert len(load_images(tmp_path, size=8)) == 1
    assert len(load_images(tmp_path, size=8, mosaics=True)) == 16
    with pytest.raises(InputError, match="no mosaic"):
        load_images(tmp_path, size=9, mosaics=True)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays(tmp_path, layout, suffix):
    images = tiles(3)
    array = images if layout == "NHWC" else images.transpose(0, 3, 1, 2)
    path = tmp_path / f"a{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, images=array)
    assert np.array_equal(load_images(path, size=8).permute(0, 2, 3, 1), images)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p / "missing.png",
        lambda p: p,
        lambda p: np.save(p / "a.npy", np.zeros((2, 9, 9, 3), np.uint8)) or p / "a.npy",
        lambda p: np.save(p / "f.npy", np.zeros((2, 8, 8, 3))) or p / "f.npy",
        lambda p: np.save(p / "o.npy", np.array([{}], dtype=object)) or p / "o.npy",
        lambda p: (p / "broken.png").write_bytes(b"\x89PNG\r\n") and p / "broken.png",
    ],
    ids=["missing", "empty folder", "wrong size", "floats", "pickled objects", "broken"],
)
def test_refusals(tmp_path, make):
    with pytest.raises(InputError) as caught:
        load_images(make(tmp_path), size=8)
    assert "\n" not in str(caught.value)
