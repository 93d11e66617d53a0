"""Positions of queries and keys in 32 bits: torch's are of 64, and a mask compares them for every score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from weft_loop_ir import Instruction, LoopBody, Value
from weft_loop_ir.ops import BINARY_TO_BOOL

from weft_codegen_triton.kernel.index_bounds import magnitude
from weft_codegen_triton.options import INT32_SAFE

FLOAT32_EXACT = 1 << 24
"""From this magnitude on float32 does not hold all integers."""


def with_narrow_positions(body: LoopBody, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> LoopBody:
    """``body`` with integers that provably fit computed in 32 bits; ``sizes`` bounds its loops."""
    return _Narrowing(body, sizes).narrowed()


class _Narrowing:
    def __init__(self, body: LoopBody, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> None:
        self.body = body
        self.sizes = sizes
        self.instructions: list[Instruction] = []
        self.bounds: dict[int, float] = {}  # of new narrow instructions, by position
        self.wide: dict[int, Value] = {}  # new narrow instructions converted back

    def narrowed(self) -> LoopBody:
        values: list[Value] = []
        for instruction in self.body.instructions:
            arguments = tuple(
                values[a.index] if isinstance(a, Value) else a for a in instruction.arguments
            )
            bound = self._bound(instruction, arguments)
            values.append(
                self._as_it_was(instruction, arguments)
                if bound >= INT32_SAFE
                else self._narrow(instruction, arguments, bound)
            )
        result = None if self.body.result is None else values[self.body.result.index]
        return LoopBody(tuple(self.instructions), result)

    def _append(
        self, operation: str, arguments: tuple[Any, ...], dtype: torch.dtype | None
    ) -> Value:
        self.instructions.append(Instruction(operation, arguments, dtype))
        return Value(len(self.instructions) - 1)

    def _bound(self, instruction: Instruction, arguments: tuple[Any, ...]) -> float:
        """What the magnitude of an integer of 64 bits does not pass; infinite for others."""
        operation = instruction.operation
        if instruction.dtype != torch.int64:
            return float("inf")
        if operation == "index_expr":
            return magnitude(arguments[0], self.sizes)
        if operation == "constant":
            return float(abs(arguments[0]))
        if operation in ("add", "sub", "neg", "abs", "maximum", "minimum"):
            return sum(self.bounds.get(a.index, float("inf")) for a in arguments)
        return float("inf")

    def _narrow(self, instruction: Instruction, arguments: tuple[Any, ...], bound: float) -> Value:
        if instruction.operation in ("index_expr", "constant"):
            arguments = (arguments[0], torch.int32)
        made = self._append(instruction.operation, arguments, torch.int32)
        self.bounds[made.index] = bound
        return made

    def _as_it_was(self, instruction: Instruction, arguments: tuple[Any, ...]) -> Value:
        operation = instruction.operation
        if operation == "to_dtype" and instruction.dtype == torch.float32:
            parts = self._float_parts(arguments[0])
            if parts is not None:
                return self._append(*parts, torch.float32)
        operands = [a for a in arguments if isinstance(a, Value)]
        are_narrow = all(a.index in self.bounds for a in operands)
        takes_any = operation in ("indirect", "to_dtype") or operation in BINARY_TO_BOOL
        if not (takes_any and are_narrow):
            arguments = tuple(self._widened(a) if isinstance(a, Value) else a for a in arguments)
        return self._append(operation, arguments, instruction.dtype)

    def _float_parts(self, value: Value) -> tuple[str, tuple[Value, ...]] | None:
        """``value`` as an operation on floats, exact as on integers; None if it isn't a sum or difference.

        Positions of queries alone, and of keys alone, are few to convert.
        """
        made = self.instructions[value.index]
        if made.operation not in ("add", "sub") or value.index not in self.bounds:
            return None
        if self.bounds[value.index] >= FLOAT32_EXACT:
            return None
        converted = [(a, torch.float32) for a in made.arguments]
        parts = (self._append("to_dtype", pair, torch.float32) for pair in converted)
        return made.operation, tuple(parts)

    def _widened(self, value: Value) -> Value:
        """``value`` in 64 bits, if it was."""
        if value.index not in self.bounds:
            return value
        if value.index not in self.wide:
            self.wide[value.index] = self._append("to_dtype", (value, torch.int64), torch.int64)
        return self.wide[value.index]
