"""Rows too long for registers that are computed anew where they are read, instead of kept in memory.

A row that a loop would store and a later loop load costs twice its memory traffic.  Computing it anew reads
what it was made of again, which is mostly still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from weft_loop_ir import Instruction, Kernel, LoopBody, Stage, Value

MAX_INSTRUCTIONS = 32
"""Beyond so many, memory is cheaper."""

ONCE = frozenset({"store", "indirect", "masked", "reduction", "rand", "randn"})
"""Operations that are not repeated."""


def recomputable_rows(kernel: Kernel, overwritten: frozenset[str]) -> Mapping[str, LoopBody]:
    """The local rows of ``kernel`` that can be computed anew, with the bodies that do it.

    That takes one stage that stores the row, readers at the same index of the same loops, and operands that
    the kernel leaves as they are: buffers that aren't ``overwritten``, scalars, other such rows.
    """
    scalars = {b.name for b in kernel.local_buffers if b.size == 1}
    found: dict[str, LoopBody] = {}
    for buffer in kernel.local_buffers:
        if buffer.name in scalars:
            continue
        body = _producer(buffer.name, kernel)
        if body is None or len(body.instructions) > MAX_INSTRUCTIONS:
            continue
        loads = {i.arguments[0] for i in body.instructions if i.operation == "load"}
        local = {b.name for b in kernel.local_buffers}
        if loads & local <= scalars | found.keys() and not loads & (
            overwritten | set(kernel.writes)
        ):
            found[buffer.name] = body
    return found


def _producer(name: str, kernel: Kernel) -> LoopBody | None:
    """The part of a stage's body that computes the row ``name``; None where that isn't one place."""
    stores: list[tuple[Stage, Instruction]] = []
    uses: set[tuple[object, sympy.Expr]] = set()
    for stage in kernel.stages:
        for instruction in stage.body.instructions:
            if instruction.operation == "masked":
                if _mentions(instruction.arguments[1], name):
                    return None
            elif instruction.operation in ("load", "store") and instruction.arguments[0] == name:
                uses.add((stage.inner, instruction.arguments[1]))
                if instruction.operation == "store":
                    stores.append((stage, instruction))
    if len(stores) != 1 or len(uses) != 1 or len(stores[0][1].arguments) > 3:
        return None
    stage, store = stores[0]
    return slice_of(stage.body, store.arguments[2])


def _mentions(body: LoopBody, name: str) -> bool:
    return any(
        name in i.arguments
        or any(_mentions(a, name) for a in i.arguments if isinstance(a, LoopBody))
        for i in body.instructions
    )


def slice_of(body: LoopBody, result: Value) -> LoopBody | None:
    """The instructions that ``result`` depends on; None if one is not to be repeated."""
    wanted = {result.index}
    for position in range(result.index, -1, -1):
        if position in wanted:
            arguments = body.instructions[position].arguments
            wanted.update(a.index for a in arguments if isinstance(a, Value))
    positions = sorted(wanted)
    bound = {i.arguments[1] for i in body.instructions if i.operation == "indirect"}
    new = {old: Value(k) for k, old in enumerate(positions)}
    instructions = []
    for position in positions:
        instruction = body.instructions[position]
        symbols = {
            s for a in instruction.arguments if isinstance(a, sympy.Expr) for s in a.free_symbols
        }
        if instruction.operation in ONCE or symbols & bound:
            return None
        arguments = tuple(
            new[a.index] if isinstance(a, Value) else a for a in instruction.arguments
        )
        instructions.append(Instruction(instruction.operation, arguments, instruction.dtype))
    return LoopBody(tuple(instructions), new[result.index])
