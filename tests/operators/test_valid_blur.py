"""The blur of a photograph whose surroundings are not seen, against a dense matrix and torch's own convolution."""

import pytest
import torch
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.operators import ValidBlur
from aipo.operators.blur import motion_kernel

KERNELS = [torch.rand(3, 3, generator=torch.Generator().manual_seed(0)), motion_kernel(4, 30), torch.rand(2, 5)]


def build(kernel, size=(6, 7)):
    return ValidBlur((1, *size), kernel.double())


def matrix_of(blur):
    n = blur.image_shape[1] * blur.image_shape[2]
    return blur.A(torch.eye(n, dtype=torch.float64).view(n, *blur.image_shape)).flatten(1).T


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: "x".join(map(str, k.shape)))
def test_it_is_a_convolution_without_padding(kernel):
    blur = build(kernel)
    x = torch.rand(2, *blur.image_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # torch's convolution is a correlation
    expected = F.conv2d(x, kernel.double().flip(0, 1)[None, None])
    assert blur.A(x).shape == expected.shape
    torch.testing.assert_close(blur.A(x), expected)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: "x".join(map(str, k.shape)))
def test_the_adjoint_is_the_transpose(kernel):
    blur = build(kernel)
    y = torch.rand(3, *blur.measurement_shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(blur.A_adjoint(y).flatten(1), y.flatten(1) @ matrix_of(blur))


@pytest.mark.parametrize("gamma", [0.01, 1.0, 300.0])
def test_prox_solves_the_normal_equations(gamma):
    kernel = motion_kernel(4, 30)
    blur = build(kernel / kernel.sum())
    A = matrix_of(blur)
    z = torch.rand(1, *blur.image_shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y = torch.rand(1, *blur.measurement_shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = torch.linalg.solve(
        torch.eye(A.shape[1], dtype=A.dtype) + gamma * A.T @ A, z.flatten() + gamma * A.T @ y.flatten()
    )
    found = blur.prox_l2(z, y, torch.tensor([gamma], dtype=torch.float64)).flatten()
    torch.testing.assert_close(found, expected, atol=1e-2 if gamma > 100 else 2e-3, rtol=0)


def test_a_measurement_can_be_extended_to_the_size_of_an_image():
    blur = build(KERNELS[0])
    y = torch.rand(1, *blur.measurement_shape, dtype=torch.float64)
    assert blur.extended(y).shape[1:] == blur.image_shape
    assert torch.equal(blur.inside(blur.extended(y)), y)


def test_a_kernel_has_two_dimensions():
    with pytest.raises(InputError, match="kernel has shape"):
        ValidBlur((1, 6, 6), torch.ones(3))
