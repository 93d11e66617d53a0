"""Kernels that compute the softmax of changed scores: what an element of a row is before the softmax.

All stages are recorded into one body, in which rows and scalars of the kernel's own are the values that were
stored; equal computations are one value there.  The kernel is a softmax if what it stores is
``exp(x - max(x)) / sum(exp(x - max(x)))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import sympy
import torch

from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Instruction, Kernel, LoopBody, LoopVariable, Value
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.transform import Replayer, without_unused

LoadScore = Callable[[BodyRecorder, sympy.Expr], Value]
"""Records the score at an index of the buffer of scores."""


class RowStatistic(Enum):
    """What may be kept of a line of scores, in float32.

    Its largest score, the sum of exponentials relative to that, and the logarithm of this sum.
    """

    LARGEST = "largest"
    TOTAL = "total"
    LOGARITHM = "logarithm"


@dataclass(frozen=True)
class SoftmaxRows:
    """``element``: its result is the float32 element whose softmax is taken, at ``kernel.outer`` and ``key``.

    ``hidden_are_zero``: lines whose elements are all minus infinity give zeros, not NaN.  ``kept``: numbers
    of each line that are stored besides, by the buffers, and where.  ``besides`` stores elements that are not
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
    ranges = ranges_for(tuple((v.symbol, v.size) for v in (*kernel.outer, key)))
    ops = BodyRecorder(ranges, dtype_of, round_low_precision=rounds)
    rows = _Rows(kernel, key, ops, scores, score)
    try:
        rows.replay()
    except _NotRows:
        return None
    if weights not in rows.stored:
        return None
    found = _softmax_element(ops.instructions, rows.stored.pop(weights)[1])
    if found is None:
        return None
    element, hidden_are_zero = found
    body = without_unused(ops.body(element))
    if any(i.operation in NOT_ELEMENTWISE for i in body.instructions):
        return None
    kept = {}
    for name, (place, value) in rows.stored.items():
        number = _line_number(ops.instructions, value, element)
        if number is not None:
            kept[name] = (number, place)
            continue
        made = without_unused(ops.body(value), stores=False).instructions
        is_apart = not any(i.operation in NOT_ELEMENTWISE or _loads(i, scores) for i in made)
        if not is_apart or key.symbol not in place.free_symbols:
            return None
        ops.store(name, place, value)
    return SoftmaxRows(body, key, hidden_are_zero, kept, without_unused(ops.body()))


NOT_ELEMENTWISE = frozenset({"reduction", "scan", "fold", "store", "rand", "randn"})
"""What computes an element of a row from others, or has effects, or another value at each call."""


def _loads(instruction: Instruction, name: str) -> bool:
    return instruction.operation == "load" and instruction.arguments[0] == name


class _Rows:
    """Replays a kernel's stages with its local buffers as values."""

    def __init__(
        self, kernel: Kernel, key: LoopVariable, ops: BodyRecorder, scores: str, score: LoadScore
    ) -> None:
        self.kernel = kernel
        self.key = key
        self.ops = ops
        self.scores = scores
        self.score = score
        self.local = {b.name: b for b in kernel.local_buffers}
        self.values: dict[str, Value] = {}
        self.stored: dict[str, tuple[sympy.Expr, Value]] = {}

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


def _softmax_element(instructions: list[Instruction], stored: Value) -> tuple[Value, bool] | None:
    """The element whose softmax ``stored`` is, and whether hidden lines are zero; None if it is none."""

    def at(value: object) -> Instruction:
        assert isinstance(value, Value)
        return instructions[value.index]

    result = at(stored)
    while result.operation == "to_dtype":
        result = at(result.arguments[0])
    guard = None
    if result.operation == "where":
        guard, otherwise, chosen = result.arguments
        if at(otherwise).operation != "constant" or at(otherwise).arguments[0] != 0:
            return None
        result = at(chosen)
    if result.operation != "truediv":
        return None
    exponential, total = result.arguments
    if at(total).operation != "reduction" or at(total).arguments[0] != "sum":
        return None
    if at(total).arguments[2] != exponential or at(exponential).operation != "exp":
        return None
    difference = at(at(exponential).arguments[0])
    if difference.operation != "sub" or difference.dtype != torch.float32:
        return None
    element, largest = difference.arguments
    if at(largest).operation != "reduction" or at(largest).arguments[::2] != ("max", element):
        return None
    if guard is not None and not _asks_whether_hidden(at(guard), largest, at):
        return None
    return element, guard is not None


def _line_number(
    instructions: list[Instruction], stored: Value, element: Value
) -> RowStatistic | None:
    """What ``stored`` is of the line of ``element``; None: something else."""

    def at(value: Value) -> Instruction:
        return instructions[value.index]

    def is_largest(value: Value) -> bool:
        instruction = at(value)
        is_of_all = instruction.operation == "reduction"
        return is_of_all and instruction.arguments[::2] == ("max", element)

    def is_total(value: Value) -> bool:
        instruction = at(value)
        if instruction.operation != "reduction" or instruction.arguments[0] != "sum":
            return False
        exponential = at(instruction.arguments[2])
        difference = at(exponential.arguments[0]) if exponential.operation == "exp" else None
        if difference is None or difference.operation != "sub":
            return False
        minuend, largest = difference.arguments
        return minuend == element and is_largest(largest)

    if at(stored).dtype != torch.float32:
        return None
    if is_largest(stored):
        return RowStatistic.LARGEST
    if is_total(stored):
        return RowStatistic.TOTAL
    is_logarithm = at(stored).operation == "log" and is_total(at(stored).arguments[0])
    return RowStatistic.LOGARITHM if is_logarithm else None


def _asks_whether_hidden(
    guard: Instruction, largest: Value, at: Callable[[object], Instruction]
) -> bool:
    """Whether ``guard`` is ``largest == -inf``."""
    if guard.operation != "eq" or largest not in guard.arguments:
        return False
    return any(
        at(a).operation == "constant" and at(a).arguments[0] == -math.inf for a in guard.arguments
    )
