"""Floating-point numbers computed from sizes, such as ``size ** -0.5``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from weft_loop_ir.evaluate_index import evaluate_expression
from weft_loop_ir.expressions import from_torch
from weft_loop_ir.ir import Value
from weft_loop_ir.unsupported import Unsupported

if TYPE_CHECKING:
    from weft_loop_ir.recording import BodyRecorder

DIVISIONS = ("FloatTrueDiv", "IntTrueDiv")


@dataclass(frozen=True)
class SizeFloat:
    """A double that the input sizes determine: ``operation`` of ``operands``.

    ``operation`` is ``"size"`` (of an integer index expression), ``"constant"`` (of a float), or
    ``"add"``, ``"mul"``, ``"truediv"``, ``"pow"``, ``"sqrt"`` of other numbers.
    """

    operation: str
    operands: tuple[SizeFloat | sympy.Expr | float, ...]

    @property
    def free_symbols(self) -> set[sympy.Symbol]:
        """The size symbols that it depends on."""
        found: set[sympy.Symbol] = set()
        for operand in self.operands:
            if isinstance(operand, SizeFloat | sympy.Expr):
                found |= operand.free_symbols
        return found

    @property
    def _leaf(self) -> Any:
        """The operand of a size or a constant."""
        return self.operands[0]

    def evaluate(self, sizes: Mapping[sympy.Symbol, int]) -> float:
        """The number for these sizes, as Python computes it."""
        if self.operation == "size":
            return float(evaluate_expression(self._leaf, sizes))
        if self.operation == "constant":
            return float(self._leaf)
        left, *rest = (o.evaluate(sizes) for o in self.operands if isinstance(o, SizeFloat))
        if self.operation == "sqrt":
            return math.sqrt(left)
        (right,) = rest
        if self.operation == "add":
            return left + right
        if self.operation == "mul":
            return left * right
        return left / right if self.operation == "truediv" else float(left**right)

    def record(self, ops: BodyRecorder) -> Value:
        """The number as a float64 value of a loop body."""
        if self.operation == "size":
            return ops.to_dtype(ops.index_expr(self._leaf, torch.int64), torch.float64)
        if self.operation == "constant":
            return ops.constant(float(self._leaf), torch.float64)
        values = [o.record(ops) for o in self.operands if isinstance(o, SizeFloat)]
        if len(values) == 1:
            return ops.unary(self.operation, values[0])
        return ops.binary(self.operation, values[0], values[1])


def size_float(expression: sympy.Expr) -> SizeFloat:
    """torch's symbolic float as a :class:`SizeFloat`; raises :class:`Unsupported` for other functions."""
    if expression.is_number:
        return SizeFloat("constant", (float(expression),))
    name = type(expression).__name__
    arguments = expression.args
    if name == "ToFloat":
        return SizeFloat("size", (from_torch(arguments[0]),))
    if name in DIVISIONS:
        return SizeFloat("truediv", (_operand(arguments[0]), _operand(arguments[1])))
    if name in ("FloatPow", "Pow"):
        return SizeFloat("pow", (_operand(arguments[0]), _operand(arguments[1])))
    if name == "OpaqueUnaryFn_sqrt":
        return SizeFloat("sqrt", (_operand(arguments[0]),))
    if name in ("Add", "Mul"):
        result = _operand(arguments[0])
        for argument in arguments[1:]:
            result = SizeFloat(name.lower(), (result, _operand(argument)))
        return result
    raise Unsupported(
        "symbolic number",
        str(expression),
        "Numbers are sums, products, quotients, powers and square roots of sizes.",
    )


def _operand(expression: sympy.Expr) -> SizeFloat:
    """An operand, which is an integer where torch divides or multiplies by one."""
    if expression.is_number:
        return SizeFloat("constant", (float(expression),))
    if expression.is_integer and type(expression).__name__ not in ("FloatPow", *DIVISIONS):
        return SizeFloat("size", (from_torch(expression),))
    return size_float(expression)
