"""Predicates on numbers of a call: sizes, strides, integers, floats, and what is computed from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import sympy

from ..computations import (
    COMPARISONS,
    Computation,
    Operand,
    operand_key,
    operand_sources,
    operand_text,
    read_operand,
)
from ..operations import NativeStep, Operation, Registers
from ..real_program import comparison_program, computation_program
from ..relation_program import relation_program
from ..sources import Scope, Source
from ..symbol_sources import Quantity, Readable, SymbolSource, expression_function, expression_text
from .base import Predicate

RELATION_ADVICE = "keep sizes and numbers in this relation, or change the line that needs it"


@dataclass(frozen=True)
class IsFinite(Predicate):
    """The value is a float, neither infinite nor NaN: code for a float that varies is for these."""

    cost = 2
    advice = "pass a finite float; each other one is compiled for itself"

    def holds(self, value: Any, scope: Scope) -> bool:
        return type(value) is float and math.isfinite(value)

    def expected_text(self) -> str:
        return "a finite float"

    def native_step(self, registers: Registers) -> NativeStep:
        return Operation.CHECK_FINITE, registers.own, 0, None


@dataclass(frozen=True, eq=False)
class NumbersCompare(Predicate):
    """``left <comparison> right`` is ``outcome``; the guard's own value is not looked at.

    ``comparison`` is a name in :data:`COMPARISONS`.
    """

    comparison: str
    left: Operand
    right: Operand
    outcome: bool

    cost = 4
    advice = RELATION_ADVICE

    def sources(self) -> tuple[Source, ...]:
        return operand_sources((self.left, self.right))

    def holds(self, value: Any, scope: Scope) -> bool:
        numbers = read_operand(self.left, scope), read_operand(self.right, scope)
        return COMPARISONS[self.comparison][0](*numbers) is self.outcome

    def identity(self) -> Hashable:
        return self.comparison, operand_key(self.left), operand_key(self.right), self.outcome

    def expected_text(self) -> str:
        texts = operand_text(self.left), operand_text(self.right)
        text = COMPARISONS[self.comparison][1].format(*texts)
        return text if self.outcome else f"not {text}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return ", ".join(
            f"{operand_text(operand)} = {read_operand(operand, scope)}"
            for operand in (self.left, self.right)
            if not isinstance(operand, int | float)
        )

    def native_step(self, registers: Registers) -> NativeStep | None:
        program = comparison_program(self.comparison, (self.left, self.right), registers.of)
        if program is None:
            return None
        return Operation.CHECK_REAL, -1, int(self.outcome), tuple(program)


@dataclass(frozen=True, eq=False)
class IsComputable(Predicate):
    """The computation gives a float and raises nothing; the guard's own value is not looked at."""

    computation: Computation

    cost = 4
    advice = RELATION_ADVICE

    def sources(self) -> tuple[Source, ...]:
        return self.computation.sources()

    def holds(self, value: Any, scope: Scope) -> bool:
        self.computation.read(scope)
        return True

    def identity(self) -> Hashable:
        return operand_key(self.computation)

    def expected_text(self) -> str:
        return f"{self.computation.name()} to give a float"

    def native_step(self, registers: Registers) -> NativeStep | None:
        program = computation_program(self.computation, registers.of)
        return None if program is None else (Operation.CHECK_REAL, -1, -1, tuple(program))


@dataclass(frozen=True)
class ShapeRelation(Predicate):
    """``condition`` holds of the numbers of ``symbol_sources``; the guard's own value is not looked at.

    ``condition`` is a SymPy condition (``Eq``, ``Ne``, ``Lt``, ``And``, ``Not``, ...) over integer or real
    symbols, with torch's functions (``FloorDiv``, ``Mod`` ...), each with one of ``symbol_sources``.

    :raises ValueError: a symbol has no source.
    """

    condition: sympy.Basic
    symbol_sources: tuple[tuple[sympy.Symbol, Readable], ...]

    cost = 4
    advice = RELATION_ADVICE

    def __post_init__(self) -> None:
        needed = self.condition.free_symbols
        used = tuple(
            sorted((p for p in self.symbol_sources if p[0] in needed), key=lambda p: p[1].name())
        )
        missing = needed - {symbol for symbol, _ in used}
        if missing:
            raise ValueError(f"no source for {', '.join(sorted(map(str, missing)))}")
        object.__setattr__(self, "symbol_sources", used)

    def sources(self) -> tuple[Source, ...]:
        """The sources of all numbers, without repetition."""
        return tuple(
            dict.fromkeys(s for _, number in self.symbol_sources for s in number.sources())
        )

    def holds(self, value: Any, scope: Scope) -> bool:
        return bool(self._function(*(number.read(scope) for _, number in self.symbol_sources)))

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        return expression_function(self.condition, [symbol for symbol, _ in self.symbol_sources])

    def identity(self) -> Hashable:
        return self.condition, self.symbol_sources

    def expected_text(self) -> str:
        return expression_text(
            self.condition,
            {symbol: number.name() for symbol, number in self.symbol_sources},
        )

    def found_text(self, value: Any, scope: Scope) -> str:
        return ", ".join(
            f"{number.name()} = {number.read(scope)}" for _, number in self.symbol_sources
        )

    def native_step(self, registers: Registers) -> NativeStep | None:
        """A program where every tensor in it has been found to be a plain one."""
        symbol_sources = [
            (s, number) for s, number in self.symbol_sources if isinstance(number, SymbolSource)
        ]
        if len(symbol_sources) != len(self.symbol_sources) or not all(
            number.quantity is Quantity.VALUE or registers.is_plain_tensor(number.source)
            for _, number in symbol_sources
        ):
            return None
        read = {s: (number, registers.of(number.source)) for s, number in symbol_sources}
        program = relation_program(self.condition, read)
        return None if program is None else (Operation.CHECK_RELATION, -1, 0, tuple(program))
