"""Which iterations of a loop touch the same elements of a buffer.

An access touches the elements ``step * k + sum(strides * loops) + rest``, ``k`` being the number of the
iteration.  The tests here compare linear forms; what they can't prove counts as a conflict.

Loops whose iterations may run at the same time, each with memory of its own, are found by them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import sympy

from weft_loop_ir.bodies import LoopBody, Store
from weft_loop_ir.expressions import FloorDiv, to_int
from weft_loop_ir.host_walk import StepVisitor
from weft_loop_ir.ir import (
    Branch,
    BufferKind,
    BufferView,
    Count,
    ExternCall,
    Kernel,
    Loop,
    LoopVariable,
    ParallelKernels,
    Schedule,
    Step,
)
from weft_loop_ir.loop_graph import LoopNode, extern_writes, item_writes, touches
from weft_loop_ir.schedule.accesses import Extent, divides, linear_form
from weft_loop_ir.schedule.memory_plan import Bounds, counter_bounds, greatest, settled
from weft_loop_ir.unsupported import Unsupported

ONCE = Count(sympy.Symbol("once", integer=True), sympy.S.Zero, 1, sympy.S.One)
"""The counter of what isn't in a loop."""


@dataclass(frozen=True)
class IterationAccess:
    """An access in a loop's body; ``is_opaque`` where ``rest`` isn't the same in every iteration."""

    buffer: str
    is_store: bool
    step: Extent
    strides: tuple[Extent, ...]
    extents: tuple[Extent, ...]
    rest: sympy.Expr
    is_opaque: bool


def trip_count(count: Count) -> sympy.Expr:
    """How many iterations a counted loop has."""
    assert count.stop is not None
    sign = 1 if count.ascends else -1
    distance = sympy.expand((count.stop - count.start) * sign)
    step = sympy.sympify(count.step * sign)
    trips = FloorDiv(sympy.expand(distance + step - 1), step)
    return trips if distance.is_nonnegative else sympy.Max(trips, 0)


def value_in(count: Count, number: sympy.Expr) -> sympy.Expr:
    """The counter's value in iteration ``number``, which counts from 0."""
    return count.start + count.step * number


def accesses_in_loop(
    body: LoopBody,
    count: Count,
    loops: Sequence[LoopVariable],
    settle: Callable[[sympy.Expr], sympy.Expr] = lambda expression: expression,
) -> Iterator[IterationAccess]:
    """The accesses of a body that runs over ``loops`` in each iteration of a counted loop.

    ``settle`` gives the simplest form that an index has in the loop.
    """
    symbols = (count.symbol, *(v.symbol for v in loops))
    extents = tuple(to_int(v.size) for v in loops)
    given = body.bound_symbols
    for access in body.accesses():
        form = linear_form(settle(access.index), symbols)
        first, *strides = form.coefficients
        start = sympy.sympify(first) * count.start
        yield IterationAccess(
            access.buffer,
            isinstance(access, Store),
            first * count.step,
            tuple(strides),
            extents,
            form.rest + start,
            form.opaque or not given.isdisjoint(form.rest.free_symbols),
        )


def are_independent(accesses: Iterable[IterationAccess], trips: sympy.Expr) -> bool:
    """Whether no iteration stores to an element that another one touches."""
    return all(_apart(a, b, to_int(trips)) for a, b in _conflicts(accesses))


def keep_to_themselves(accesses: Iterable[IterationAccess], trips: sympy.Expr) -> bool:
    """Whether no point of ``loops`` stores, in any iteration, to an element that another point touches.

    Then each point may run all iterations before the next point begins.
    """
    return all(_own(a, b, to_int(trips)) for a, b in _conflicts(accesses))


def covers(access: IterationAccess, elements: sympy.Expr) -> bool:
    """Whether a store over ``loops`` alone writes each of a buffer's ``elements``, none of them twice."""
    if access.is_opaque or access.rest != 0 or access.step != 0:
        return False
    if not _is_injective(access.strides, access.extents):
        return False
    product = sympy.Mul(*(sympy.sympify(n) for n in access.extents))
    return bool(sympy.expand(product - elements) == 0)


def reads_only_at_store(node: LoopNode, name: str) -> bool:
    """Whether ``node`` reads each element of a buffer only where it stores, at one point of its loops.

    Where several points may store to one place, a later one would read what an earlier one has stored.
    """
    loads = {load.index for load in node.body.loads(name)}
    if not loads <= {store.index for store in node.body.stores()}:
        return False
    stores = [a for a in accesses_in_loop(node.body, ONCE, node.loops) if a.is_store]
    return not loads or all(not a.is_opaque and steps_apart(a.strides, a.extents) for a in stores)


def reads_what_it_keeps(node: LoopNode, name: str) -> bool:
    """Whether ``node`` reads of a buffer only elements that it doesn't store to, or where it stores them."""
    loops = node.all_loops
    accesses = [a for a in accesses_in_loop(node.body, ONCE, loops) if a.buffer == name]
    return all(
        a == replace(b, is_store=a.is_store) or _never_meet(a, b)
        for a, b in itertools.product(accesses, accesses)
        if b.is_store and not a.is_store
    )


def _never_meet(first: IterationAccess, second: IterationAccess) -> bool:
    """Whether two accesses of one iteration touch different elements: one lies before the other."""
    if first.is_opaque or second.is_opaque:
        return False
    reach = _reach(first, second)
    return reach is not None and (_below(0, reach[0]) or _below(reach[1], 0))


def _reach(
    first: IterationAccess, second: IterationAccess, step: Extent | None = None
) -> tuple[Extent, Extent, Sequence[Extent]] | None:
    """Between which distances two accesses lie over loops of strides up to ``step``, and the other strides.

    Over all loops without it; None where this is unknown.
    """
    low = high = _difference(first, second)
    others: list[Extent] = []
    for access, sign in ((first, 1), (second, -1)):
        for stride, extent in _moving(access):
            size = _magnitude(stride)
            if size is None:
                return None
            if step is not None and not _below(size, step + 1):
                others.append(size)
            elif (sign > 0) == (size == stride):
                high = high + size * (extent - 1)
            else:
                low = low - size * (extent - 1)
    return low, high, others


def _conflicts(
    accesses: Iterable[IterationAccess],
) -> Iterator[tuple[IterationAccess, IterationAccess]]:
    """Pairs of accesses to one buffer of which one stores, each access with itself included."""
    known = list(dict.fromkeys(accesses))
    for first, second in itertools.combinations_with_replacement(known, 2):
        if first.buffer == second.buffer and (first.is_store or second.is_store):
            yield first, second


def _apart(first: IterationAccess, second: IterationAccess, trips: Extent) -> bool:
    """Whether two accesses never meet in different iterations.

    Loops of strides up to the iteration's stay within a window that is no longer than its step; all
    others move by multiples of more than the iterations and the window together.
    """
    step = _magnitude(first.step)
    if first.is_opaque or second.is_opaque or first.step != second.step or not _below(0, step):
        return False
    reach = _reach(first, second, step)
    if reach is None:
        return False
    low, high, outer = reach
    if not (_below(high, step) and _below(-low, step)):
        return False
    if not outer:
        return True
    unit, reach = _common_divisor(outer), step * (trips - 1)
    return _below(reach + high, unit) and _below(reach - low, unit)


def _own(first: IterationAccess, second: IterationAccess, trips: Extent) -> bool:
    """Whether two accesses meet only at one point of the loops, in whatever iterations."""
    if first.is_opaque or second.is_opaque or first.strides != second.strides:
        return False
    if not _is_injective(first.strides, first.extents):
        return False
    distance = _magnitude(_difference(first, second))
    steps = [_magnitude(s) for s in {first.step, second.step} if s != 0]
    strides = [_magnitude(s) for s, _ in _moving(first)]
    if distance is None or None in steps:
        return False
    if not strides or (not steps and distance == 0):
        return True
    moves = [*steps, *([distance] if distance != 0 else [])]
    reach = sum((_magnitude(s) * (n - 1) for s, n in _moving(first)), 0)
    if _below(reach, _common_divisor(moves)):
        return True
    return _below(distance + sum(s * (trips - 1) for s in steps), _common_divisor(strides))


def _difference(first: IterationAccess, second: IterationAccess) -> Extent:
    return to_int(sympy.expand(first.rest - second.rest))


def _moving(access: IterationAccess) -> list[tuple[Extent, Extent]]:
    """The strides and extents of the loops along which an access moves."""
    pairs = zip(access.strides, access.extents, strict=True)
    return [(stride, extent) for stride, extent in pairs if stride != 0 and extent != 1]


def steps_apart(strides: Sequence[Extent], extents: Sequence[Extent]) -> bool:
    """Whether different points of the loops are different elements.

    Of strides that are symbols, whose order is not known, it is enough that each loop has one of its own, as
    in the layout of a tensor; loops that meet, ``y[[0, 0]]`` or ``y[i + j]``, have none or the same.
    """
    if _is_injective(strides, extents):
        return True
    moving = [s for s, n in zip(strides, extents, strict=True) if n != 1]
    if all(isinstance(n, int) for n in (*moving, *extents)):
        return False
    return 0 not in moving and len(set(moving)) == len(moving)


def _is_injective(strides: Sequence[Extent], extents: Sequence[Extent]) -> bool:
    """Whether different points of the loops are different elements: digits of a number."""
    digits = [(_magnitude(s), n) for s, n in zip(strides, extents, strict=True) if n != 1]
    if any(size is None for size, _ in digits):
        return False
    times = [divides(inner * n, outer) for (outer, _), (inner, n) in itertools.pairwise(digits)]
    if digits and all(_below(0, number) for number in (*times, digits[-1][0])):
        return True  # whole rows of the next, whatever the symbols of sizes are
    reach: Extent = 0
    while digits:
        digit = next((d for d in digits if all(_below(d[0], e[0] + 1) for e in digits)), digits[0])
        if not _below(reach, digit[0]):
            return False
        reach = reach + digit[0] * (digit[1] - 1)
        digits.remove(digit)
    return True


def _magnitude(value: Extent) -> Extent:
    """The absolute value; None where the sign isn't known."""
    if isinstance(value, int):
        return abs(value)
    if value.is_nonnegative:
        return value
    return -value if value.is_nonpositive else None


def _below(left: Extent | None, right: Extent | None) -> bool:
    """Whether ``left < right`` is sure."""
    if left is None or right is None:
        return False
    difference = right - left
    if isinstance(difference, int):
        return difference > 0
    return bool(sympy.expand(difference).is_positive)


def _common_divisor(values: Sequence[Extent]) -> Extent | None:
    """A divisor of all ``values``, the greatest where they are numbers; None where none is found."""
    if all(isinstance(v, int) for v in values):
        return math.gcd(*values)
    return next((v for v in values if all(divides(v, w) is not None for w in values)), None)


# -- loops of a schedule -------------------------------------------------------------------------------


def independent_iterations(loop: Loop, schedule: Schedule) -> frozenset[str] | None:
    """The intermediates of which each iteration of ``loop``, a loop of ``schedule``, needs its own.

    None where an iteration may need another one: iterations depend on each other, data or a condition ends
    the loop, or it isn't known which elements they touch.
    """
    count = loop.only_count
    if count is None:
        return None
    own = _own_buffers(loop, schedule)
    shared = frozenset(item_writes(loop)) - own
    found = _Accesses(count, counter_bounds([loop]), shared, schedule)
    try:
        accesses = list(found.block(loop.body))
    except (_NotKnown, Unsupported):
        return None
    return own if are_independent(accesses, trip_count(count)) else None


def _own_buffers(loop: Loop, schedule: Schedule) -> frozenset[str]:
    """The buffers that an iteration fills for itself, before it reads them."""
    inside, everywhere = touches(loop.body), touches(schedule.steps)
    returned = {o.buffer for o in schedule.outputs if isinstance(o, BufferView)}
    return frozenset(
        name
        for name in item_writes(loop)
        if name not in loop.carried
        and name not in returned
        and schedule.buffers[name].kind is BufferKind.INTERMEDIATE
        and inside[name] == everywhere[name]
    )


class _NotKnown(Exception):
    """It is not known which elements a step touches."""


@dataclass(eq=False)
class _Accesses(StepVisitor[Iterator[IterationAccess]]):
    """The accesses of a loop's body to buffers ``shared``, with counters in sizes at their greatest."""

    count: Count
    bounds: Bounds
    shared: frozenset[str]
    schedule: Schedule
    around: tuple[LoopVariable, ...] = ()  # the loops between, which count iterations

    def block(self, steps: Sequence[Step]) -> Iterator[IterationAccess]:
        """What ``steps`` touch."""
        for step in steps:
            yield from self.visit(step)

    def parallel_kernels(self, group: ParallelKernels) -> Iterator[IterationAccess]:
        yield from self.block(group.kernels)

    def branch(self, branch: Branch) -> Iterator[IterationAccess]:
        yield from self._view(branch.predicate, is_store=False)
        for block in branch.blocks:
            yield from self.block(block)

    def kernel(self, kernel: Kernel) -> Iterator[IterationAccess]:
        for stage in kernel.stages:
            loops = [self._largest(v) for v in (*self.around, *kernel.outer, *stage.inner)]
            for access in accesses_in_loop(stage.body, self.count, loops, self._settle):
                if access.buffer in self.shared:
                    yield access

    def extern_call(self, call: ExternCall) -> Iterator[IterationAccess]:
        if call.holds or call.defines:  # a number of data differs by iteration
            raise _NotKnown
        for view in call.views:
            yield from self._view(view, is_store=False)
        for name in extern_writes(call):
            layout = self.schedule.buffers[name].layout
            whole = BufferView(name, layout.size, layout.stride, sympy.S.Zero, layout.dtype)
            yield from self._view(whole, is_store=True)

    def loop(self, loop: Loop) -> Iterator[IterationAccess]:
        """A loop inside: its counter is one more place, if it is the number of its iteration."""
        count = loop.count
        if count is None or count.stop is None or count.start != 0 or count.step != 1:
            raise _NotKnown
        if loop.predicate is not None:
            yield from self._view(loop.predicate, is_store=False)
        around = self.around
        self.around = (*around, self._largest(LoopVariable(count.symbol, trip_count(count))))
        for block in loop.blocks:
            yield from self.block(block)
        self.around = around

    def _view(self, view: BufferView, *, is_store: bool) -> Iterator[IterationAccess]:
        """All elements of a view."""
        if view.buffer not in self.shared:
            return
        dims = [(n, stride) for n, stride in zip(view.size, view.stride, strict=True) if n != 1]
        if any(self.count.symbol in stride.free_symbols for _, stride in dims):
            raise _NotKnown
        form = linear_form(
            self._settle(view.offset), (self.count.symbol, *(v.symbol for v in self.around))
        )
        first, *strides = form.coefficients
        size = [greatest(n, self.bounds) for n, _ in dims]
        yield IterationAccess(
            view.buffer,
            is_store,
            first * self.count.step,
            (*strides, *(to_int(stride) for _, stride in dims)),
            tuple(map(to_int, (*(v.size for v in self.around), *size))),
            form.rest + sympy.sympify(first) * self.count.start,
            form.opaque,
        )

    def _settle(self, expression: sympy.Expr) -> sympy.Expr:
        return settled(expression, self.bounds)

    def _largest(self, variable: LoopVariable) -> LoopVariable:
        return LoopVariable(variable.symbol, greatest(variable.size, self.bounds))
