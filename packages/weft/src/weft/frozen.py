"""Programs in which parameters are constants."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from weft_loop_ir import CompiledProgram
from weft_loop_ir.process_lock import ProcessLock

_State = tuple[int, ...]
"""The tensors' versions, then their addresses."""


class FrozenProgram:
    """A program made by ``build`` from the values of ``tensors``, and made again when one was written to.

    A write is seen by the tensor's version or its memory.  Writes through ``tensor.data`` change neither.
    ``leaves_no_trace``: running it does nothing but give results.  Then the tensors are looked at while a
    device computes, and results of values that are no longer true are thrown away.
    """

    def __init__(
        self,
        build: Callable[[], CompiledProgram],
        tensors: Sequence[torch.Tensor],
        *,
        leaves_no_trace: bool,
    ) -> None:
        self._build = build
        self._tensors = tuple(tensors)
        self._leaves_no_trace = leaves_no_trace
        self._lock = ProcessLock()
        self._make(self._current())

    def _make(self, state: _State) -> None:
        self._program = program = self._build()
        self._state = state
        self.source = program.source
        self.kernel_count = program.kernel_count
        self.extern_count = program.extern_count

    def _current(self) -> _State:
        versions = map(operator.attrgetter("_version"), self._tensors)
        return (*versions, *map(torch.Tensor.data_ptr, self._tensors))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self._leaves_no_trace:
            made_of = self._state
            try:
                results = self._program(*inputs)
            except Exception:  # whatever it is: raised, unless stale values may be the cause
                if made_of == self._current():
                    raise
            else:
                if made_of == self._current():
                    return results
        self._renew()
        return self._program(*inputs)

    def _renew(self) -> None:
        """Make the program again unless it is of the tensors' present values."""
        state = self._current()
        if state != self._state:
            with self._lock:
                if state != self._state:
                    self._make(state)
