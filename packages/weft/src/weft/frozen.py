"""Programs in which parameters are constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from weft_loop_ir import CompiledProgram

_State = tuple[tuple[int, int], ...]


class FrozenProgram:
    """A program made by ``build`` from the values of ``tensors``, and made again when one was written to.

    A write is seen by the tensor's version or its memory.  Writes through ``tensor.data`` change neither.
    """

    def __init__(
        self, build: Callable[[], CompiledProgram], tensors: Sequence[torch.Tensor]
    ) -> None:
        self._build = build
        self._tensors = tuple(tensors)
        self._lock = threading.Lock()
        self._make(self._current())

    def _make(self, state: _State) -> None:
        self._program = program = self._build()
        self._state = state
        self.source = program.source
        self.kernel_count = program.kernel_count
        self.extern_count = program.extern_count

    def _current(self) -> _State:
        return tuple([(t._version, t.data_ptr()) for t in self._tensors])

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        state = self._current()
        if state != self._state:
            with self._lock:
                if state != self._state:
                    self._make(state)
        return self._program(*inputs)
