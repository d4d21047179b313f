"""Training images from pictures, mosaics and arrays."""

import numpy as np
import pytest
import torch
from PIL import Image

from aipo.errors import InputError
from aipo.training.dataset import load_images

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
