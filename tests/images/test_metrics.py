"""PSNR against its formula, SSIM against scikit-image."""

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from aipo import samples
from aipo.images.metrics import psnr, ssim


def noisy(x, sigma, seed=0):
    return x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def test_psnr_of_a_constant_error():
    reference = torch.full((3, 3, 8, 8), 0.5)
    x = reference + torch.tensor([0.1, 0.01, -1.0]).view(3, 1, 1, 1)
    assert psnr(x, reference).tolist() == pytest.approx([20, 40, 0], abs=1e-4)


def test_psnr_does_not_clamp():
    x, reference = torch.full((1, 1, 8, 8), 2.0), torch.ones(1, 1, 8, 8)
    assert psnr(x, reference).item() == 0
    assert psnr(x.clamp(0, 1), reference).item() == np.inf


def test_identical_images():
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert psnr(x, x).tolist() == [np.inf] * 2
    assert ssim(x, x).tolist() == pytest.approx([1, 1], abs=1e-12)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("size", [(64, 64), (11, 23)])
def test_ssim_agrees_with_scikit_image(sigma, size):
    reference = torch.stack([samples.load(name)[:, : size[0], : size[1]] for name in ("astronaut", "cat")])
    x = noisy(reference, sigma)
    expected = [
        structural_similarity(
            a.double().numpy(),
            b.double().numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for a, b in zip(x, reference, strict=True)
    ]
    assert ssim(x, reference).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_an_image_does_not_see_its_neighbors(metric):
    reference = torch.stack([samples.load("astronaut"), samples.load("cat")])
    x = noisy(reference, 0.1)
    alone = torch.cat([metric(x[i : i + 1], reference[i : i + 1]) for i in range(2)])
    assert torch.allclose(metric(x, reference), alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("metric", [psnr, ssim])
@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (2, 1, 16, 16), (3, 16, 16)])
def test_shapes_that_would_broadcast_are_refused(metric, shape):
    with pytest.raises(ValueError, match="of one shape"):
        metric(torch.zeros(2, 3, 16, 16), torch.zeros(shape))


def test_ssim_needs_one_whole_window():
    with pytest.raises(ValueError, match="at least 11x11"):
        ssim(torch.zeros(1, 3, 10, 64), torch.zeros(1, 3, 10, 64))
