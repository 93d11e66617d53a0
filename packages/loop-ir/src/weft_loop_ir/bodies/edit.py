"""Bodies made of bodies: the part that a value depends on, other indices, other buffers, constants known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import sympy

from weft_loop_ir.bodies.instructions import Access, Indirect, Instruction, LoopBody, Store, Value


def part_of(body: LoopBody, result: Value) -> LoopBody:
    """What ``result`` is made of, and the positions that ``body`` checks."""
    return without_unused(LoopBody(body.instructions, result), stores=False)


def slice_of(body: LoopBody, result: Value) -> LoopBody | None:
    """The instructions that ``result`` depends on; None if one is not to be repeated."""
    wanted, bound = body.made_of(result), body.bound_symbols
    for position in wanted:
        instruction = body.instructions[position]
        if not instruction.operation.is_repeatable or instruction.free_symbols & bound:
            return None
    return chosen(body.instructions, wanted, result)


def chosen(
    instructions: tuple[Instruction, ...] | list[Instruction],
    positions: Collection[int],
    result: Value | None = None,
) -> LoopBody:
    """The instructions at ``positions``, which need no others, with a result of theirs."""
    order = sorted(positions)
    moved = {old: Value(new) for new, old in enumerate(order)}
    kept = tuple(instructions[k].moved(moved) for k in order)
    return LoopBody(kept, None if result is None else moved[result.index])


def without_unused(body: LoopBody, stores: bool = True) -> LoopBody:
    """``body`` without instructions whose results nothing uses.

    Checked ``indirect`` ones stay, and ``stores`` if they are to.
    """
    used: set[int] = set() if body.result is None else {body.result.index}
    symbols: set[sympy.Symbol] = set()
    keep: list[int] = []
    for position in reversed(range(len(body.instructions))):
        instruction = body.instructions[position]
        wanted = position in used or (stores and isinstance(instruction, Store))
        if isinstance(instruction, Indirect):
            wanted = instruction.check or instruction.symbol in symbols
        if not wanted:
            continue
        keep.append(position)
        used.update(v.index for v in instruction.operands)
        symbols |= instruction.free_symbols
        for nested in instruction.bodies:
            symbols |= nested.free_symbols
    if len(keep) == len(body.instructions):
        return body
    return chosen(body.instructions, keep, body.result)


def mapped(body: LoopBody, change: Callable[[Any], Any]) -> LoopBody:
    """``body`` with each argument of its instructions changed, nested bodies included."""

    def changed(argument: Any) -> Any:
        return mapped(argument, change) if isinstance(argument, LoopBody) else change(argument)

    return LoopBody(tuple(i.mapped(changed) for i in body.instructions), body.result)


def with_expressions(body: LoopBody, change: Callable[[sympy.Expr], sympy.Expr]) -> LoopBody:
    """``body`` with each index expression changed, nested bodies included."""
    return mapped(body, lambda a: change(a) if isinstance(a, sympy.Expr) else a)


def with_buffers(body: LoopBody, names: Mapping[str, str]) -> LoopBody:
    """``body`` on buffers of other names, nested bodies included."""

    def changed(instruction: Instruction) -> Instruction:
        if isinstance(instruction, Access):
            return instruction.to(names.get(instruction.buffer, instruction.buffer))
        if not instruction.bodies:
            return instruction
        return instruction.mapped(
            lambda a: with_buffers(a, names) if isinstance(a, LoopBody) else a
        )

    return LoopBody(tuple(map(changed, body.instructions)), body.result)
