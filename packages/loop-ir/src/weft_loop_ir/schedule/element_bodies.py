"""The body of a loop as values of one element: what its state is before an iteration, and what after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import sympy
import torch

from weft_loop_ir.bodies import REDUCTIONS, Combining, Connective, Reduction, Value
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import Buffer, Count, LoopVariable, Stage
from weft_loop_ir.loop_graph import LoopNode
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.iterations import value_in


class Unproved(Exception):
    """A loop has to stay one of the host program."""


@dataclass(frozen=True)
class Test:
    """A reduction over all elements to one flag, ``any`` or ``all`` of ``operand``, and its ``result``."""

    connective: Connective
    operand: Value
    result: Value


@dataclass(frozen=True)
class ElementBody:
    """One iteration for one element: the values of buffers when it begins (where it reads them) and ends.

    ``places`` are their indices, ``counter`` holds the symbol of the loop's, if it has one.
    """

    ops: BodyRecorder
    first: Mapping[str, Value]
    last: Mapping[str, Value]
    tests: Sequence[Test]
    places: Mapping[str, sympy.Expr]
    counter: Set[sympy.Symbol]


def local_name(name: str) -> str:
    """What a kernel calls its own copy of a buffer."""
    return f"{name}_now"


def copied_state(
    places: Mapping[str, sympy.Expr],
    buffers: Mapping[str, Buffer],
    outer: Sequence[LoopVariable],
    *,
    inwards: bool,
) -> Stage:
    """The stage that reads buffers at ``places`` into a kernel's own copies, or the one that writes them."""
    dtypes = {name: buffers[name].layout.dtype for name in places}
    dtypes |= {local_name(name): dtype for name, dtype in dtypes.items()}
    ops = BodyRecorder.over(outer, dtypes.__getitem__)
    for name, place in places.items():
        memory, register = (name, place), (local_name(name), sympy.S.Zero)
        source, target = (memory, register) if inwards else (register, memory)
        ops.store(*target, ops.load(*source))
    return Stage((), ops.body())


def common_loops(nodes: Sequence[LoopNode]) -> tuple[LoopVariable, ...]:
    """The loops of all nodes but those of one point, reduced or not; none where all have one point.

    Raises :class:`Unproved` where they differ.
    """
    found: tuple[sympy.Expr, ...] = ()
    for node in nodes:
        sizes = tuple(v.size for v in node.all_loops if v.size != 1)
        if (
            node.body.holds(Combining)
            or (node.reduction_loops and node.loops)
            or (sizes and found not in ((), sizes))
        ):
            raise Unproved
        found = found or sizes
    return tuple(LoopVariable(loop_symbol("i", k), size) for k, size in enumerate(found))


def record_element(
    nodes: Sequence[LoopNode],
    outer: Sequence[LoopVariable],
    buffers: Mapping[str, Buffer],
    count: Count | None,
    number: LoopVariable | None = None,
    *,
    in_kernel: bool,
) -> ElementBody:
    """Record ``nodes``, which have the loops ``outer``, as one body.

    ``in_kernel`` state is in local buffers, the result of a test over all elements is the element's own, and
    ``number`` counts the iterations.  Raises :class:`Unproved` where something that they write has several
    places.
    """
    loops, substitution = outer, {}
    if number is not None:
        assert count is not None
        loops, substitution = (*outer, number), {count.symbol: value_in(count, number.symbol)}
    recording = _Recording(nodes, loops, outer, buffers, substitution, in_kernel)
    for node in nodes:
        recording.run(node)
    counter = set() if count is None else {count.symbol}
    return ElementBody(
        recording.ops, recording.first, recording.last, recording.tests, recording.places, counter
    )


class _Recording:
    def __init__(
        self,
        nodes: Sequence[LoopNode],
        loops: Sequence[LoopVariable],
        outer: Sequence[LoopVariable],
        buffers: Mapping[str, Buffer],
        substitution: Mapping[sympy.Symbol, sympy.Expr],
        in_kernel: bool,
    ) -> None:
        self.outer = outer
        self.substitution = substitution
        self.in_kernel = in_kernel
        self.written = {name for node in nodes for name in node.writes}
        self.first: dict[str, Value] = {}
        self.last: dict[str, Value] = {}
        self.tests: list[Test] = []
        self.places: dict[str, sympy.Expr] = {}
        dtypes = {name: buffer.layout.dtype for name, buffer in buffers.items()}
        dtypes |= {local_name(name): dtypes[name] for name in self.written}
        self.ops = BodyRecorder.over(loops, dtypes.__getitem__)

    def run(self, node: LoopNode) -> None:
        substitution: dict[sympy.Symbol, sympy.Expr] = dict(self.substitution)
        substitution |= {v.symbol: sympy.S.Zero for v in node.all_loops}
        moving = [v.symbol for v in node.all_loops if v.size != 1]
        substitution.update(zip(moving, (v.symbol for v in self.outer), strict=False))

        def index(expression: sympy.Expr) -> sympy.Expr:
            replaced = expression.xreplace(substitution)
            return self.ops.ranges.simplify(sympy.expand_mul(replaced))

        Replayer(self.ops, index, self._load, self._store).replay(node.body)

    def _load(self, ops: BodyRecorder, name: str, where: sympy.Expr) -> Value:
        if name not in self.written:
            return ops.load(name, where)
        if ops is not self.ops:
            raise Unproved  # under a mask, values of the body outside aren't there
        self._note_place(name, where)
        if name not in self.last:
            source = (local_name(name), sympy.S.Zero) if self.in_kernel else (name, where)
            self.first[name] = self.last[name] = ops.load(*source)
        return self.last[name]

    def _store(
        self, ops: BodyRecorder, name: str, where: sympy.Expr, value: Value, mode: str | None
    ) -> None:
        if mode is not None:
            raise Unproved
        self._note_place(name, where)
        stored = ops.at(value)
        if isinstance(stored, Reduction):
            value = self._tested(name, where, stored)
        self.last[name] = value

    def _tested(self, name: str, where: sympy.Expr, test: Reduction) -> Value:
        """What stands for the result of a reduction, which is in the buffer ``name``."""
        connective = REDUCTIONS[test.kind].connective
        if connective is None or test.accumulated is not torch.bool:
            raise Unproved
        result = test.value if self.in_kernel else self.ops.load(name, where)
        self.tests.append(Test(connective, test.value, result))
        return result

    def _note_place(self, name: str, where: sympy.Expr) -> None:
        if self.places.setdefault(name, where) != where:
            raise Unproved
