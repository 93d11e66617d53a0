"""The walk over a schedule that everything which runs or prints a host program subclasses.

:class:`StepVisitor` has a method for each kind of step.  :class:`HostWalk` goes through a schedule in order
and says, besides, when buffers get memory and lose it; the reference evaluator and the host printers of
code generators are subclasses of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import Generic, TypeVar

from weft_loop_ir.data_symbols import sized_within
from weft_loop_ir.ir import (
    Branch,
    BufferView,
    ExternCall,
    Kernel,
    Loop,
    ParallelKernels,
    Region,
    Requirement,
    Schedule,
    Step,
    SymbolDefinition,
)
from weft_loop_ir.loop_graph import (
    Item,
    LoopNode,
    all_items,
    extern_writes,
    has_effect,
    item_writes,
    last_uses,
)
from weft_loop_ir.unsupported import Unsupported

T = TypeVar("T")


class StepVisitor(Generic[T]):
    """A method for each kind of step, that :meth:`visit` calls; without one, a step is refused.

    A subclass of a step's class (a kernel from a template, say) is visited as what it is derived from.
    """

    def visit(self, item: Item) -> T:
        """What the method for ``item`` gives."""
        if isinstance(item, Kernel):
            return self.kernel(item)
        if isinstance(item, ParallelKernels):
            return self.parallel_kernels(item)
        if isinstance(item, ExternCall):
            return self.extern_call(item)
        if isinstance(item, Branch):
            return self.branch(item)
        if isinstance(item, Loop):
            return self.loop(item)
        if isinstance(item, LoopNode):
            return self.loop_node(item)
        return self.other(item)

    def kernel(self, kernel: Kernel) -> T:
        return self.other(kernel)

    def parallel_kernels(self, group: ParallelKernels) -> T:
        """Kernels none of which touches what another one writes."""
        return self.other(group)

    def extern_call(self, call: ExternCall) -> T:
        return self.other(call)

    def branch(self, branch: Branch) -> T:
        return self.other(branch)

    def loop(self, loop: Loop) -> T:
        return self.other(loop)

    def loop_node(self, node: LoopNode) -> T:
        """A loop nest that is no kernel yet: in loop graphs, never in schedules."""
        return self.other(node)

    def other(self, item: object) -> T:
        """What has no method of its own."""
        raise Unsupported("no form for a step", f"of type {type(item).__name__}")


class HostWalk(StepVisitor[None]):
    """Goes through a schedule: each step after the allocation of what it writes, before what is freed then.

    :meth:`walk` calls, for each step in order, :meth:`allocate` for the buffers that it writes and that have
    no memory yet, the step's own method, and :meth:`free` for what nothing needs any more.  Buffers that lie
    in the arena (``schedule.memory.offsets``) have memory from the beginning.  A subclass gives
    :meth:`kernel`, :meth:`call`, :meth:`branch`, :meth:`loop`, :meth:`allocate`, and :meth:`define` and
    :meth:`require` if it takes sizes that depend on data; the methods of regions call :meth:`block`.

    ``number`` is the position of the schedule's step at hand, ``depth`` counts the regions around it, and
    ``held`` are the buffers with memory of their own that are not freed.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.buffers = schedule.buffers
        for item in all_items(schedule.steps):
            if not isinstance(item, Item):
                self.other(item)
        self.last_uses = last_uses(schedule)
        self.held: dict[str, int] = {}  # with how many were held before each
        self._ends: list[tuple[float, int, str]] = []  # of these, a heap, by their last uses
        self._holds = 0
        self.number = 0
        self.depth = 0
        self.has_effects = False

    def walk(self, numbers: Iterable[int] | None = None) -> None:
        """Go through the steps; ``numbers``: through those at these positions only."""
        steps = self.schedule.steps
        for number in range(len(steps)) if numbers is None else numbers:
            self.number = number
            self.outermost(steps[number])

    def outermost(self, step: Step) -> None:
        """One of the schedule's own steps, and the end of what it was the last to need."""
        if not self.has_effects and has_effect(step, self.buffers):
            self.has_effects = True
            self.first_effect(step)
        self.step(step)
        gone = []
        while self._ends and self._ends[0][0] <= self.number:
            gone.append(heapq.heappop(self._ends)[-1])
        if gone:
            gone.sort(key=self.held.pop)
            self.free(gone)

    def step(self, step: Item) -> None:
        """One step, of a region or of the schedule."""
        for name in self.memory_for(step):
            if not self.has_memory(name):
                self.hold([name])
                self.allocate(name)
        self.visit(step)

    def block(self, steps: Sequence[Item]) -> None:
        """The steps of a region's block, or kernels that run in parallel, in order."""
        self.depth += 1
        for step in steps:
            self.step(step)
        self.depth -= 1

    # -- memory ------------------------------------------------------------------------------------------

    def hold(self, names: Iterable[str]) -> None:
        """From now on buffers have memory of their own, until after their last uses."""
        for name in names:
            if name not in self.held:
                self.held[name] = self._holds
                heapq.heappush(self._ends, (self.last_uses.get(name, -1), self._holds, name))
                self._holds += 1

    def hold_nothing(self) -> None:
        """Begin anew, as for another function: no buffer has memory of its own yet."""
        self.held.clear()
        self._ends.clear()

    def memory_for(self, step: Item) -> Collection[str]:
        """The buffers that need memory before ``step``: what it writes, but for what calls in it make.

        What has a size that only a step within a region gives gets its memory there.
        """
        made = {
            name
            for item in all_items([step])
            if isinstance(item, ExternCall) and not self.writes_into(item)
            for name in item.outputs
        }
        if isinstance(step, Region):
            made |= sized_within(step, self.buffers)
        return [name for name in item_writes(step) if name not in made]

    def writes_into(self, call: ExternCall) -> bool:
        """Whether ``call`` writes into memory that it is given, rather than make its results."""
        made = extern_writes(call)
        return call.out_variant is not None and len(call.outputs) == len(made) == 1

    def has_memory(self, name: str) -> bool:
        """Whether a buffer that is going to be written has its memory already."""
        is_given = self.buffers[name].kind.is_given
        return name in self.schedule.memory.offsets or name in self.held or is_given

    def allocate(self, name: str) -> None:
        """Give the buffer memory: its own, or that of ``schedule.memory.reused[name]`` where there is one."""
        raise NotImplementedError

    def free(self, names: Sequence[str]) -> None:
        """Let go of memory that was allocated, or made by calls, and that nothing later needs."""

    def allocate_unwritten(self) -> None:
        """Give memory to outputs of which no step writes an element: they are empty."""
        for view in self.schedule.outputs:
            if isinstance(view, BufferView) and not self.has_memory(view.buffer):
                self.hold([view.buffer])
                self.allocate(view.buffer)

    # -- steps -------------------------------------------------------------------------------------------

    def first_effect(self, step: Step) -> None:
        """Before the first step that writes to an input, or whose calls do more than give results."""

    def parallel_kernels(self, group: ParallelKernels) -> None:
        for kernel in group.kernels:
            self.kernel(kernel)

    def extern_call(self, call: ExternCall) -> None:
        self.call(call)
        if not self.writes_into(call):
            self.hold(name for name in call.outputs if name is not None)
        for definition in call.defines:
            self.define(call, definition)
        for requirement in call.requires:
            self.require(requirement)

    def call(self, call: ExternCall) -> None:
        """The call itself."""
        self.other(call)

    def define(self, call: ExternCall, definition: SymbolDefinition) -> None:
        """A size or number that a call's results have given."""
        raise Unsupported("a size or number that depends on data", call.name)

    def require(self, requirement: Requirement) -> None:
        """What has to hold after a call."""
        raise Unsupported("a requirement on sizes that depend on data", requirement.message)
