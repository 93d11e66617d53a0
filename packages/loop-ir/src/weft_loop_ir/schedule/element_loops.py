"""Loops that data ends, inside one kernel: where each element may go on until it is done itself.

A loop such as ``while (n > 1).any()`` ends when no element goes on.  If its body leaves an element as it is
once that element doesn't, all elements may run by themselves, each for as many iterations as it needs.
That it does is proved on the recorded body, as values of one element: with the element's test known to fail,
what it stores is what it has loaded.  A loop over single numbers needs no proof.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import sympy
import torch

from weft_loop_ir.bodies import (
    ADD,
    REDUCTIONS,
    Combining,
    Connective,
    Constant,
    IndexValue,
    Load,
    Reduction,
    Store,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferKind,
    BufferView,
    Count,
    Kernel,
    LocalBuffer,
    Loop,
    LoopVariable,
    Region,
    Stage,
)
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node, all_items, item_reads, item_writes
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.iterations import (
    ONCE,
    IterationAccess,
    accesses_in_loop,
    covers,
    keep_to_themselves,
    trip_count,
    value_in,
)
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.schedule.simplify_values import Simplifier, constant_of


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


# -- proofs --------------------------------------------------------------------------------------------


def check_that_each_ends(
    body: ElementBody, flag: str, state: Iterable[str], not_minus_zero: Set[str]
) -> None:
    """Check that an iteration leaves an element's ``state`` as it is once the element doesn't go on.

    The loop goes on while ``flag`` is set at the end of an iteration; ``not_minus_zero`` names state that
    isn't -0.0 when it begins.  Raises :class:`Unproved`.

    An element goes on if its operand of the one test holds, which is about the state after the iteration or
    the one before it; both are tried.  In the second form the test may decide what the iteration does, so
    both of its results are.
    """
    if len(body.tests) != 1:
        raise Unproved
    (test,) = body.tests
    goes_on = _of_element(body, test, body.last[flag])
    names = list(state)
    if not all(name in body.first for name in names):
        raise Unproved
    for condition in (_before_iteration(body, goes_on), goes_on):
        if condition is not None and _keeps(body, condition, test, names, not_minus_zero):
            return
    raise Unproved


def _of_element(body: ElementBody, test: Test, flag: Value) -> Value:
    """The value that says whether an element goes on, if the loop does while one of them does."""
    simple = Simplifier(body.ops, {})
    outcome = simple(flag)
    if test.connective is Connective.OR and outcome == test.result:
        return simple(test.operand)
    if test.connective is Connective.AND and outcome == simple.negation(test.result):
        return simple.negation(test.operand)
    raise Unproved


def _keeps(
    body: ElementBody, condition: Value, test: Test, names: Iterable[str], not_minus_zero: Set[str]
) -> bool:
    """Whether an iteration changes nothing of an element of which ``condition`` doesn't hold."""
    for result in (True, False):
        simple = Simplifier(body.ops, {condition: False, test.result: result})
        for name in names:
            first, last = body.first[name], body.last[name]
            after = simple(last)
            if after == simple(first):
                continue
            is_sum = _is_sum(body.ops, first, last, name in not_minus_zero)
            if not (is_sum and _is_plus_zero(body.ops, first, after)):
                return False
    return True


def _is_sum(ops: BodyRecorder, first: Value, last: Value, may_be_kept: bool) -> bool:
    """Whether the state after an iteration is a sum with it, so that it isn't -0.0 from then on.

    The first iteration is made in any case.  State that is not -0.0 before it ``may_be_kept`` by some tests.
    """
    instruction = ops.at(last)
    if isinstance(instruction, Where) and may_be_kept:
        choices = (instruction.chosen, instruction.other)
        return all(_is_sum(ops, first, value, True) for value in choices)
    is_sum = instruction.operation is ADD and first in instruction.operands
    return is_sum or (may_be_kept and last == first)


def _is_plus_zero(ops: BodyRecorder, first: Value, value: Value) -> bool:
    """Whether ``value`` is ``first + 0.0``, which changes -0.0 only."""
    instruction = ops.at(value)
    if instruction.operation is not ADD or first not in instruction.operands:
        return False
    left, right = instruction.operands
    added = constant_of(ops, right if left == first else left)
    return added == 0 and math.copysign(1, added) > 0


def _before_iteration(body: ElementBody, value: Value) -> Value | None:
    """``value``, about the state after an iteration, as it is of the one before; None where there is none."""
    known = {body.last[name]: first for name, first in body.first.items()}
    moving = body.ops.body().bound_symbols | body.counter
    started = set(body.first.values())
    done: dict[Value, Value | None] = {}

    def moved(value: Value) -> Value | None:
        if value not in done:
            done[value] = known[value] if value in known else renewed(value)
        return done[value]

    def renewed(value: Value) -> Value | None:
        instruction = body.ops.at(value)
        if value in started or not instruction.operation.is_repeatable:
            return None
        if isinstance(instruction, Load | IndexValue):
            return value if moving.isdisjoint(instruction.free_symbols) else None
        operands = {v: moved(v) for v in instruction.operands}
        if None in operands.values():
            return None
        return body.ops.again(instruction, operands)

    return moved(value)


# -- loops ---------------------------------------------------------------------------------------------


def element_loops(loop_graph: LoopGraph) -> LoopGraph:
    """Replace every loop that ends by what its elements hold, and whose elements are apart, by a kernel."""
    if not any(isinstance(node, Region) for node in loop_graph.nodes):
        return loop_graph
    reads = _reads(loop_graph.nodes)
    reads.update(o.buffer for o in loop_graph.outputs if isinstance(o, BufferView))
    return replace(loop_graph, nodes=_block(loop_graph.nodes, loop_graph.buffers, reads, False))


def _block(
    nodes: Sequence[Node], buffers: Mapping[str, Buffer], later: Counter[str], is_repeated: bool
) -> tuple[Node, ...]:
    """The nodes of a block; ``later`` counts the reads of each buffer in it and after it.

    Where the block ``is_repeated``, what comes first in it comes later as well.
    """
    result: list[Node] = []
    filled: dict[str, float] = {}  # buffers that hold one number
    for position, node in enumerate(nodes):
        if isinstance(node, Branch):
            node = node.with_blocks(*(_block(b, buffers, later, is_repeated) for b in node.blocks))
        elif isinstance(node, Loop):
            node = replace(node, body=_block(node.body, buffers, later, True))
            with contextlib.suppress(Unproved):
                node = _ElementLoop(node, buffers, later - _reads([node]), filled).kernel()
        if not is_repeated:
            later = later - _reads([nodes[position]])
        for name in item_writes(node):
            filled.pop(name, None)
        if isinstance(node, LoopNode):
            filled.update(_fills(node, buffers))
        result.append(node)
    return tuple(result)


def _fills(node: LoopNode, buffers: Mapping[str, Buffer]) -> dict[str, float]:
    """The buffers that ``node`` fills with one number, and the number."""
    first, *rest = node.body.instructions
    accesses = accesses_in_loop(node.body, ONCE, node.loops)
    if not isinstance(first, Constant) or not all(isinstance(i, Store) for i in rest):
        return {}
    number = float(first.number)
    return {a.buffer: number for a in accesses if covers(a, storage_elements(buffers[a.buffer]))}


def _reads(nodes: Sequence[Node]) -> Counter[str]:
    """How many nodes and predicates read each buffer, at any depth."""
    found: Counter[str] = Counter()
    for item in all_items(nodes):
        if not isinstance(item, Region):
            found.update(item_reads(item))
        elif item.predicate is not None:
            found[item.predicate.buffer] += 1
    return found


class _ElementLoop:
    """One loop.  Raises :class:`Unproved` where it has to stay one of the host program."""

    def __init__(
        self,
        loop: Loop,
        buffers: Mapping[str, Buffer],
        read_elsewhere: Counter[str],
        filled: Mapping[str, float],
    ) -> None:
        if loop.predicate is None or loop.condition:
            raise Unproved
        self.loop = loop
        self.flag = loop.predicate.buffer
        self.buffers = buffers
        self.nodes = [node for node in loop.body if isinstance(node, LoopNode)]
        if len(self.nodes) != len(loop.body) or buffers[self.flag].layout.size:
            raise Unproved
        self.outer = common_loops(self.nodes)
        self._check_counter()
        self.body = record_element(self.nodes, self.outer, buffers, loop.count, in_kernel=False)
        self.kept = [n for n in self.body.last if read_elsewhere[n] or self._is_seen(n)]
        names = dict.fromkeys((*self.body.first, *self.kept, self.flag))
        self.state = tuple(names)
        positive = {n for n, number in filled.items() if math.copysign(1, number) > 0}
        self._check_state(positive)

    def _is_seen(self, name: str) -> bool:
        """Whether the caller sees the buffer."""
        return self.buffers[name].kind is not BufferKind.INTERMEDIATE

    def _check_counter(self) -> None:
        """The counter has a last value or isn't used, and no number of the host depends on it."""
        count = self.loop.count
        if count is None:
            return
        hosts = [node.body.host_symbols for node in self.nodes]
        sizes = [v.size.free_symbols for v in self.outer]
        if count.stop is None or any(count.symbol in symbols for symbols in (*hosts, *sizes)):
            raise Unproved

    def _check_state(self, not_minus_zero: Set[str]) -> None:
        body, loop = self.body, self.loop
        if self.flag not in body.last or not self.kept:
            raise Unproved
        if not set(self.state) <= {*loop.carried}:
            raise Unproved
        if any(body.counter & place.free_symbols for place in body.places.values()):
            raise Unproved
        if not self.outer:
            return
        of_each = [name for name in self.state if body.places[name].free_symbols]
        if not set(self.kept) <= set(of_each):
            raise Unproved  # all elements would write to one place
        if any(node.body.checks_positions for node in self.nodes):
            raise Unproved  # one that is over goes on beside those that aren't
        if not keep_to_themselves(self._accesses(of_each), sympy.S.One):
            raise Unproved
        check_that_each_ends(body, self.flag, of_each, not_minus_zero)

    def _accesses(self, names: Sequence[str]) -> Sequence[IterationAccess]:
        return [
            access
            for inwards in (True, False)
            for access in accesses_in_loop(self._copies(names, inwards).body, ONCE, self.outer)
            if access.buffer in self.buffers
        ]

    # -- the kernel --------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Read the state, run the iterations, write what is needed of it."""
        stages = (
            self._copies(self.state, True),
            self._iterations(),
            self._copies(self.kept, False),
        )
        local = tuple(
            LocalBuffer(local_name(name), self.buffers[name].layout.dtype, sympy.S.One)
            for name in self.state
        )
        reads = dict.fromkeys(name for stage in stages for name in stage.body.reads)
        return Kernel(
            self.loop.name,
            self.outer,
            stages,
            local,
            tuple(name for name in reads if name in self.buffers),
            tuple(self.kept),
            tuple(dict.fromkeys(o for node in self.nodes for o in node.origins)),
        )

    def _copies(self, names: Sequence[str], inwards: bool) -> Stage:
        """The stage that reads state into local buffers, or the one that writes it."""
        places = {name: self.body.places[name] for name in names}
        return copied_state(places, self.buffers, self.outer, inwards=inwards)

    def _iterations(self) -> Stage:
        count, number = self.loop.count, None
        if count is not None:
            number = LoopVariable(loop_symbol("r", 0), trip_count(count))
        body = record_element(self.nodes, self.outer, self.buffers, count, number, in_kernel=True)
        for name in self.state:
            body.ops.store(local_name(name), sympy.S.Zero, body.last[name])
        return Stage(
            () if number is None else (number,),
            without_unused(body.ops.body()),
            is_sequential=True,
            goes_on=local_name(self.flag),
        )
