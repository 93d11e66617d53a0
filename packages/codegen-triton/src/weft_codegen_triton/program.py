"""What the code generator returns: a program that runs its steps one by one, or replays a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from weft_codegen_triton.runtime.cuda_graph import GraphRecording

Compute = Callable[[Sequence[Any], Sequence[torch.Tensor], int], tuple[torch.Tensor, ...]]
Results = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[Any, ...]]


class Device(Protocol):
    """Where a program runs."""

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which the device is current on this thread."""
        ...

    def stream(self) -> int:
        """The address of the current stream."""
        ...


class TritonProgram:
    """A compiled schedule: call it with the inputs that are not constants, in order.

    Safe to call from several threads at once; they take turns.  With ``record`` the second call on a stream
    records a CUDA graph that later calls on that stream replay.  Results never share memory with the
    recording, so a later call leaves them as they are.
    """

    def __init__(
        self,
        compute: Compute,
        results: Results,
        constants: Sequence[torch.Tensor],
        device: Device,
        *,
        source: str,
        kernel_count: int,
        extern_count: int,
        record: bool,
    ) -> None:
        self.source = source
        self.kernel_count = kernel_count
        self.extern_count = extern_count
        self._compute = compute
        self._results = results
        self._constants = tuple(constants)
        self._device = device
        self._lock = threading.Lock()
        self._record = record
        self._is_warm = False
        self._recording: GraphRecording | None = None
        self.not_recorded: str | None = None  # why recording was given up

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        with self._lock, self._device.guard():
            stream = self._device.stream()
            if self._record and self._is_warm:
                buffers = self._replay(inputs, stream)
            else:
                buffers = self._compute(inputs, self._constants, stream)
                self._is_warm = True
            return self._results(inputs, self._constants, buffers)

    def _replay(self, inputs: Sequence[Any], stream: int) -> tuple[torch.Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():  # the caller records a graph of its own
            return self._compute(inputs, self._constants, stream)
        recording = self._recording
        if recording is None or not recording.holds_for(self._constants, stream):
            self._recording = None  # its memory may serve the new one
            try:
                recording = GraphRecording.record(self._compute, inputs, self._constants, stream)
            except RuntimeError as error:
                self._record, self.not_recorded = False, str(error)
                return self._compute(inputs, self._constants, stream)
            self._recording = recording
        return recording.replay(inputs)
