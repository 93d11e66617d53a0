"""Recording a host program's work as a CUDA graph, and replaying it on new inputs.

Sound by copying at both ends: inputs are copied into memory that the recording owns, and what it computes is
copied out of it before anybody sees it.  So a replay never overwrites what a caller holds, and memory between
the ends may be shared by all recordings on a stream, which replay one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft_codegen_triton.runtime.memory import copy_memory, refill

MODE = "thread_local"
"""Other threads may do what they like while this one records."""


@functools.cache
def _pool(device: int, stream: int) -> tuple[Any, torch.cuda.CUDAGraph]:
    """The memory pool that all recordings on a stream share, and a graph that keeps it alive without them."""
    handle = torch.cuda.graph_pool_handle()
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        keeper.capture_begin(pool=handle, capture_error_mode=MODE)
        torch.zeros(1, device=device)
        keeper.capture_end()
    return handle, keeper


class GraphRecording:
    """A recorded run on one stream, for constants that stay where they are."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        addresses: Sequence[int],
        stream: int,
    ) -> None:
        self._graph = graph
        self._inputs = tuple(inputs)
        self._buffers = tuple(buffers)
        self._addresses = list(addresses)
        self._stream = stream

    @classmethod
    def record(
        cls,
        compute: Callable[[Sequence[Any], Sequence[torch.Tensor], int], tuple[torch.Tensor, ...]],
        inputs: Sequence[torch.Tensor],
        constants: Sequence[torch.Tensor],
        stream: int,
    ) -> GraphRecording:
        """Record ``compute``, which has run before, so that libraries are initialised.

        Nothing is executed.  Raises what ``compute`` raises, or RuntimeError for work that can't be recorded.
        """
        own = [copy_memory(t) for t in inputs]
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        pool, _ = _pool(current.device.index, stream)
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode=MODE)
            try:
                buffers = compute(own, constants, side.cuda_stream)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return cls(graph, own, buffers, [c.data_ptr() for c in constants], stream)

    def holds_for(self, constants: Sequence[torch.Tensor], stream: int) -> bool:
        """Whether a replay on ``stream`` reads these constants."""
        return stream == self._stream and [c.data_ptr() for c in constants] == self._addresses

    def replay(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run on ``inputs``; the results are the caller's own."""
        for own, given in zip(self._inputs, inputs, strict=True):
            refill(own, given)
        self._graph.replay()
        return tuple(copy_memory(b) for b in self._buffers)
