"""Numbers and sizes that depend on data: the calls that give them, and what is relied on of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx

from weft_loop_ir.data_symbols import RELATIONS
from weft_loop_ir.expressions import from_torch, to_expression
from weft_loop_ir.ir import ExternCall, Requirement, SymbolDefinition
from weft_loop_ir.unsupported import Unsupported

aten = torch.ops.aten

READ = aten._local_scalar_dense.default
ASSERTION = aten._assert_scalar.default

_HINT = "Leave the operator outside the graph."


Blocks = Sequence[list[Any]]
"""What has been appended to each open block: the graph's, then those of the regions around."""


class DataSymbols:
    """The symbols that calls of one lowering define; ``blocks`` are the open ones, the innermost last."""

    def __init__(self) -> None:
        self.defined: set[sympy.Symbol] = set()
        self._required: set[tuple[str, sympy.Expr]] = set()
        self._carried: set[sympy.Symbol] = set()  # sizes that a loop carries
        self._sizes: dict[sympy.Symbol, sympy.Symbol] = {}  # as symbols that are not below zero
        self._relied: list[sympy.Expr] = []  # at least zero wherever a loop's body runs

    def begin_carried(self, symbols: Iterable[sympy.Symbol]) -> None:
        """``symbols`` are sizes of a loop's state from now on."""
        self.defined.update(symbols)
        self._carried.update(symbols)
        self._note_sizes(symbols)

    def _note_sizes(self, symbols: Iterable[sympy.Symbol]) -> None:
        self._sizes |= {s: sympy.Dummy(integer=True, nonnegative=True) for s in symbols}

    def _holds_in_body(self, relation: str, expression: sympy.Expr) -> bool:
        """Whether a relation on sizes that a loop carries follows from its test, or as they are sizes."""
        if relation == "nonzero":
            return any(self._holds_in_body("nonnegative", s * expression - 1) for s in (1, -1))
        rest = (expression - known for known in (sympy.S.Zero, *self._relied))
        return relation == "nonnegative" and any(
            sympy.expand(r.xreplace(self._sizes)).is_nonnegative for r in rest
        )

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """What is defined meanwhile is known in a region's block alone: others may define it again.

        So do a loop and its backward, which makes the sizes of an iteration again.  What the test of an inner
        loop says holds in its body, which may not run.
        """
        before = set(self.defined), set(self._required), list(self._relied)
        try:
            yield
        finally:
            self.defined, self._required, self._relied = before

    def sizes_given_by(
        self, fakes: Iterable[tuple[int, Any]], known: Iterable[sympy.Symbol]
    ) -> tuple[SymbolDefinition, ...]:
        """Define the symbols that are sizes of results, by position, and not in ``known``."""
        found = []
        for position, fake in fakes:
            for dimension, extent in enumerate(fake.shape):
                symbol = to_expression(extent)
                if symbol.is_Symbol and symbol not in known and symbol not in self.defined:
                    self.defined.add(symbol)
                    found.append(SymbolDefinition(symbol, position, dimension))
        self._note_sizes(definition.symbol for definition in found)
        return tuple(found)

    def require(self, blocks: Blocks, relation: str, expression: sympy.Expr, message: str) -> None:
        """Check a relation right after the last call among ``blocks`` that defines a part of it.

        What a region relies on of a number from outside is checked outside, whether the region runs or not.

        :raises Unsupported: none does.
        """
        requirement = Requirement(relation, expression, message)
        if expression.is_number:
            if not requirement.holds(int(expression)):
                raise Unsupported("data-dependent condition", message, _HINT)
            return
        if (relation, expression) in self._required:
            return
        if not expression.free_symbols.isdisjoint(self._carried):
            if self._holds_in_body(relation, expression):
                return
            raise Unsupported("condition on sizes that differ by iteration", message, _HINT)
        for nodes in reversed(blocks):
            for position in reversed(range(len(nodes))):
                call = nodes[position]
                if not isinstance(call, ExternCall):
                    continue
                if expression.free_symbols & {d.symbol for d in call.defines}:
                    self._required.add((relation, expression))
                    nodes[position] = replace(call, requires=(*call.requires, requirement))
                    return
        raise Unsupported("data-dependent condition", message, _HINT)

    def require_sizes(self, blocks: Blocks, fake: torch.Tensor) -> None:
        """Check that the sizes of a tensor are none below zero."""
        for extent in fake.shape:
            if isinstance(extent, int):
                continue
            expression = to_expression(extent)
            if expression.free_symbols & self.defined and not expression.is_nonnegative:
                self.require(blocks, "nonnegative", expression, f"a size of {expression}")

    def require_some(self, blocks: Blocks, extents: Iterable[sympy.Expr]) -> None:
        """Check that there is something to reduce, for reductions that nothing has no result of."""
        for extent in extents:
            if extent.free_symbols & self.defined:
                self.require(blocks, "nonzero", extent, f"a reduction of {extent} elements")

    def require_condition(self, blocks: Blocks, condition: Any, message: str) -> None:
        """Check what a graph asserts.

        :raises Unsupported: it is more than comparisons of integers, or equations of which one holds.
        """
        if isinstance(condition, torch.SymBool):
            condition = condition.node.expr
        if condition in (True, sympy.true):
            return
        parts = condition.args if isinstance(condition, sympy.And) else (condition,)
        for part in parts:
            kind, expression = _relation(part)
            if kind == "nonnegative" and not expression.free_symbols.isdisjoint(self._carried):
                self._relied.append(expression)  # what the loop's test says
                continue
            self.require(blocks, kind, expression, message)


def _relation(condition: Any) -> tuple[str, sympy.Expr]:
    """A comparison as the relation of a requirement, and what it is of.

    One of several equations holds where the product of their differences is zero: so a row that is written is
    of the size there is, or is one number.
    """
    if isinstance(condition, sympy.Or) and all(isinstance(p, sympy.Eq) for p in condition.args):
        return "zero", sympy.Mul(*(_relation(part)[1] for part in condition.args))
    relation = RELATIONS.get(type(condition))
    if relation is None or not all(_is_integer(side) for side in condition.args):
        raise Unsupported("data-dependent condition", str(condition), _HINT)
    kind, difference = relation
    return kind, difference(*map(from_torch, condition.args))


def _is_integer(expression: Any) -> bool:
    return isinstance(expression, sympy.Expr) and bool(expression.is_integer)
