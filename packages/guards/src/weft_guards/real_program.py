"""Comparisons of floats as programs of a stack machine, which csrc/real.c runs on doubles.

What raises in Python makes the check fail, as it does there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from .computations import Computation, Operand
from .sources import Source
from .symbol_sources import SymbolSource

RealInstruction = tuple[int, int, float]  # opcode, register, number (0 where it has none)


class Opcode(enum.IntEnum):
    """The opcodes of csrc/real.h, in its order."""

    CONSTANT = 0
    VALUE = enum.auto()
    ADD = enum.auto()
    SUBTRACT = enum.auto()
    MULTIPLY = enum.auto()
    DIVIDE = enum.auto()
    NEGATE = enum.auto()
    ABSOLUTE = enum.auto()
    ROOT = enum.auto()
    LESS = enum.auto()
    LESS_EQUAL = enum.auto()
    GREATER = enum.auto()
    GREATER_EQUAL = enum.auto()
    EQUAL = enum.auto()
    UNEQUAL = enum.auto()
    IDENTICAL = enum.auto()


_OPERATIONS: dict[str, Opcode] = {
    "add": Opcode.ADD,
    "sub": Opcode.SUBTRACT,
    "mul": Opcode.MULTIPLY,
    "truediv": Opcode.DIVIDE,
    "neg": Opcode.NEGATE,
    "abs": Opcode.ABSOLUTE,
    "sqrt": Opcode.ROOT,
    "lt": Opcode.LESS,
    "le": Opcode.LESS_EQUAL,
    "gt": Opcode.GREATER,
    "ge": Opcode.GREATER_EQUAL,
    "eq": Opcode.EQUAL,
    "ne": Opcode.UNEQUAL,
    "is": Opcode.IDENTICAL,
}
_MAX_EXACT = 2**53  # of the integers that doubles hold without a gap
MAXIMAL_LENGTH = 32  # of a program, whose stack then fits, as in csrc/real.h


class _NotReal(Exception):
    """The comparison has a part that the machine does not compute."""


def comparison_program(
    comparison: str, operands: Sequence[Operand], register: Callable[[Source], int]
) -> list[RealInstruction] | None:
    """The program that leaves 1 where the comparison, a name of :data:`COMPARISONS`, holds, else 0.

    None where only Python can decide it.  ``register`` gives the register of the value at a source.
    """
    program: list[RealInstruction] = []
    try:
        _apply(comparison, operands, register, program)
    except _NotReal:
        return None
    return program if len(program) <= MAXIMAL_LENGTH else None


def computation_program(
    computation: Computation, register: Callable[[Source], int]
) -> list[RealInstruction] | None:
    """The program that leaves what is computed; None where only Python can compute it."""
    return comparison_program(computation.operation, computation.operands, register)


def _compile(
    operand: Operand, register: Callable[[Source], int], program: list[RealInstruction]
) -> None:
    if isinstance(operand, Computation):
        _apply(operand.operation, operand.operands, register, program)
    elif isinstance(operand, SymbolSource):
        program.append((Opcode.VALUE, register(operand.source), 0.0))
    elif isinstance(operand, float) or (type(operand) is int and abs(operand) <= _MAX_EXACT):
        program.append((Opcode.CONSTANT, 0, float(operand)))
    else:
        raise _NotReal


def _apply(
    operation: str,
    operands: Sequence[Operand],
    register: Callable[[Source], int],
    program: list[RealInstruction],
) -> None:
    opcode = _OPERATIONS.get(operation)
    kinds = [type(operand) is int for operand in operands]
    # An identity tells integers from floats, and integers alone are computed without rounding.
    if opcode is None or all(kinds) or (operation == "is" and any(kinds)):
        raise _NotReal
    for operand in operands:
        _compile(operand, register, program)
    program.append((opcode, 0, 0.0))
