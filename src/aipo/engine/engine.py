"""The hot path: value and gradient of D + lam * P for a batch of images. Every solver calls this and nothing else.

Nearly all of the time goes into P, so an `Engine` is made for a prior once and used for many problems. It knows two
precisions:

    exact   float32 throughout, without TF32 (or float64, if the prior is).
    fast    on a GPU the coupling networks and transformers run in float16; the flow's own arithmetic, its
            log-determinants and all sums stay in float32. Elsewhere the same as exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor

from aipo.batch import recording
from aipo.engine.kernels import elementwise
from aipo.engine.kernels.frozen import FrozenMultiScale
from aipo.engine.kernels.graphs import Graph
from aipo.engine.kernels.noise import FrozenNoiseFlow
from aipo.engine.kernels.transformer import FrozenTarFlow
from aipo.errors import InputError
from aipo.flows import Flow, NoiseLevel, TarFlow
from aipo.flows.multiscale import MultiScale

__all__ = ["Engine", "Evaluation", "Precision", "evaluate", "exact_float32", "hessian_vector"]

Precision = Literal["exact", "fast"]
Term = Callable[[Tensor], Tensor]
ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]

CPU_PIXELS = 16 * 64 * 64  # at a time: more do not run faster, and only take memory
MEMORY_SHARE = 0.5  # of what is free on a GPU, for the activations of one chunk
KEPT_GRAPHS = 8
UNCERTAINTY, TARFLOW_UNCERTAINTY = 1.0, 5.0  # nats, of values in half precision; measured by benchmarks/engine.py
PROBE = 16  # images with which a GPU's need of memory is measured


@dataclass(frozen=True)
class Evaluation:
    """Both terms of the loss at x, and their gradients, per image.

    The terms are kept apart because the loss is linear in lam: one evaluation serves every lam at the same x.
    """

    D: Tensor
    P: Tensor
    grad_D: Tensor
    grad_P: Tensor

    def loss(self, lam: Tensor) -> Tensor:
        """L = D + lam * P (B,), for lam (B,)."""
        return self.D + lam * self.P

    def gradient(self, lam: Tensor) -> Tensor:
        """Gradient of L in x (B, C, H, W), for lam (B,)."""
        return self.grad_D + lam.view(-1, 1, 1, 1) * self.grad_P

    @property
    def finite(self) -> Tensor:
        """Which images (B,) have finite values and gradients."""
        # A sum is finite only if every entry is (or opposite infinities meet, which gives NaN).
        total = self.D + self.P + (self.grad_D + self.grad_P).flatten(1).sum(1)
        return total.isfinite()


def evaluate(D: Term, P: ValueAndGradient, x: Tensor) -> Evaluation:
    """One gradient evaluation: D maps images (B, C, H, W) to (B,), P also to its gradient, as an `Engine` does."""
    x = x.detach()
    p, grad_p = P(x)
    with exact_float32(x):
        d, grad_d = differentiate(D, x)
    return Evaluation(d, p, grad_d, grad_p)


def differentiate(term: Term, x: Tensor) -> tuple[Tensor, Tensor]:
    """Value (B,) and gradient of a per-image term, by autograd."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = term(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


def hessian_vector(loss: Term, x: Tensor, v: Tensor) -> Tensor:
    """Hessian of a per-image loss at x times v, both (B, C, H, W), by differentiating the gradient once more."""
    with torch.enable_grad(), exact_float32(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad((gradient * v).sum(), x)
    return product


@contextmanager
def exact_float32(like: Tensor, tune: bool = False) -> Iterator[None]:
    """Float32 on a GPU means float32: no TF32 inside, whatever is set outside. `tune` lets cuDNN try its algorithms."""
    if not like.is_cuda:
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = False, False, tune
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


class Engine:
    """P(x) = offset - log p_G(x) and its gradient, for batches of images of any size.

    Arguments:
        flow: its weights are copied and folded; later changes of it are not seen.
        offset: of P.
        precision: "exact" or "fast", see above.
        recompute: trade time for memory: keep one tensor for each step of the flow instead of all activations, and
            compute the rest again on the way back. About a third slower.

    Attributes:
        uncertainty: by how many nats a value may be off, beyond the rounding of float32 (see docs/performance.md).

    Large batches go through in chunks that fit the memory. On a GPU a shape that comes a second time is recorded as a
    CUDA graph, and replayed from then on.
    """

    def __init__(
        self, flow: Flow | NoiseLevel, offset: float = 0.0, precision: Precision = "exact", recompute: bool = False
    ):
        if precision not in get_args(Precision):
            raise InputError(f"precision must be {' or '.join(get_args(Precision))}, got {precision}")
        weights = next(flow.parameters())
        self.precision = precision
        self.offset = offset
        half = precision == "fast" and weights.is_cuda and weights.dtype == torch.float32
        self.uncertainty = (TARFLOW_UNCERTAINTY if isinstance(flow, TarFlow) else UNCERTAINTY) if half else 0.0
        self._tune = half
        dtype = torch.float16 if half else weights.dtype
        self._log_prob = _log_prob_and_gradient(flow, dtype, recompute)
        self._bytes_per_image: dict[torch.Size, int] = {}
        self._chunk = 1
        self._graphs: dict[torch.Size, Graph | None] = {}
        self._pool: tuple[int, int] | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, C, H, W) -> P (B,), its gradient (B, C, H, W)."""
        parts = [self._run(chunk) for chunk in x.split(self.chunk(x))]
        if len(parts) == 1:
            return parts[0]
        values, gradients = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(gradients)

    def chunk(self, x: Tensor) -> int:
        """How many images of a batch go through at a time."""
        if not x.is_cuda:
            return max(1, CPU_PIXELS // (x.shape[2] * x.shape[3]))
        # What was decided in the warm-up holds while a graph is recorded.
        if not recording(x):
            free, _ = torch.cuda.mem_get_info(x.device)
            free += torch.cuda.memory_reserved(x.device) - torch.cuda.memory_allocated(x.device)
            self._chunk = max(1, int(MEMORY_SHARE * free) // self.bytes_per_image(x))
        return self._chunk

    def bytes_per_image(self, x: Tensor) -> int:
        """Peak memory per image of a batch on a GPU, measured once for each size, on the first few images of x."""
        if x.shape[1:] not in self._bytes_per_image:
            few = x[:PROBE]
            torch.cuda.reset_peak_memory_stats(x.device)
            before = torch.cuda.memory_allocated(x.device)
            self._compute(few)
            peak = torch.cuda.max_memory_allocated(x.device) - before
            self._bytes_per_image[x.shape[1:]] = max(1, peak // len(few))
        return self._bytes_per_image[x.shape[1:]]

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Inside a larger graph the kernels simply become part of it.
        if not x.is_cuda or Graph.being_made:
            return self._compute(x)
        if x.shape not in self._graphs:
            self._graphs[x.shape] = None
            return self._compute(x)
        graph = self._graphs[x.shape]
        if graph is None:
            graph = self._record(x)
        value, gradient = graph(x)
        return value, gradient

    def _record(self, x: Tensor) -> Graph:
        recorded = [shape for shape, graph in self._graphs.items() if graph is not None]
        if len(recorded) >= KEPT_GRAPHS:
            del self._graphs[recorded[0]]
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = self._graphs[x.shape] = Graph(self._compute, [x], pool=self._pool)
        return graph

    def _compute(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with exact_float32(x, self._tune):
            value, gradient = self._log_prob(x)
        return self.offset - value, -gradient


def _log_prob_and_gradient(flow: Flow | NoiseLevel, dtype: torch.dtype, recompute: bool) -> ValueAndGradient:
    """The fastest way we have for this flow: a hand-written reverse pass, or autograd."""
    ops, half = _elementwise_kernels(next(flow.parameters())), dtype.itemsize < 4
    if isinstance(flow, NoiseLevel):
        return FrozenNoiseFlow(flow.flow, flow.s, dtype, ops, recompute)
    if isinstance(flow, MultiScale):
        return FrozenMultiScale(flow, dtype, ops, recompute)
    if isinstance(flow, TarFlow):
        return FrozenTarFlow(flow, dtype, ops, compiled=half)
    flow = copy.deepcopy(flow).requires_grad_(False).eval()
    flow.set_compute_dtype(dtype if half else None)
    return lambda x: differentiate(flow.log_prob, x)


def _elementwise_kernels(weights: Tensor) -> ModuleType:
    """Fused where there is a GPU and Triton to write kernels for it."""
    if weights.is_cuda and weights.dtype == torch.float32:
        try:
            from aipo.engine.kernels import fused
        except ImportError:
            return elementwise
        return fused
    return elementwise
