"""Every task makes the operator it names, from exactly what it needs."""

import pytest
import torch

from aipo import operators
from aipo.align import FITS
from aipo.cli.common import Fit
from aipo.cli.common import Task as TaskName
from aipo.errors import InputError
from aipo.restoring.settings import OPTIONS
from aipo.tasks import TASKS, make_operator

SHAPE = (3, 16, 16)
MASK = (torch.arange(256).view(1, 16, 16) % 3 > 0).float()
KERNEL = torch.tensor([[0.0, 1.0, 0.0], [1.0, 4.0, 1.0], [0.0, 1.0, 0.0]])
MATRIX = torch.randn(5, 768, generator=torch.Generator().manual_seed(0))

EXAMPLES = [
    ("denoise", {}, operators.Denoising, SHAPE),
    ("inpaint", {"mask": MASK}, operators.Inpainting, SHAPE),
    ("superres", {"factor": 2}, operators.SuperResolution, (3, 8, 8)),
    ("superres", {"factor": 4}, operators.SuperResolution, (3, 4, 4)),
    ("deblur", {"kernel": KERNEL}, operators.Blur, SHAPE),
    ("deblur", {"blur": 1.2}, operators.Blur, SHAPE),
    ("colorize", {}, operators.Grayscale, (1, 16, 16)),
    ("sense", {"measurements": 7, "seed": 3}, operators.CompressedSensing, (7,)),
    ("sense", {"matrix": MATRIX}, operators.CompressedSensing, (5,)),
    ("sense", {"matrix": MATRIX, "measurements": 5}, operators.CompressedSensing, (5,)),
]


def test_the_command_line_knows_the_same_names():
    assert [name.value for name in TaskName] == list(TASKS)
    assert [name.value for name in Fit] == list(FITS)
    assert set(OPTIONS) == {task.name for task in TASKS.values() if task.needs}


@pytest.mark.parametrize(("task", "options", "kind", "measured"), EXAMPLES)
def test_operators(task, options, kind, measured):
    operator = make_operator(task, SHAPE, **options)
    assert type(operator) is kind
    assert operator.image_shape == SHAPE
    assert operator.measurement_shape == measured


def test_what_is_given_is_used():
    x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert torch.equal(make_operator("inpaint", SHAPE, mask=MASK).A(x), x * MASK)
    assert torch.allclose(make_operator("sense", SHAPE, matrix=MATRIX).A(x), x.flatten(1) @ MATRIX.T)
    own = operators.CompressedSensing(SHAPE, 7, seed=3)
    assert torch.equal(make_operator("sense", SHAPE, measurements=7, seed=3).matrix, own.matrix)


def test_a_kernel_keeps_the_brightness():
    flat = torch.full((1, *SHAPE), 0.6)
    assert torch.allclose(make_operator("deblur", SHAPE, kernel=KERNEL).A(flat), flat, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "options", "named"),
    [
        ("sharpen", {}, "sharpen"),
        ("inpaint", {}, "mask"),
        ("superres", {}, "factor"),
        ("superres", {"factor": 3}, "factor is 3"),
        ("superres", {"factor": 8}, "factor is 8"),
        ("deblur", {}, "kernel"),
        ("deblur", {"blur": 1.0, "kernel": KERNEL}, "not both"),
        ("deblur", {"blur": -1.0}, "width is -1"),
        ("deblur", {"kernel": -KERNEL}, "more than 0"),
        ("deblur", {"kernel": torch.ones(17, 3)}, "kernel"),
        ("sense", {"seed": 0}, "measurements"),
        ("sense", {"measurements": 7}, "matrix"),
        ("sense", {"matrix": MATRIX, "seed": 0}, "not both"),
        ("sense", {"matrix": MATRIX, "measurements": 7}, "5 rows"),
        ("denoise", {"mask": MASK}, "no use for mask"),
        ("colorize", {"factor": 2}, "no use for factor"),
    ],
)
def test_what_is_missing_or_too_much_is_named(task, options, named):
    with pytest.raises(InputError, match=named):
        make_operator(task, SHAPE, **options)
