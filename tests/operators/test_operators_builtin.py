"""What is particular to each built-in operator: statistics, definitions, bad arguments."""

import pytest
import torch

from aipo.errors import InputError
from aipo.noise import Gaussian, as_generator
from aipo.operators import (
    Blur,
    CompressedSensing,
    Denoising,
    FourierSubsampling,
    Grayscale,
    Inpainting,
    Saturation,
    SuperResolution,
)

SHAPE = (3, 8, 8)


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.rand(*shape, generator=as_generator(seed), dtype=dtype)


def test_denoising_projects_to_the_clipped_measurement():
    y = 3 * rand(2, *SHAPE) - 1
    assert torch.equal(Denoising(SHAPE).project(rand(2, *SHAPE, seed=1), y), y.clamp(0, 1))


@pytest.mark.parametrize("seed", [0, 1])
def test_random_blocks_hides_exactly_a_quarter(seed):
    op = Inpainting.random_blocks((3, 64, 64), fraction=0.25, block=4, seed=seed)
    assert op.num_measurements == 0.75 * 12288
    assert torch.equal(op.mask[0], op.mask[1])
    blocks = op.mask[0].reshape(16, 4, 16, 4).sum((1, 3))
    assert set(blocks.unique().tolist()) == {0, 16}
    assert (blocks == 0).sum() == 64


def test_random_blocks_depends_on_the_seed_only():
    masks = [Inpainting.random_blocks(SHAPE, 0.5, 2, seed).mask for seed in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_inpainting_projection_keeps_what_is_observed():
    op = Inpainting.random_blocks(SHAPE, 0.5, 2)
    x, y = 3 * rand(2, *SHAPE) - 1, op.A(3 * rand(2, *SHAPE, seed=1) - 1)
    assert torch.equal(op.project(x, y), torch.where(op.mask == 1, y, x).clamp(0, 1))


def test_inpainting_accepts_a_mask_of_one_channel():
    mask = rand(1, 8, 8) < 0.5
    op = Inpainting(mask, SHAPE)
    assert op.num_measurements == 3 * mask.sum()
    residual = op.measure(rand(2, *SHAPE), Gaussian(1.0), seed=0) - op.A(rand(2, *SHAPE, seed=1))
    assert (residual[:, ~mask.expand(SHAPE)] == 0).all()
    assert (residual[:, mask.expand(SHAPE)] != 0).all()


def test_compressed_sensing_entries_have_variance_one_over_m():
    matrix = CompressedSensing((3, 32, 32), m=500, seed=0).matrix
    assert matrix.shape == (500, 3072)
    assert matrix.var().item() * 500 == pytest.approx(1, rel=0.01)
    assert matrix.mean().item() == pytest.approx(0, abs=5 / (500 * 3072 * 500) ** 0.5)
    assert torch.equal(matrix, CompressedSensing((3, 32, 32), m=500, seed=0).matrix)
    assert not torch.equal(matrix, CompressedSensing((3, 32, 32), m=500, seed=1).matrix)


def test_compressed_sensing_at_the_size_of_the_paper():
    op = CompressedSensing((3, 64, 64), m=2000, seed=0)
    y = op.A(rand(2, 3, 64, 64, dtype=torch.float32))
    x = op.A_dagger(y)
    assert x.dtype == torch.float32
    assert (op.A(x) - y).norm() < 2e-6 * y.norm()
    x = op.project(x, y)
    assert (op.A(x) - y).norm() < 1e-4 * y.norm()
    assert x.min() >= 0
    assert x.max() <= 1


def test_compressed_sensing_with_a_given_matrix():
    matrix = torch.randn(5, 192, generator=as_generator(0), dtype=torch.float64)
    x = rand(2, *SHAPE)
    torch.testing.assert_close(CompressedSensing(SHAPE, matrix=matrix).A(x), x.flatten(1) @ matrix.T)


def test_compressed_sensing_refuses_dependent_rows():
    matrix = torch.randn(5, 192, generator=as_generator(0), dtype=torch.float64)
    matrix[4] = matrix[0] + matrix[1]
    op = CompressedSensing(SHAPE, matrix=matrix)
    with pytest.raises(InputError, match=r"^the 5 rows of matrix are linearly dependent; .*$"):
        op.A_dagger(rand(1, 5))


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_super_resolution_is_average_pooling(factor):
    x = rand(2, *SHAPE)
    torch.testing.assert_close(SuperResolution(SHAPE, factor).A(x), torch.nn.functional.avg_pool2d(x, factor))


def test_blur_is_a_centered_circular_convolution():
    kernel, x = rand(3, 4), rand(1, *SHAPE)
    expected = sum(
        kernel[i, j] * x.roll((i - 1, j - 2), (-2, -1)) for i in range(kernel.shape[0]) for j in range(kernel.shape[1])
    )
    torch.testing.assert_close(Blur(SHAPE, kernel).A(x), expected)


def test_gaussian_blur_keeps_the_mean_and_spreads_by_its_width():
    point = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    point[..., 16, 16] = 1
    blurred = Blur.gaussian((1, 33, 33), width=2).A(point)[0, 0]
    offset = torch.arange(-16, 17, dtype=torch.float64)
    assert blurred.sum().item() == pytest.approx(1)
    assert (blurred.sum(0) * offset).sum().item() == pytest.approx(0, abs=1e-12)
    assert (blurred.sum(0) * offset**2).sum().sqrt().item() == pytest.approx(2, rel=1e-2)


def test_blur_leaves_lost_frequencies_at_zero():
    op = Blur.gaussian((1, 16, 16), width=2, rcond=0.1)
    x = op.A_dagger(torch.randn(1, 1, 16, 16, generator=as_generator(0), dtype=torch.float64))
    gain = torch.fft.fft2(op.A(torch.eye(256, dtype=torch.float64)[:1].reshape(1, 1, 16, 16))).abs()
    spectrum = torch.fft.fft2(x).abs()
    assert 0 < (gain > 0.1).sum() < 256
    assert spectrum[gain < 0.0999].max() < 1e-12
    assert spectrum[gain > 0.1001].min() > 1e-6


def test_grayscale_is_luma():
    x = rand(2, *SHAPE)
    y = Grayscale(SHAPE).A(x)
    torch.testing.assert_close(y[:, 0], 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])


def test_fully_sampled_fourier_loses_nothing():
    op = FourierSubsampling(SHAPE, torch.ones(8, 8))
    x = rand(2, *SHAPE)
    torch.testing.assert_close(op.A(x).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    torch.testing.assert_close(op.A_dagger(op.A(x)), x)


def test_half_of_the_frequencies_determine_a_real_image():
    mask = torch.zeros(8, 8)
    mask[:, :5] = 1  # every k or its mirror -k
    op = FourierSubsampling(SHAPE, mask)
    x = rand(2, *SHAPE)
    torch.testing.assert_close(op.A_dagger(op.A(x)), x)


@pytest.mark.parametrize(("pattern", "expected"), [("lines", 16 * 64), ("points", 1024)])
def test_random_sampling_has_its_center_and_fraction(pattern, expected):
    op = FourierSubsampling.random((1, 64, 64), fraction=0.25, center=0.1, seed=0, pattern=pattern)
    assert op.mask.sum() == expected
    assert op.num_measurements == 2 * expected
    centered = op.mask.roll((32, 32), (0, 1))
    assert (centered[30:35, 30:35] == 1).all()
    if pattern == "lines":
        assert (centered == centered[:1]).all()
    other = FourierSubsampling.random((1, 64, 64), fraction=0.25, center=0.1, seed=1, pattern=pattern)
    assert not torch.equal(op.mask, other.mask)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Inpainting.random_blocks(SHAPE),
        lambda: CompressedSensing(SHAPE, m=5),
        lambda: Blur.gaussian(SHAPE, width=1),
        lambda: Grayscale(SHAPE),
        lambda: FourierSubsampling.random(SHAPE),
    ],
)
def test_first_use_in_inference_mode_leaves_gradients_possible(make):
    op, x = make(), rand(1, *SHAPE)
    with torch.inference_mode():
        expected = op.A_dagger(op.A(x))
    x.requires_grad_()
    found = op.A_dagger(op.A(x))
    found.sum().backward()
    torch.testing.assert_close(found.detach(), expected.clone())
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Denoising((8, 8)), r"image_shape is \(8, 8\); "),
        (lambda: Denoising((3, 8, 0)), r"image_shape is \(3, 8, 0\); "),
        (lambda: SuperResolution((8, 8), 2), r"image_shape is \(8, 8\); "),
        (lambda: SuperResolution(SHAPE, 3), "factor is 3; "),
        (lambda: Inpainting(torch.zeros(1, 8, 8)), "mask is 0 everywhere; "),
        (lambda: Inpainting(torch.full((1, 8, 8), 0.5)), "mask has values other than 0 and 1; "),
        (lambda: Inpainting(torch.ones(1, 8, 7), SHAPE), r"mask has shape \(1, 8, 7\); .*\(1, 8, 8\)"),
        (lambda: Inpainting(torch.ones(2, 8, 8), SHAPE), r"mask has shape \(2, 8, 8\); "),
        (lambda: Inpainting.random_blocks(SHAPE, block=3), "block is 3; "),
        (lambda: Inpainting.random_blocks(SHAPE, fraction=1.0), "fraction is 1.0; "),
        (lambda: Inpainting.random_blocks(SHAPE, seed="x"), "seed is 'x'; "),
        (lambda: CompressedSensing(SHAPE), "m is None; "),
        (lambda: CompressedSensing(SHAPE, m=193), "m is 193; "),
        (lambda: CompressedSensing(SHAPE, m=0), "m is 0; "),
        (
            lambda: CompressedSensing(SHAPE, m=2, matrix=torch.ones(2, 192)),
            "m is 2, but a matrix is given too; ",
        ),
        (lambda: CompressedSensing(SHAPE, matrix=torch.ones(2, 7)), r"matrix has shape \(2, 7\); "),
        (lambda: Blur(SHAPE, torch.ones(9, 1)), r"kernel has shape \(9, 1\); "),
        (lambda: Blur(SHAPE, torch.zeros(3, 3)), "kernel is zero everywhere or not finite; "),
        (lambda: Blur(SHAPE, torch.ones(3, 3), rcond=0), "rcond is 0; "),
        (lambda: Blur.gaussian(SHAPE, width=-1), "width is -1; "),
        (lambda: Grayscale((1, 8, 8)), r"weights are \(0.299, 0.587, 0.114\); give 1 "),
        (lambda: FourierSubsampling(SHAPE, torch.ones(3, 8, 8)), r"mask has shape \(3, 8, 8\); "),
        (lambda: FourierSubsampling(SHAPE, torch.zeros(8, 8)), "mask is 0 everywhere; "),
        (lambda: FourierSubsampling(SHAPE, torch.full((8, 8), 2)), "mask has values other than 0 and 1; "),
        (lambda: FourierSubsampling.random(SHAPE, fraction=0), "fraction is 0; "),
        (lambda: FourierSubsampling.random(SHAPE, fraction=0.1, center=0.2), "center is 0.2; "),
        (lambda: FourierSubsampling.random(SHAPE, pattern="radial"), "pattern is 'radial'; "),
        (lambda: Saturation(SHAPE, gain=0), "gain is 0; "),
    ],
)
def test_bad_arguments_are_named_in_one_line(make, message):
    with pytest.raises(InputError, match=f"^{message}.*$") as error:
        make()
    assert "\n" not in str(error.value)


def test_repr():
    assert repr(Denoising(SHAPE)) == "Denoising((3, 8, 8) -> (3, 8, 8))"
    assert repr(SuperResolution(SHAPE, 4)) == "SuperResolution((3, 8, 8) -> (3, 2, 2), factor=4)"
    assert repr(Inpainting.random_blocks(SHAPE)) == "Inpainting((3, 8, 8) -> (3, 8, 8), 75.0% observed)"


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 1, 8, 8), (1, 3, 8, 8)])
def test_a_mask_may_come_as_a_batch_of_one(shape):
    mask = torch.rand(shape, generator=as_generator(0)) < 0.5
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(Inpainting(mask, (3, 8, 8)).A(x), mask * x)


@pytest.mark.parametrize("leading", [(), (1,), (1, 1)])
def test_kernels_and_sampled_frequencies_may_too(leading):
    kernel, lines = torch.rand(3, 3, generator=as_generator(0)), torch.rand(8, 8, generator=as_generator(1)) < 0.5
    x = torch.rand(2, 3, 8, 8)
    batch = Blur((3, 8, 8), kernel.view(*leading, 3, 3)), FourierSubsampling((3, 8, 8), lines.view(*leading, 8, 8))
    plain = Blur((3, 8, 8), kernel), FourierSubsampling((3, 8, 8), lines)
    for one, other in zip(batch, plain, strict=True):
        assert torch.equal(one.A(x), other.A(x))


def test_parameters_in_A_are_used_for_that_call_alone():
    x = torch.rand(2, 3, 8, 8)
    one, other = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)
    one[:, 2] = 1
    inpainting = Inpainting(one, (3, 8, 8))
    assert torch.equal(inpainting.A(x, mask=other[None], seed=3), x)
    assert torch.equal(inpainting(x, mask=other), x)
    assert torch.equal(inpainting.A(x), one * x)
    dot, shift = torch.zeros(3, 3), torch.zeros(1, 1, 3, 3)
    dot[1, 1] = shift[..., 1, 2] = 1
    torch.testing.assert_close(Blur((3, 8, 8), dot).A(x, filter=shift), x.roll(1, -1))
    fourier = FourierSubsampling((3, 8, 8), one[0])
    assert torch.equal(fourier.A(x, mask=other), FourierSubsampling((3, 8, 8), other[0]).A(x))
    # Those that have no such parameters pass them over, as deepinv does.
    for operator in (Grayscale((3, 8, 8)), SuperResolution((3, 8, 8), 2), CompressedSensing((3, 8, 8), m=5)):
        assert torch.equal(operator.A(x, mask=one), operator.A(x))


def test_a_mask_of_another_shape_is_refused_in_A():
    with pytest.raises(InputError, match=r"^mask has shape \(2, 1, 8, 8\); .*$"):
        Inpainting(torch.ones(3, 8, 8)).A(torch.rand(2, 3, 8, 8), mask=torch.ones(2, 1, 8, 8))
