"""What the code generator returns: a program that runs its steps one by one, or replays a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from weft_codegen_triton.runtime.cuda_graph import GraphRecording, pays_off

Compute = Callable[[Sequence[Any], Sequence[torch.Tensor], int], tuple[torch.Tensor, ...]]
Results = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[Any, ...]]


MOST_SURPRISES = 2
"""Inputs that may turn out to move before only parameters are trusted to stay."""


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
        self._steps = kernel_count + extern_count
        self._addresses: list[int] | None = None  # of the inputs of the first call
        self._recordings: dict[int, GraphRecording] = {}  # by stream
        self._moving: set[int] = set()  # positions of inputs whose addresses change
        self.not_recorded: str | None = None  # why recording was given up

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        with self._lock, self._device.guard():
            stream = self._device.stream()
            if not self._record:
                buffers = self._compute(inputs, self._constants, stream)
            elif self._addresses is None:
                buffers = self._first(inputs, stream)
            else:
                buffers = self._replay(inputs, stream)
            return self._results(inputs, self._constants, buffers)

    def _first(self, inputs: Sequence[torch.Tensor], stream: int) -> tuple[torch.Tensor, ...]:
        """Run step by step, and see whether recording is worth it."""
        buffers = self._compute(inputs, self._constants, stream)
        self._addresses = [t.data_ptr() for t in inputs]
        if not pays_off(buffers, self._steps):
            self._give_up("results are too large to copy out of a recording")
        return buffers

    def _give_up(self, reason: str) -> None:
        self._record, self.not_recorded = False, reason
        self._recordings.clear()

    def _replay(self, inputs: Sequence[torch.Tensor], stream: int) -> tuple[torch.Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():  # the caller records a graph of its own
            return self._compute(inputs, self._constants, stream)
        recording = self._recordings.pop(stream, None)
        if recording is not None and recording.holds_for(self._constants):
            moved = recording.moved(inputs)
            if not moved:
                self._recordings[stream] = recording
                return recording.replay(inputs)
            self._moving.update(moved)
        recording = None  # its memory may serve the new one
        try:
            recording = GraphRecording(
                self._compute, inputs, self._constants, stream, self._fixed(inputs)
            )
        except RuntimeError as error:
            self._give_up(str(error))
            return self._compute(inputs, self._constants, stream)
        self._recordings[stream] = recording
        return recording.replay(inputs)

    def _fixed(self, inputs: Sequence[torch.Tensor]) -> frozenset[int]:
        """Inputs that seem to stay where they are: parameters, and what has not moved so far."""
        assert self._addresses is not None
        found = set()
        for k, tensor in enumerate(inputs):
            if k in self._moving:
                continue
            if tensor.data_ptr() == self._addresses[k] and (
                len(self._moving) <= MOST_SURPRISES or isinstance(tensor, torch.nn.Parameter)
            ):
                found.add(k)
        return frozenset(found)
