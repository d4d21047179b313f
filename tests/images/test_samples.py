"""The sample pictures are there, usable, and unchanged from their files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aipo import samples
from aipo.errors import InputError


def test_the_names_include_a_face_and_a_cat():
    assert {"astronaut", "cat"} <= set(samples.names())


@pytest.mark.parametrize("name", samples.names())
def test_a_sample_is_exactly_its_png(name):
    x = samples.load(name)
    assert x.shape == (3, 64, 64)
    assert x.dtype == torch.float32
    assert 0 <= x.min() < 0.2
    assert 0.8 < x.max() <= 1
    stored = np.asarray(Image.open(Path(samples.__file__).with_name(f"{name}.png")))
    assert np.array_equal((x * 255).round().byte().permute(1, 2, 0).numpy(), stored)


def test_the_eyes_of_the_astronaut_are_where_the_priors_expect_them():
    gray = samples.load("astronaut").mean(dim=0)
    for left in (15, 42):  # 7x7 pixels around each eye, against the cheek below it
        assert gray[17:24, left : left + 7].min() < gray[27:34, left : left + 7].min() - 0.3


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'dog'.*astronaut, cat"):
        samples.load("dog")
