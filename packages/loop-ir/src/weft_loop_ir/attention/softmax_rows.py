"""Kernels that compute the softmax of changed scores: what an element of a row is before the softmax.

All stages are recorded into one body, in which rows and scalars of the kernel's own are the values that were
stored; equal computations are one value there.  The kernel is a softmax if what it stores is
``exp(x - max(x)) / sum(exp(x - max(x)))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import sympy
import torch

from weft_loop_ir.bodies import LoopBody, Value
from weft_loop_ir.bodies.edit import part_of, without_unused
from weft_loop_ir.bodies.patterns import call, capture, converted, match, number, reduced
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import Kernel, LoopVariable
from weft_loop_ir.recording import BodyRecorder

LoadScore = Callable[[BodyRecorder, sympy.Expr], Value]
"""Records the score at an index of the buffer of scores."""


class RowStatistic(Enum):
    """What may be kept of a row of scores, in float32.

    Its largest score, the sum of exponentials relative to that, and the logarithm of this sum.
    """

    LARGEST = "largest"
    TOTAL = "total"
    LOGARITHM = "logarithm"


@dataclass(frozen=True)
class SoftmaxRows:
    """``element``: its result is the float32 element whose softmax is taken, at ``kernel.outer`` and ``key``.

    ``hidden_are_zero``: rows whose elements are all minus infinity give zeros, not NaN.  ``kept``: numbers
    of each row that are stored besides, by the buffers, and where.  ``besides`` stores elements that are not
    made of scores, at the same loops.
    """

    element: LoopBody
    key: LoopVariable
    hidden_are_zero: bool
    kept: dict[str, tuple[RowStatistic, sympy.Expr]]
    besides: LoopBody


class _NotRows(Exception):
    """The kernel does something else."""


def softmax_rows(
    kernel: Kernel,
    weights: str,
    keys: sympy.Expr,
    scores: str,
    score: LoadScore,
    dtype_of: Callable[[str], torch.dtype],
    rounds: bool,
) -> SoftmaxRows | None:
    """What ``kernel`` takes the softmax of, over rows of ``keys`` elements, to store it in ``weights``.

    ``score`` replaces loads of ``scores``.  With ``rounds``, conversions to 16 bits and back are kept.
    """
    key = LoopVariable(loop_symbol("key", 0), keys)
    ops = BodyRecorder.over((*kernel.outer, key), dtype_of, round_low_precision=rounds)
    rows = _Rows(kernel, key, ops, scores, score)
    try:
        rows.replay()
    except _NotRows:
        return None
    if weights not in rows.stored:
        return None
    found = _softmax_element(ops, rows.stored.pop(weights)[1])
    if found is None:
        return None
    element, hidden_are_zero = found
    body = without_unused(ops.body(element))
    if not _is_of_elements(body):
        return None
    kept = {}
    for name, (place, value) in rows.stored.items():
        number = _row_statistic(ops, value, element)
        if number is not None:
            kept[name] = (number, place)
            continue
        made = part_of(ops.body(), value)
        is_apart = _is_of_elements(made) and not made.loads(scores)
        if not is_apart or key.symbol not in place.free_symbols:
            return None
        ops.store(name, place, value)
    return SoftmaxRows(body, key, hidden_are_zero, kept, without_unused(ops.body()))


def _is_of_elements(body: LoopBody) -> bool:
    """Whether what ``body`` computes of an element of a row depends on no others, and has no effect."""
    return all(i.operation.is_of_element for i in body.instructions)


@dataclass(eq=False)
class _Rows:
    """Replays a kernel's stages with its local buffers as values."""

    kernel: Kernel
    key: LoopVariable
    ops: BodyRecorder
    scores: str
    score: LoadScore
    values: dict[str, Value] = field(default_factory=dict)
    stored: dict[str, tuple[sympy.Expr, Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.local = {b.name: b for b in self.kernel.local_buffers}

    def replay(self) -> None:
        """Record all stages; ``stored`` are then the places and values of what leaves the kernel."""
        for stage in self.kernel.stages:
            if stage.is_sequential or len(stage.inner) > 1:
                raise _NotRows
            renamed = {}
            if stage.inner:
                if sympy.expand(stage.inner[0].size - self.key.size) != 0:
                    raise _NotRows
                renamed[stage.inner[0].symbol] = self.key.symbol

            def index(
                expression: sympy.Expr, renamed: dict[sympy.Symbol, sympy.Symbol] = renamed
            ) -> sympy.Expr:
                return expression.xreplace(renamed)

            Replayer(self.ops, index, self._load, self._store).replay(stage.body)

    def _load(self, ops: BodyRecorder, name: str, index: sympy.Expr) -> Value:
        if name == self.scores:
            return self.score(ops, index)
        if name in self.stored:
            place, value = self.stored[name]
            if ops is not self.ops or index != place:
                raise _NotRows
            return value
        if name not in self.local:
            return ops.load(name, index)
        is_own = index == (0 if self.local[name].size == 1 else self.key.symbol)
        if ops is not self.ops or name not in self.values or not is_own:
            raise _NotRows
        return self.values[name]

    def _store(
        self, ops: BodyRecorder, name: str, index: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        if mode is not None or name in self.values or name in self.stored:
            raise _NotRows
        if name in self.local:
            self.values[name] = value
        else:
            self.stored[name] = (index, value)


ELEMENT = capture()
LARGEST = reduced("max", ELEMENT)
EXPONENTIAL = call("exp", call("sub", ELEMENT, LARGEST, dtype=torch.float32))
TOTAL = reduced("sum", EXPONENTIAL)
SOFTMAX = call("truediv", EXPONENTIAL, TOTAL)
GUARDED_SOFTMAX = call("where", call("eq", LARGEST, number(-math.inf)), number(0), SOFTMAX)
STATISTICS = {
    RowStatistic.LARGEST: LARGEST,
    RowStatistic.TOTAL: TOTAL,
    RowStatistic.LOGARITHM: call("log", TOTAL),
}


def _softmax_element(ops: BodyRecorder, stored: Value) -> tuple[Value, bool] | None:
    """The element whose softmax ``stored`` is, and whether hidden rows are zero; None if it is none."""
    for pattern, hidden_are_zero in ((SOFTMAX, False), (GUARDED_SOFTMAX, True)):
        found = match(ops.at, stored, converted(pattern))
        if found is not None:
            return found[ELEMENT], hidden_are_zero
    return None


def _row_statistic(ops: BodyRecorder, stored: Value, element: Value) -> RowStatistic | None:
    """What ``stored`` is of the row of ``element``; None: something else."""
    if ops.dtype_of(stored) != torch.float32:
        return None
    for statistic, pattern in STATISTICS.items():
        found = match(ops.at, stored, pattern)
        if found is not None and found[ELEMENT] == element:
            return statistic
    return None
