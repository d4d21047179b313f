"""The hand-written gradients of the noise flow are those of autograd, once for solvers and once for training."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aipo.engine import Engine
from aipo.engine.engine import differentiate, exact_float32
from aipo.engine.score import log_prob_and_score, score_function
from aipo.flows import NoiseLevel
from small_problem import build_noise_flow

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    gray=st.booleans(),
    batch=st.sampled_from([1, 3]),
    s=st.floats(0.005, 0.3),
    recompute=st.booleans(),
)
def test_engine_agrees_with_autograd_in_float64(height, width, gray, batch, s, recompute):
    level = NoiseLevel(build_noise_flow(), s)
    y = torch.rand(batch, 1 if gray else 3, height, width, dtype=torch.float64)
    value, gradient = differentiate(level.log_prob, y)
    P, grad_P = Engine(level, recompute=recompute)(y)
    torch.testing.assert_close(P, -value, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(grad_P, -gradient, rtol=1e-8, atol=1e-8 * gradient.abs().max().item())
    assert grad_P.is_contiguous()


def test_engine_in_float32():
    level = NoiseLevel(build_noise_flow(dtype=torch.float32, scale=0.05), 0.1)
    y = torch.rand(2, 3, 24, 20)
    value, gradient = differentiate(NoiseLevel(build_noise_flow(scale=0.05), 0.1).log_prob, y.double())
    P, grad_P = Engine(level)(y)
    assert (P + value).abs().max() < 1e-5 * value.abs().max()
    assert (grad_P + gradient).norm() < 1e-5 * gradient.norm()


def batch_for_training():
    generator = torch.Generator().manual_seed(1)
    y = torch.rand(3, 3, 16, 24, dtype=torch.float64, generator=generator)
    return y, torch.tensor([0.02, 0.1, 0.3], dtype=torch.float64), torch.tensor([False, True, False])


def test_score_is_the_gradient_of_the_density():
    flow = build_noise_flow()
    y, s, gray = batch_for_training()
    value, score = log_prob_and_score(flow, y, s, gray)
    expected, gradient = differentiate(lambda v: flow.log_prob(v, s[::2]), y[::2])
    torch.testing.assert_close(value[::2], expected)
    torch.testing.assert_close(score[::2], gradient)


def test_a_gray_image_is_its_brightness():
    flow = build_noise_flow()
    y, s, gray = batch_for_training()
    value, score = log_prob_and_score(flow, y, s, gray)
    # As a gray image: values smaller by sqrt(3), and so is their noise; the density of each is larger by as much.
    one = y[1:2].mean(1, keepdim=True)
    alone, gradient = differentiate(lambda v: flow.log_prob(v, s[1:2] / math.sqrt(3)), one)
    torch.testing.assert_close(value[1:2], alone - 0.5 * math.log(3) * one.numel())
    torch.testing.assert_close(score[1:2], gradient.expand(1, 3, -1, -1) / 3)


def weights_gradient(flow, score_of):
    flow.requires_grad_(True)
    y, s, _ = batch_for_training()
    loss = score_of(flow, y, s).square().sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(flow.parameters()))])


def by_autograd(flow, y, s):
    y = y.requires_grad_()
    return torch.autograd.grad(flow.log_prob(y, s).sum(), y, create_graph=True)[0]


def written_out(flow, y, s):
    return log_prob_and_score(flow, y, s, torch.zeros(len(y), dtype=torch.bool))[1]


def test_the_score_is_differentiated_as_autograd_would_twice():
    expected = weights_gradient(build_noise_flow(), by_autograd)
    found = weights_gradient(build_noise_flow(), written_out)
    assert (found - expected).norm() < 1e-12 * expected.norm()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12 * expected.abs().max().item())


@needs_gpu
def test_fused_kernels_compute_what_plain_torch_does():
    y, s, gray = (v.cuda() for v in batch_for_training())
    y, s = y.float(), s.float()
    results = []
    with exact_float32(y):
        for fused in (False, True):
            flow = build_noise_flow(dtype=torch.float32).cuda().requires_grad_(True)
            score = score_function(flow) if fused else partial(log_prob_and_score, flow)
            value, gradient = score(y, s, gray)
            (value.sum() * 1e-3 + gradient.square().sum() * 1e-4).backward()
            results.append([value, gradient, *(p.grad for p in flow.parameters())])
    for plain, fused in zip(*results, strict=True):
        assert (plain - fused).norm() <= 1e-4 * plain.norm() + 1e-6


@needs_gpu
@pytest.mark.parametrize("shape", [(2, 3, 64, 96), (1, 1, 33, 21)])
def test_fast_precision_on_a_gpu(shape):
    level = NoiseLevel(build_noise_flow(dtype=torch.float32, scale=0.05).cuda(), 0.1)
    y = torch.rand(*shape, device="cuda")
    exact, fast = Engine(level)(y), Engine(level, precision="fast")(y)
    assert (exact[0] - fast[0]).abs().max() < 1e-3 * exact[0].abs().max()
    assert (exact[1] - fast[1]).norm() < 2e-2 * exact[1].norm()
