"""``time.time()`` and other clocks: read where the program reads them, as long as the graph stays whole.

What is read before anything is computed is read on entry of the frame, what is read behind all of it after
the graph.  Where more is computed behind a reading the graph ends before it: a program that measures its
steps one by one finds how long each of them takes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from ...._torch.symbols import size_hint
from ....frame.emitter import Emitter
from ....sources import CalledSource
from ....unsupported import BreakEarlier, Unsupported
from ...protocol import Evaluator, Reading
from ..numbers.later_numbers import LaterFloatVariable
from ..table import models

_KIND = "call of a builtin function"


class ClockVariable(LaterFloatVariable):
    """What a clock says; ``earlier``: the reading before it, which is made first."""

    def __init__(
        self, evaluator: Evaluator, clock: Callable[[], float], earlier: Reading | None
    ) -> None:
        super().__init__(evaluator.graph.shapes, clock, ())
        root, graph = evaluator.state.root, evaluator.graph
        assert root is not None
        self.position = root.index
        self._graph = graph
        self._made = len(graph.made_at)
        self._is_first = not any(map(_computes, graph.made_at))
        self._source = CalledSource(functools.partial(clock), ()) if self._is_first else None
        self._clock = clock
        assert earlier is None or isinstance(earlier, ClockVariable)
        self._earlier = earlier

    def require_last(self) -> None:
        """
        :raises BreakEarlier: the graph computes something behind a reading that is not made on entry.
        """
        behind = list(self._graph.made_at)[self._made :]
        if self._is_first or not any(map(_computes, behind)):
            return
        raise BreakEarlier(self.position, Unsupported(_KIND, f"{self!r} between computations"))

    def reconstruct(self, emitter: Emitter) -> None:
        if self._source is not None:
            emitter.load_source(self._source)
            return
        if self._earlier is not None:
            emitter.load_variable(self._earlier)
            emitter.pop()
        emitter.load_call(self._clock)


def _computes(node: torch.fx.Node) -> bool:
    """Whether a node of the graph does more than to read a number: gives a tensor of several elements."""
    example = node.meta.get("example_value")
    parts: Iterable[Any] = example if isinstance(example, (tuple, list)) else (example,)
    return any(isinstance(part, torch.Tensor) and size_hint(part.numel()) != 1 for part in parts)


@models(time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time)
def _read(clock: Any, evaluator: Evaluator) -> ClockVariable:
    state, graph = evaluator.state, evaluator.graph
    if graph.is_in_region or graph.transforms.active:
        raise Unsupported("effect inside a region", f"{clock.__name__}()")
    reading = ClockVariable(evaluator, clock, state.readings[-1] if state.readings else None)
    state.readings.append(reading)

    def emit(emitter: Emitter) -> None:
        emitter.load_variable(reading)
        emitter.pop()

    evaluator.side_effects.record(emit)
    return reading
