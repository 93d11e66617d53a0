"""Loops inside kernels: where each element of what a loop carries depends on itself alone.

Each point of the kernel's loops then runs all iterations before the next point, with the state that an
iteration leaves for the next in a local buffer of one element: a register.  Points stay independent.

A loop's condition is computed at the end of each iteration, where it fuses with the body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from weft_loop_ir.bodies import LoopBody
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    Count,
    Kernel,
    LocalBuffer,
    Loop,
    LoopVariable,
    ParallelKernels,
    Region,
    Stage,
)
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, Node
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.element_loops import copied_state, local_name
from weft_loop_ir.schedule.iterations import (
    accesses_in_loop,
    keep_to_themselves,
    trip_count,
    value_in,
)


def loop_kernel(loop: Loop, buffers: Mapping[str, Buffer]) -> Kernel | ParallelKernels | None:
    """One kernel that runs all iterations of ``loop``, or one for each that its body runs in parallel.

    None where the counter alone doesn't end the loop, the body is more than one pointwise kernel, or
    elements depend on each other.
    """
    count = loop.only_count
    if count is None or len(loop.body) != 1:
        return None
    (step,) = loop.body
    if isinstance(step, Kernel):
        return _with_loop(step, loop, count, buffers)
    if not isinstance(step, ParallelKernels):
        return None
    kernels = [_with_loop(kernel, loop, count, buffers) for kernel in step.kernels]
    whole = tuple(kernel for kernel in kernels if kernel is not None)
    return ParallelKernels(step.name, whole) if len(whole) == len(kernels) else None


def _with_loop(
    kernel: Kernel, loop: Loop, count: Count, buffers: Mapping[str, Buffer]
) -> Kernel | None:
    """``kernel`` with the loop inside."""
    body = kernel.pointwise_body
    if body is None or kernel.stages[0].is_sequential or body.accumulates:
        return None
    if any(count.symbol in v.size.free_symbols for v in kernel.outer):
        return None
    if count.symbol in body.host_symbols:
        return None
    trips = trip_count(count)
    if not keep_to_themselves(accesses_in_loop(body, count, kernel.outer), trips):
        return None
    state = _state(kernel, body, count)
    if not set(state) <= set(loop.carried):
        return None
    builder = _Builder(kernel, count, state, buffers)
    return builder.kernel(LoopVariable(loop_symbol("r", 0), trips))


def _state(kernel: Kernel, body: LoopBody, count: Count) -> dict[str, sympy.Expr]:
    """The buffers that the body writes at one place in all iterations, with the index of that place."""
    places: dict[str, set[sympy.Expr]] = {name: set() for name in kernel.writes}
    for access in body.accesses():
        if access.buffer in places:
            places[access.buffer].add(access.index)
    state = {}
    for name, indices in places.items():
        index = next(iter(indices))
        if len(indices) == 1 and count.symbol not in index.free_symbols:
            state[name] = index
    return state


class _Builder:
    """Builds the kernel: a stage that reads the state, one that runs the iterations, one that writes it."""

    def __init__(
        self,
        kernel: Kernel,
        count: Count,
        state: Mapping[str, sympy.Expr],
        buffers: Mapping[str, Buffer],
    ) -> None:
        self.original = kernel
        self.count = count
        self.state = state
        self.buffers = buffers
        self.local = {
            name: LocalBuffer(local_name(name), buffers[name].layout.dtype, sympy.S.One)
            for name in state
        }

    def kernel(self, iterations: LoopVariable) -> Kernel:
        kernel = self.original
        stages = [
            copied_state(self.state, self.buffers, kernel.outer, inwards=True),
            Stage((iterations,), self._body(iterations), is_sequential=True),
            copied_state(self.state, self.buffers, kernel.outer, inwards=False),
        ]
        return Kernel(
            kernel.name,
            kernel.outer,
            tuple(stage for stage in stages if stage.body.instructions),
            tuple(self.local.values()),
            tuple(dict.fromkeys((*kernel.reads, *self.state))),
            kernel.writes,
            kernel.origins,
        )

    def _body(self, iterations: LoopVariable) -> LoopBody:
        loops = (*self.original.outer, iterations)
        dtypes = {name: buffer.layout.dtype for name, buffer in self.buffers.items()}
        dtypes |= {local.name: local.dtype for local in self.local.values()}
        recorder = BodyRecorder.over(loops, dtypes.__getitem__)
        value = {self.count.symbol: value_in(self.count, iterations.symbol)}

        def index(expression: sympy.Expr) -> sympy.Expr:
            if self.count.symbol not in expression.free_symbols:
                return expression
            return recorder.ranges.simplify(sympy.expand_mul(expression.xreplace(value)))

        def place(name: str, where: sympy.Expr) -> tuple[str, sympy.Expr]:
            return (self.local[name].name, sympy.S.Zero) if name in self.local else (name, where)

        Replayer(recorder, index, place=place).replay(self.original.stages[0].body)
        return recorder.body()


# -- conditions ----------------------------------------------------------------------------------------


def turn_conditions(loop_graph: LoopGraph) -> LoopGraph:
    """Let each condition that is one node run before its loop and after each iteration.

    It computes nothing that an iteration wouldn't: what it reads is the loop's state.  One that depends on
    the counter stays.
    """
    if not any(isinstance(node, Region) for node in loop_graph.nodes):
        return loop_graph
    return replace(loop_graph, nodes=_block(loop_graph.nodes))


def _block(nodes: Sequence[Node]) -> tuple[Node, ...]:
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Branch):
            result.append(node.with_blocks(*map(_block, node.blocks)))
        elif isinstance(node, Loop):
            result += _turned(replace(node, body=_block(node.body)))
        else:
            result.append(node)
    return tuple(result)


def _turned(loop: Loop) -> list[Node]:
    """The loop, after what computes its condition for the first iteration."""
    if loop.predicate is None or len(loop.condition) != 1:
        return [loop]
    (test,) = loop.condition
    if not isinstance(test, LoopNode) or test.writes != (loop.predicate.buffer,):
        return [loop]
    if loop.count is not None and any(
        loop.count.symbol in expression.free_symbols
        for instruction in test.body.instructions
        for expression in instruction.arguments
        if hasattr(expression, "free_symbols")
    ):
        return [loop]
    carried = (*loop.carried, *test.writes)
    body = (*loop.body, replace(test, name=f"{test.name}_again"))
    return [test, replace(loop, condition=(), body=body, carried=carried)]
