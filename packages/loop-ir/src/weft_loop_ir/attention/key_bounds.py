"""Which keys a query can see at all, from the mask in the computation of its scores.

A score is hidden where it becomes minus infinity, or the lowest number of its dtype beside a visible one:
its weight is 0.  Conditions that compare linear forms of the positions of query and key give bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import sympy
import torch

from weft_loop_ir.bodies import (
    ADD,
    EQ,
    GE,
    GT,
    LE,
    LT,
    NEG,
    SUB,
    Connective,
    Constant,
    Conversion,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    LoopBody,
    Masked,
    Operation,
    Scalar,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import part_of, with_expressions


@dataclass(frozen=True)
class KeyBounds:
    """Keys below ``query + first`` and above ``query + last`` are hidden; None: no bound.

    ``equal`` are pairs of integers, of a row and of a key: a key is hidden where they differ.
    ``least`` and ``most`` are integers of a row, and what is added to each: keys below, or above, are hidden.
    ``every_row_sees``: each query has a key that is not hidden.  ``if_all_see``: ``least`` and ``most`` hold
    where all rows that are looked at have a key between them; else all keys have weights.
    """

    first: sympy.Expr | None
    last: sympy.Expr | None
    equal: tuple[tuple[LoopBody, LoopBody], ...] = ()
    least: tuple[tuple[LoopBody, sympy.Expr], ...] = ()
    most: tuple[tuple[LoopBody, sympy.Expr], ...] = ()
    every_row_sees: bool = False
    if_all_see: bool = False


@dataclass
class _Conditions:
    """What a score has to satisfy to be seen: ``known`` are bounds of ``key - query``, from below and above.

    ``equal``, ``least`` and ``most`` are as in :class:`KeyBounds`. ``is_whole``: there is no other
    condition, but for some that hold where query and key have one position (``holds_at_query``).
    ``fills``: what hidden scores become.
    """

    first: list[sympy.Expr]
    last: list[sympy.Expr]
    fills: list[float]
    equal: list[tuple[LoopBody, LoopBody]] = field(default_factory=list)
    least: list[tuple[LoopBody, sympy.Expr]] = field(default_factory=list)
    most: list[tuple[LoopBody, sympy.Expr]] = field(default_factory=list)
    is_whole: bool = True
    holds_at_query: bool = False


def key_bounds(
    body: LoopBody,
    scores: str,
    query: sympy.Expr,
    key: sympy.Symbol,
    positions: Set[sympy.Symbol],
    extents: tuple[sympy.Expr, sympy.Expr],
    lowest: float,
) -> KeyBounds | None:
    """The bounds of keys that ``body`` leaves visible; None if there are none, or a row may need others.

    ``query`` is the position of the row, made of ``positions`` as ``key`` is; ``extents``: how many queries
    and keys there are.  Numbers up to ``lowest`` hide the score that they replace, or that they are added to.
    """
    assert body.result is not None
    reader = _Reader(body, scores, query, key, positions, lowest)
    reader.visit(body.result)
    found = reader.found
    if not any((found.first, found.last, found.equal, found.least, found.most)):
        return None
    first = sympy.Max(*found.first) if found.first else None
    last = sympy.Min(*found.last) if found.last else None
    is_known = found.is_whole and not (found.least or found.most)
    sees = is_known and _every_row_sees(first, last, extents, found.holds_at_query)
    limits = tuple(found.least), tuple(found.most)
    bounds = KeyBounds(first, last, tuple(found.equal), *limits, every_row_sees=sees)
    if not any(math.isfinite(f) for f in found.fills) or sees:
        return bounds
    # a row without visible keys has weights for all of them
    has_limits_alone = found.is_whole and not (found.first or found.last or found.equal)
    return replace(bounds, if_all_see=True) if has_limits_alone else None


def _every_row_sees(
    first: sympy.Expr | None,
    last: sympy.Expr | None,
    extents: tuple[sympy.Expr, sympy.Expr],
    at_query: bool,
) -> bool:
    """Whether each query has a key between its bounds; with ``at_query``, the one at its position."""
    queries, keys = extents
    gaps = []
    if at_query:
        gaps = [keys - queries, *([] if first is None else [-first])]
    if last is not None:
        gaps.append(last)  # the first query's last key is not before the first key
    if first is not None:
        gaps.append(keys - queries - first)  # nor the last query's first key behind the last
    if first is not None and last is not None:
        gaps.append(last - first)
    return all(sympy.expand(gap).is_nonnegative for gap in gaps)


@dataclass(eq=False)
class _Reader:
    """Walks from a result to the scores, through operations that keep what is hidden hidden."""

    body: LoopBody
    scores: str
    query: sympy.Expr
    key: sympy.Symbol
    positions: Set[sympy.Symbol]
    lowest: float
    found: _Conditions = field(default_factory=lambda: _Conditions([], [], []))

    def visit(self, value: Value) -> None:
        """Collect the conditions under which ``value`` is not hidden."""
        instruction = self.body.at(value)
        if isinstance(instruction, Conversion):
            self.visit(instruction.value)
        elif isinstance(instruction, Where):
            self._visit_choice(instruction, self.visit)
        elif instruction.operation is ADD:
            left, right = instruction.operands
            for operand, other in ((left, right), (right, left)):
                if self.body.under(operand).loads(self.scores):
                    self.visit(operand)
                    self._visit_mask(other)
                    return
            self.found.is_whole = False
        elif not self._is_plain(value):
            self.found.is_whole = False

    def _visit_mask(self, value: Value) -> None:
        """What is added to a score."""
        instruction = self.body.at(value)
        if isinstance(instruction, Conversion):
            self._visit_mask(instruction.value)
        elif isinstance(instruction, Where):
            self._visit_choice(instruction, self._visit_mask)
        elif not self._is_plain(value):
            self.found.is_whole = False

    def _visit_choice(self, choice: Where, visit: Callable[[Value], None]) -> None:
        """``visit`` what is seen, if the other value hides a score."""
        for visible, hidden, holds in (
            (choice.chosen, choice.other, True),
            (choice.other, choice.chosen, False),
        ):
            fill = self._lost(hidden)
            if fill is not None:
                self._note(choice.condition, holds, fill)
                visit(visible)
                return
        self.found.is_whole = False

    def _note(self, condition: Value, holds: bool, fill: float) -> None:
        self.found.fills.append(fill)
        for compared, is_true in self._conjuncts(condition, holds):
            if not self._bound(self.body.at(compared), is_true):
                self.found.is_whole = False

    def _conjuncts(self, condition: Value, holds: bool) -> Iterator[tuple[Value, bool]]:
        """Conditions all of which hold (are true, or false) where ``condition`` is ``holds``."""
        instruction = self.body.at(condition)
        connective = instruction.operation.connective
        if connective is Connective.NOT and instruction.dtype == torch.bool:
            yield from self._conjuncts(instruction.operands[0], not holds)
        elif connective is (Connective.AND if holds else Connective.OR):
            for operand in instruction.operands:
                yield from self._conjuncts(operand, holds)
        elif (
            isinstance(instruction, Conversion)
            and self.body.at(instruction.value).dtype == torch.bool
        ):
            yield from self._conjuncts(instruction.value, holds)
        elif not (isinstance(instruction, Constant) and bool(instruction.number) == holds):
            yield condition, holds

    def _bound(self, compared: Instruction, holds: bool) -> bool:
        """Note what a comparison of positions says of ``key - query``; False where it says something else."""
        operation = compared.operation if holds else compared.operation.negation
        if operation is EQ:
            return self._note_equal(*compared.operands)
        if operation not in (LT, LE, GT, GE):
            return False
        left, right = (self._position(v) for v in compared.operands)
        if left is None or right is None:
            return self._note_limit(compared.operands, (left, right), operation)
        difference = sympy.expand(left - right)
        slope = difference.coeff(self.key)
        if slope == -1:
            difference, operation = -difference, operation.mirror
        elif slope != 1:
            return False
        rest = sympy.expand(difference - self.key + self.query)  # key - query + rest  <op>  0
        if rest.free_symbols & self.positions:
            return False
        if operation in (LE, LT):
            self.found.last.append(-rest - int(operation is LT))
        else:
            self.found.first.append(-rest + int(operation is GT))
        return True

    def _note_limit(
        self,
        operands: Sequence[Value],
        positions: tuple[sympy.Expr | None, sympy.Expr | None],
        operation: Operation | None,
    ) -> bool:
        """Note how an integer of a row bounds the key; False where something else is compared."""
        (left, right), (position, other) = operands, positions
        if position is None:
            left, right, position = right, left, other
            operation = None if operation is None else operation.mirror
        if position is None or self.body.at(right).dtype not in INTEGERS:
            return False
        rest = sympy.expand(position - self.key)  # key + rest  <op>  the integer
        if rest.free_symbols & self.positions or self._depends(right, {self.key}):
            return False
        row = part_of(self.body, right)
        if operation in (LE, LT):
            self.found.most.append((row, -rest - int(operation is LT)))
        else:
            self.found.least.append((row, -rest + int(operation is GT)))
        return True

    def _note_equal(self, left: Value, right: Value) -> bool:
        """Note that numbers of query and key are equal; False where that may hide the key at its position."""
        of_key = [self._depends(v, {self.key}) for v in (left, right)]
        of_query = [self._depends(v, self.query.free_symbols) for v in (left, right)]
        if of_key == [True, False]:
            left, right, of_query = right, left, of_query[::-1]
        elif of_key != [False, True]:
            return False
        if (
            of_query[1]
            or self.body.at(left).dtype not in INTEGERS
            or self.body.at(right).dtype not in INTEGERS
        ):
            return False
        row, key = part_of(self.body, left), part_of(self.body, right)
        self.found.equal.append((row, key))
        at_key = with_expressions(row, lambda e: e.xreplace({self.query: self.key}))
        if not self.query.is_Symbol or at_key != key:
            return False
        self.found.holds_at_query = True
        return True

    def _depends(self, value: Value, symbols: Set[sympy.Symbol]) -> bool:
        """Whether ``value`` may vary with ``symbols``, a score, or what is loaded at a computed place."""
        part = self.body.under(value)
        varying = symbols | self.body.bound_symbols
        is_of_scores = part.holds(Masked) or part.loads(self.scores)
        return bool(is_of_scores) or not varying.isdisjoint(part.free_symbols)

    def _position(self, value: Value) -> sympy.Expr | None:
        """An integer as an expression over positions and sizes."""
        instruction = self.body.at(value)
        if instruction.dtype is None or instruction.dtype.is_floating_point:
            return None
        if isinstance(instruction, IndexValue):
            return instruction.index
        if isinstance(instruction, Constant):
            return sympy.Integer(int(instruction.number))
        if instruction.dtype != torch.int64:
            return None
        if isinstance(instruction, Conversion):
            return self._position(instruction.value)
        signs = SIGNS.get(instruction.operation)
        if signs is None:
            return None
        operands: list[sympy.Expr] = []
        for operand in instruction.operands:
            position = self._position(operand)
            if position is None:
                return None
            operands.append(position)
        return sympy.Add(*(s * o for s, o in zip(signs, operands, strict=True)))

    def _lost(self, value: Value) -> float | None:
        """The number that ``value`` is, if it hides a score."""
        instruction = self.body.at(value)
        while isinstance(instruction, Conversion):
            instruction = self.body.at(instruction.value)
        number = instruction.number if isinstance(instruction, Constant) else 0.0
        return float(number) if number <= self.lowest else None

    def _is_plain(self, value: Value) -> bool:
        """Whether nothing is hidden in ``value``: it is made of scores, positions and small numbers."""
        for instruction in self.body.under(value).instructions:
            if isinstance(instruction, Load) and instruction.buffer != self.scores:
                return False
            if isinstance(instruction, Constant) and not abs(instruction.number) < -self.lowest:
                return False
            if isinstance(instruction, Masked | Indirect | Scalar):
                return False
        return True


SIGNS = {ADD: (1, 1), SUB: (1, -1), NEG: (-1,)}
"""How operations on integers add their operands."""
INTEGERS = (torch.int64, torch.int32)
