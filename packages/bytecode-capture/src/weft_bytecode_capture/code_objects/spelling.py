"""Instructions as the interpreter's version writes them, where a :class:`.Dialect` says that it differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .dialects import DIALECT
from .indexed_iterators import SPELLINGS

if TYPE_CHECKING:
    from .instructions import ExceptionEntry, Instruction


def spelled(instructions: list[Instruction], iter_constant: int) -> list[Instruction]:
    """The instructions to lay out, with jumps and handlers among themselves.

    ``iter_constant`` is the number of the constant :func:`iter`, for a dialect with ``indexed_iterators``.
    """
    if not DIALECT.bools_before:
        return instructions
    targets = {id(i.target) for i in instructions}
    targets |= {id(i.handler.target) for i in instructions if i.handler is not None}
    output: list[Instruction] = []
    first_of: dict[int, Instruction] = {}
    for instruction in instructions:
        start = len(output)
        is_explicit = instruction.name == "TO_BOOL"
        if is_explicit or instruction.name in DIALECT.bools_before:
            after_comparison = bool(output) and output[-1].name == "COMPARE_OP"
            if after_comparison and id(instruction) not in targets:
                output[-1].argument |= DIALECT.comparison_to_bool
            else:
                output.append(
                    dataclasses.replace(instruction, name="TO_BOOL", argument=0, target=None)
                )
        if instruction.name in DIALECT.sequences:
            for name, argument in DIALECT.sequences[instruction.name]:
                part = dataclasses.replace(instruction, name=name, argument=argument)
                output.append(part)
        elif DIALECT.indexed_iterators and instruction.name in SPELLINGS:
            output.extend(_with_index(instruction, iter_constant))
        elif not is_explicit:
            output.append(dataclasses.replace(instruction))
        first_of[id(instruction)] = output[min(start, len(output) - 1)]
    _connect(output, first_of)
    return output


def _with_index(instruction: Instruction, iter_constant: int) -> Iterator[Instruction]:
    """What takes an iterator, or its next element, where a slot for an index lies on it."""
    for name, argument in SPELLINGS[instruction.name]:
        if argument is not None:
            yield dataclasses.replace(instruction, name=name, argument=argument, target=None)
        elif name == "LOAD_CONST":
            yield dataclasses.replace(instruction, name=name, argument=iter_constant)
        else:
            yield dataclasses.replace(instruction, name=name)


def _connect(output: list[Instruction], first_of: dict[int, Instruction]) -> None:
    """Let jumps and handlers lead to the new instructions."""
    handlers: dict[int, ExceptionEntry] = {}
    for instruction in output:
        if instruction.target is not None:
            instruction.target = first_of.get(id(instruction.target), instruction.target)
        handler = instruction.handler
        if handler is not None:
            if id(handler) not in handlers:
                target = first_of.get(id(handler.target), handler.target)
                under_index = DIALECT.indexed_iterators and target.name == "CLEANUP_THROW"
                depth = handler.depth + under_index
                handlers[id(handler)] = dataclasses.replace(handler, target=target, depth=depth)
            instruction.handler = handlers[id(handler)]
