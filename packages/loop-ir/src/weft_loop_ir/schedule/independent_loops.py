"""Loops of a schedule whose iterations may run at the same time, each with memory of its own.

Loops that become kernels over all iterations are found before fusion (``vectorize_loops.py``).  What is left
here has calls in its body that are no single call, or sizes that differ by iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from weft_loop_ir.expressions import to_int
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
from weft_loop_ir.loop_graph import extern_writes, item_writes, touches
from weft_loop_ir.schedule.accesses import linear_form
from weft_loop_ir.schedule.counter_bounds import Bounds, counter_bounds, greatest, settled
from weft_loop_ir.schedule.iterations import (
    IterationAccess,
    accesses_in_loop,
    are_independent,
    trip_count,
)
from weft_loop_ir.unsupported import Unsupported


def independent_iterations(loop: Loop, schedule: Schedule) -> frozenset[str] | None:
    """The intermediates of which each iteration of ``loop``, a loop of ``schedule``, needs its own.

    None where an iteration may need another one: iterations depend on each other, data or a condition ends
    the loop, or it isn't known which elements they touch.
    """
    count = loop.only_count
    if count is None:
        return None
    own = _own(loop, schedule)
    shared = frozenset(item_writes(loop)) - own
    found = _Accesses(count, counter_bounds([loop]), shared, schedule)
    try:
        accesses = list(found.block(loop.body))
    except (_NotKnown, Unsupported):
        return None
    return own if are_independent(accesses, trip_count(count)) else None


def _own(loop: Loop, schedule: Schedule) -> frozenset[str]:
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
