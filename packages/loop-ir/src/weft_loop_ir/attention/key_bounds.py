"""Which keys a query can see at all, from the mask in the computation of its scores.

A score is hidden where it becomes minus infinity, or the lowest number of its dtype beside a visible one:
its weight is 0.  Conditions that compare linear forms of the positions of query and key give bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

import sympy
import torch

from weft_loop_ir.ir import Instruction, LoopBody, Value
from weft_loop_ir.schedule.transform import without_unused


@dataclass(frozen=True)
class KeyBounds:
    """Keys below ``query + first`` and above ``query + last`` are hidden; None: no bound.

    ``equal`` are pairs of integers, of a line and of a key: a key is hidden where they differ.
    ``every_line_sees``: each query has a key that is not hidden.
    """

    first: sympy.Expr | None
    last: sympy.Expr | None
    equal: tuple[tuple[LoopBody, LoopBody], ...] = ()
    every_line_sees: bool = False


@dataclass
class _Conditions:
    """What a score has to satisfy to be seen: ``known`` are bounds of ``key - query``, from below and above.

    ``equal`` are pairs as in :class:`KeyBounds`.  ``is_whole``: there is no other condition, but for some
    that hold where query and key have one position (``holds_at_query``).  ``fills``: what hidden scores
    become.
    """

    first: list[sympy.Expr]
    last: list[sympy.Expr]
    fills: list[float]
    equal: list[tuple[LoopBody, LoopBody]] = field(default_factory=list)
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
    """The bounds of keys that ``body`` leaves visible; None if there are none, or a line may need others.

    ``query`` is the position of the line, made of ``positions`` as ``key`` is; ``extents``: how many queries
    and keys there are.  Numbers up to ``lowest`` hide the score that they replace, or that they are added to.
    """
    assert body.result is not None
    reader = _Reader(body, scores, query, key, positions, lowest)
    reader.visit(body.result)
    found = reader.found
    if not found.first and not found.last and not found.equal:
        return None
    first = sympy.Max(*found.first) if found.first else None
    last = sympy.Min(*found.last) if found.last else None
    sees = found.is_whole and _every_line_sees(first, last, extents, found.holds_at_query)
    if any(math.isfinite(f) for f in found.fills) and not sees:
        return None  # a line without visible keys shares among all of them
    return KeyBounds(first, last, tuple(found.equal), sees)


def _every_line_sees(
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


class _Reader:
    """Walks from a result to the scores, through operations that keep what is hidden hidden."""

    def __init__(
        self,
        body: LoopBody,
        scores: str,
        query: sympy.Expr,
        key: sympy.Symbol,
        positions: Set[sympy.Symbol],
        lowest: float,
    ) -> None:
        self.body = body
        self.scores = scores
        self.query = query
        self.key = key
        self.positions = positions
        self.lowest = lowest
        self.found = _Conditions([], [], [])

    def at(self, value: Value) -> Instruction:
        return self.body.instructions[value.index]

    def visit(self, value: Value) -> None:
        """Collect the conditions under which ``value`` is not hidden."""
        instruction = self.at(value)
        operation, arguments = instruction.operation, instruction.arguments
        if operation == "to_dtype":
            self.visit(arguments[0])
        elif operation == "where":
            condition, chosen, other = arguments
            for visible, hidden, holds in ((chosen, other, True), (other, chosen, False)):
                fill = self._lost(hidden)
                if fill is not None:
                    self._note(condition, holds, fill)
                    self.visit(visible)
                    return
            self.found.is_whole = False
        elif operation == "add":
            for operand, other in (arguments, arguments[::-1]):
                if self._is_of_scores(operand):
                    self.visit(operand)
                    self._visit_mask(other)
                    return
            self.found.is_whole = False
        elif not self._is_plain(value):
            self.found.is_whole = False

    def _visit_mask(self, value: Value) -> None:
        """What is added to a score."""
        instruction = self.at(value)
        if instruction.operation == "to_dtype":
            self._visit_mask(instruction.arguments[0])
        elif instruction.operation == "where":
            condition, chosen, other = instruction.arguments
            for visible, hidden, holds in ((chosen, other, True), (other, chosen, False)):
                fill = self._lost(hidden)
                if fill is not None:
                    self._note(condition, holds, fill)
                    self._visit_mask(visible)
                    return
            self.found.is_whole = False
        elif not self._is_plain(value):
            self.found.is_whole = False

    def _note(self, condition: Value, holds: bool, fill: float) -> None:
        self.found.fills.append(fill)
        for compared, is_true in self._conjuncts(condition, holds):
            if not self._bound(self.at(compared), is_true):
                self.found.is_whole = False

    def _conjuncts(self, condition: Value, holds: bool) -> Iterator[tuple[Value, bool]]:
        """Conditions all of which hold (are true, or false) where ``condition`` is ``holds``."""
        instruction = self.at(condition)
        operation, arguments = instruction.operation, instruction.arguments
        if operation in ("logical_not", "bitwise_not") and instruction.dtype == torch.bool:
            yield from self._conjuncts(arguments[0], not holds)
        elif operation in (
            ("bitwise_and", "logical_and") if holds else ("bitwise_or", "logical_or")
        ):
            for argument in arguments:
                yield from self._conjuncts(argument, holds)
        elif operation == "to_dtype" and self.at(arguments[0]).dtype == torch.bool:
            yield from self._conjuncts(arguments[0], holds)
        elif not (operation == "constant" and bool(arguments[0]) == holds):
            yield condition, holds

    def _bound(self, compared: Instruction, holds: bool) -> bool:
        """Note what a comparison of positions says of ``key - query``; False where it says something else."""
        if compared.operation == ("eq" if holds else "ne"):
            return self._note_equal(*compared.arguments)
        if compared.operation not in NEGATED:
            return False
        operation = compared.operation if holds else NEGATED[compared.operation]
        left, right = (self._position(v) for v in compared.arguments)
        if left is None or right is None:
            return False
        difference = sympy.expand(left - right)
        slope = difference.coeff(self.key)
        if slope == -1:
            difference, operation = -difference, MIRRORED[operation]
        elif slope != 1:
            return False
        rest = sympy.expand(difference - self.key + self.query)  # key - query + rest  <op>  0
        if rest.free_symbols & self.positions:
            return False
        if operation in ("le", "lt"):
            self.found.last.append(-rest - int(operation == "lt"))
        else:
            self.found.first.append(-rest + int(operation == "gt"))
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
            or self.at(left).dtype not in INTEGERS
            or self.at(right).dtype not in INTEGERS
        ):
            return False
        line, key = (
            without_unused(LoopBody(self.body.instructions, v), False) for v in (left, right)
        )
        self.found.equal.append((line, key))
        if not self.query.is_Symbol or _renamed(line, self.query, self.key) != key.instructions:
            return False
        self.found.holds_at_query = True
        return True

    def _depends(self, value: Value, symbols: Set[sympy.Symbol]) -> bool:
        """Whether ``value`` may vary with ``symbols``, a score, or what is loaded at a computed place."""
        for instruction in self._under(value):
            operation, arguments = instruction.operation, instruction.arguments
            if operation == "masked" or (operation == "load" and arguments[0] == self.scores):
                return True
            for argument in arguments:
                if isinstance(argument, sympy.Expr) and any(
                    s in symbols or s.name.startswith("indirect") for s in argument.free_symbols
                ):
                    return True
        return False

    def _position(self, value: Value) -> sympy.Expr | None:
        """An integer as an expression over positions and sizes."""
        instruction = self.at(value)
        operation, arguments = instruction.operation, instruction.arguments
        if instruction.dtype is None or instruction.dtype.is_floating_point:
            return None
        if operation == "index_expr":
            expression: sympy.Expr = arguments[0]
            return expression
        if operation == "constant":
            return sympy.Integer(int(arguments[0]))
        if operation == "to_dtype":
            return self._position(arguments[0]) if instruction.dtype == torch.int64 else None
        if operation not in ("add", "sub", "neg") or instruction.dtype != torch.int64:
            return None
        operands: list[sympy.Expr] = []
        for argument in arguments:
            position = self._position(argument)
            if position is None:
                return None
            operands.append(position)
        signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[operation]
        return sympy.Add(*(s * o for s, o in zip(signs, operands, strict=True)))

    def _lost(self, value: Value) -> float | None:
        """The number that ``value`` is, if it hides a score."""
        instruction = self.at(value)
        while instruction.operation == "to_dtype":
            instruction = self.at(instruction.arguments[0])
        number = instruction.arguments[0] if instruction.operation == "constant" else 0.0
        return float(number) if isinstance(number, int | float) and number <= self.lowest else None

    def _is_of_scores(self, value: Value) -> bool:
        return any(
            i.operation == "load" and i.arguments[0] == self.scores for i in self._under(value)
        )

    def _is_plain(self, value: Value) -> bool:
        """Whether nothing is hidden in ``value``: it is made of scores, positions and small numbers."""
        for instruction in self._under(value):
            operation, arguments = instruction.operation, instruction.arguments
            if operation == "load" and arguments[0] != self.scores:
                return False
            if operation == "constant" and not abs(arguments[0]) < -self.lowest:
                return False
            if operation in ("masked", "indirect", "scalar"):
                return False
        return True

    def _under(self, value: Value) -> Iterator[Instruction]:
        """The instructions that ``value`` is computed by."""
        pending, seen = [value], {value}
        while pending:
            instruction = self.at(pending.pop())
            yield instruction
            for argument in instruction.arguments:
                if isinstance(argument, Value) and argument not in seen:
                    seen.add(argument)
                    pending.append(argument)


NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}
MIRRORED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}
INTEGERS = (torch.int64, torch.int32)


def _renamed(body: LoopBody, symbol: sympy.Symbol, other: sympy.Symbol) -> tuple[Instruction, ...]:
    """The instructions of ``body`` at ``other`` in the place of ``symbol``."""
    return tuple(
        replace(
            instruction,
            arguments=tuple(
                a.xreplace({symbol: other}) if isinstance(a, sympy.Expr) else a
                for a in instruction.arguments
            ),
        )
        for instruction in body.instructions
    )
