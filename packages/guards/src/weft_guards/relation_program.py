"""Integer relations as programs of a stack machine, which csrc/relation.c runs on 64-bit integers.

A number that does not fit, a division by zero and an overflow make the relation fail: it is then decided
by compiling again, never taken to hold.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import sympy

from ._torch import CeilDiv, CleanDiv, FloorDiv, Max, Min, Mod, PowByNatural, PythonMod
from .symbol_sources import Quantity, SymbolSource

RelationInstruction = tuple[int, int, int]  # opcode, and its two operands (0 where it has fewer)


class Opcode(enum.IntEnum):
    """The opcodes of csrc/relation.h, in its order."""

    CONSTANT = 0  # the number
    SIZE = enum.auto()  # register of a tensor, dimension
    STRIDE = enum.auto()  # register of a tensor, dimension
    VALUE = enum.auto()  # register of an int
    ADD = enum.auto()
    MULTIPLY = enum.auto()
    FLOOR_DIVIDE = enum.auto()
    MODULO = enum.auto()
    MINIMUM = enum.auto()
    MAXIMUM = enum.auto()
    EQUAL = enum.auto()
    UNEQUAL = enum.auto()
    LESS = enum.auto()
    LESS_EQUAL = enum.auto()
    AND = enum.auto()
    OR = enum.auto()
    NOT = enum.auto()


_READS = {
    Quantity.SIZE: Opcode.SIZE,
    Quantity.STRIDE: Opcode.STRIDE,
    Quantity.VALUE: Opcode.VALUE,
}

# SymPy function to opcode: folded over two and more arguments, or taking exactly two.
_FOLDED: dict[type[sympy.Basic], Opcode] = {
    sympy.Add: Opcode.ADD,
    sympy.Mul: Opcode.MULTIPLY,
    Min: Opcode.MINIMUM,
    Max: Opcode.MAXIMUM,
    sympy.Min: Opcode.MINIMUM,
    sympy.Max: Opcode.MAXIMUM,
    sympy.And: Opcode.AND,
    sympy.Or: Opcode.OR,
}
_PAIRS: dict[type[sympy.Basic], Opcode] = {
    FloorDiv: Opcode.FLOOR_DIVIDE,
    CleanDiv: Opcode.FLOOR_DIVIDE,
    Mod: Opcode.MODULO,
    PythonMod: Opcode.MODULO,
    sympy.Eq: Opcode.EQUAL,
    sympy.Ne: Opcode.UNEQUAL,
    sympy.Lt: Opcode.LESS,
    sympy.Le: Opcode.LESS_EQUAL,
}
_SWAPPED: dict[type[sympy.Basic], Opcode] = {
    sympy.Gt: Opcode.LESS,
    sympy.Ge: Opcode.LESS_EQUAL,
}
_POWERS = (sympy.Pow, PowByNatural)
_MAX_POWER = 8
MAXIMAL_DEPTH = 32  # of the machine's stack, as in csrc/relation.h


class _NotInteger(Exception):
    """The relation has a part that the machine does not compute."""


def relation_program(
    condition: sympy.Basic, registers: Mapping[sympy.Symbol, tuple[SymbolSource, int]]
) -> list[RelationInstruction] | None:
    """The program that leaves 1 where ``condition`` holds, else 0; None where only Python can decide it.

    ``registers`` gives each symbol's source and the register that holds the value read there.
    """
    program: list[RelationInstruction] = []
    try:
        _compile(condition, registers, program)
    except _NotInteger:
        return None
    return program if _depth(program) <= MAXIMAL_DEPTH else None


def _compile(
    expression: sympy.Basic,
    registers: Mapping[sympy.Symbol, tuple[SymbolSource, int]],
    program: list[RelationInstruction],
) -> None:
    def each(parts: Sequence[sympy.Basic], opcode: Opcode) -> None:
        for position, part in enumerate(parts):
            _compile(part, registers, program)
            if position:
                program.append((opcode, 0, 0))

    kind = type(expression)
    if isinstance(expression, sympy.Integer):
        if abs(int(expression)) >= 2**62:
            raise _NotInteger
        program.append((Opcode.CONSTANT, int(expression), 0))
    elif isinstance(expression, sympy.Symbol):
        symbol_source, register = registers[expression]
        if not expression.is_integer:
            raise _NotInteger
        program.append((_READS[symbol_source.quantity], register, symbol_source.dimension))
    elif expression in (sympy.true, sympy.false):
        program.append((Opcode.CONSTANT, int(expression is sympy.true), 0))
    elif kind in _FOLDED:
        each(expression.args, _FOLDED[kind])
    elif kind in _PAIRS:
        each(expression.args, _PAIRS[kind])
    elif kind in _SWAPPED:
        each(expression.args[::-1], _SWAPPED[kind])
    elif kind in _POWERS:
        base, exponent = expression.args
        if not isinstance(exponent, sympy.Integer) or not 1 <= int(exponent) <= _MAX_POWER:
            raise _NotInteger
        each([base] * int(exponent), Opcode.MULTIPLY)
    elif kind in _OTHERS:
        _compile(_OTHERS[kind](expression), registers, program)
    elif kind is sympy.Not:
        _compile(expression.args[0], registers, program)
        program.append((Opcode.NOT, 0, 0))
    else:
        raise _NotInteger


def _ceiling_division(expression: sympy.Basic) -> sympy.Basic:
    numerator, denominator = expression.args
    return sympy.Mul(-1, FloorDiv(sympy.Mul(-1, numerator), denominator), evaluate=False)


# Written in terms of others.
_OTHERS: dict[type[sympy.Basic], Callable[[sympy.Basic], sympy.Basic]] = {
    CeilDiv: _ceiling_division,
}


def _depth(program: Sequence[RelationInstruction]) -> int:
    depth = deepest = 0
    for opcode, _, _ in program:
        if opcode <= Opcode.VALUE:
            depth += 1
        elif opcode != Opcode.NOT:
            depth -= 1
        deepest = max(deepest, depth)
    return deepest
