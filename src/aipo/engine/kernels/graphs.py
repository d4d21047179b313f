"""Work that is always the same, recorded once on a GPU and replayed without the host.

A gradient of a flow is hundreds of short kernels; for a few images launching them takes longer than running them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

__all__ = ["Graph"]

WARM_UPS = 2  # runs before recording, in which libraries choose their algorithms and caches are filled


class Graph:
    """A function of tensors as a CUDA graph. It must not look at values on the host, nor keep anything it makes.

    Arguments:
        function: tensors -> tensors.
        inputs: with which to record; their shapes are fixed from then on.
        feedback: the outputs become the inputs of the next replay: an iteration.
        pool: graphs that never run at the same time may share their memory.

    While a graph is made, `being_made` tells those inside that they need not record graphs of their own.
    """

    being_made: ClassVar[bool] = False

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        feedback: bool = False,
        pool: Any = None,
    ):
        # Everything the recorded kernels read must stay alive: their inputs, and what the function refers to.
        self.inputs = [t.clone() for t in inputs]
        self.function = function
        self.graph = torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        before, Graph.being_made = Graph.being_made, True
        try:
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    function(*self.inputs)
            here.wait_stream(aside)
            with _nothing_collected(), torch.cuda.graph(self.graph, pool=pool, stream=aside):
                self.outputs = list(function(*self.inputs))
                if feedback:
                    for mine, new in zip(self.inputs, self.outputs, strict=True):
                        mine.copy_(new)
        finally:
            Graph.being_made = before

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Replay with other inputs; the outputs are the caller's own."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return [out.clone() for out in self.outputs]

    def iterate(self) -> list[Tensor]:
        """Replay a graph with feedback: its inputs, which are now the outputs, and which the next replay overwrites."""
        self.graph.replay()
        return self.inputs


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python may free an old graph at any moment; while another is being recorded, that would spoil the recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
