"""There is one list of tasks, and every task makes the operator it names, from exactly what it needs."""

import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from typer.testing import CliRunner

from aipo import operators
from aipo.cli import app, common
from aipo.cli import corrupt as corrupting
from aipo.cli import restore as command
from aipo.errors import InputError
from aipo.images.windows import FITS
from aipo.restore.operators import damaging_operator, make_operator, mosaic_mask
from aipo.restore.settings import SOLVERS, Settings
from aipo.restore.tasks import TASKS, Damage

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
    ("deblur", {"motion": (5.0, 30.0)}, operators.Blur, SHAPE),
    ("demosaic", {"pattern": "grbg"}, operators.Inpainting, SHAPE),
    ("colorize", {}, operators.Grayscale, (1, 16, 16)),
    ("sense", {"measurements": 7, "seed": 3}, operators.CompressedSensing, (7,)),
    ("sense", {"matrix": MATRIX}, operators.CompressedSensing, (5,)),
    ("sense", {"matrix": MATRIX, "measurements": 5}, operators.CompressedSensing, (5,)),
]


def test_the_command_line_knows_the_same_names():
    for options in (command.TaskOption, corrupting.TaskOption):
        assert options.__metadata__[0].metavar == f"[{'|'.join(TASKS)}]"
    assert list(common.FITS) == list(FITS)
    assert list(command.SOLVERS) == list(SOLVERS)


def test_every_option_of_a_task_is_one_of_restore():
    names = {field.name for field in fields(Settings)}
    for task in TASKS.values():
        assert set(task.options) <= names
        assert bool(task.options) == bool(task.needs)


def test_the_list_does_not_load_torch():
    code = "import sys, aipo.cli, aipo.restore.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("name", "known"), [("task", list(TASKS)), ("fit", FITS), ("solver", list(SOLVERS))])
def test_an_unknown_choice_gets_one_line_that_names_the_others(name, known):
    options = {"task": "denoise", "out": "nowhere"} | {name: "sharpen"}
    arguments = [word for option, value in options.items() for word in (f"--{option}", value)]
    outcome = CliRunner().invoke(app, ["restore", "absent.png", *arguments])
    assert outcome.exit_code == 2
    assert outcome.stderr == f"aipo: unknown {name} sharpen; choose from {', '.join(known)}\n"


@pytest.mark.parametrize("task", TASKS)
def test_a_clean_image_can_be_damaged_by_every_task(task):
    damage = Damage(fraction=0.5, block=8, factor=4, blur=2.0, measurements=9)
    operator = damaging_operator(task, SHAPE, damage, seed=3)
    own = {
        "denoise": operators.Denoising(SHAPE),
        "inpaint": operators.Inpainting.random_blocks(SHAPE, 0.5, 8, seed=3),
        "superres": operators.SuperResolution(SHAPE, 4),
        "deblur": operators.Blur.gaussian(SHAPE, 2.0),
        "demosaic": operators.Inpainting(mosaic_mask(SHAPE, "rggb")),
        "colorize": operators.Grayscale(SHAPE),
        "sense": operators.CompressedSensing(SHAPE, 9, seed=3),
    }[task]
    x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert type(operator) is type(own)
    assert torch.equal(operator.A(x), own.A(x))
    assert TASKS[task].added_sigma == (TASKS[task].sigma or 0.1)


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


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "grbg", "gbrg"])
def test_a_mosaic_has_the_colors_that_its_pattern_names(pattern):
    mask = mosaic_mask((3, 5, 7), pattern)
    assert (mask.sum(0) == 1).all()
    for i, color in enumerate(pattern):
        assert mask["rgb".index(color), i // 2, i % 2] == mask["rgb".index(color), 2 + i // 2, 4 + i % 2] == 1


def test_a_kernel_keeps_the_brightness():
    flat = torch.full((1, *SHAPE), 0.6)
    assert torch.allclose(make_operator("deblur", SHAPE, kernel=KERNEL).A(flat), flat, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "options", "named"),
    [
        ("sharpen", {}, "sharpen"),
        ("inpaint", {}, "mask"),
        ("superres", {}, "factor"),
        ("superres", {"factor": 5}, "factor is 5"),
        ("demosaic", {"pattern": "rgbg"}, "pattern is rgbg"),
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
        ("denoise", {"mask": MASK}, "does not use mask"),
        ("colorize", {"factor": 2}, "does not use factor"),
    ],
)
def test_what_is_missing_or_too_much_is_named(task, options, named):
    with pytest.raises(InputError, match=named):
        make_operator(task, SHAPE, **options)
