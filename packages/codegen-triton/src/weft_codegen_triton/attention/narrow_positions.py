"""Positions of queries and keys in 32 bits: torch's are of 64, and a mask compares them for every score."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from weft_loop_ir import Instruction, LoopBody, Value
from weft_loop_ir.bodies import (
    ADD,
    SUB,
    Constant,
    Conversion,
    IndexValue,
    Indirect,
    operation_named,
)

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
        values: dict[int, Value] = {}
        for position, instruction in enumerate(self.body.instructions):
            moved = instruction.moved(values)
            bound = self._bound(moved)
            is_narrow = bound < INT32_SAFE
            values[position] = self._narrow(moved, bound) if is_narrow else self._as_it_was(moved)
        result = None if self.body.result is None else values[self.body.result.index]
        return LoopBody(tuple(self.instructions), result)

    def _append(self, instruction: Instruction) -> Value:
        self.instructions.append(instruction)
        return Value(len(self.instructions) - 1)

    def _converted(self, value: Value, dtype: torch.dtype) -> Value:
        return self._append(operation_named("to_dtype").instruction((value, dtype), dtype))

    def _bound(self, instruction: Instruction) -> float:
        """What the magnitude of an integer of 64 bits does not pass; infinite for others."""
        if instruction.dtype != torch.int64:
            return float("inf")
        if isinstance(instruction, IndexValue):
            return magnitude(instruction.index, self.sizes)
        if isinstance(instruction, Constant):
            return float(abs(instruction.number))
        if instruction.operation in NO_LARGER_THAN_SUM:
            return sum(self.bounds.get(v.index, float("inf")) for v in instruction.operands)
        return float("inf")

    def _narrow(self, instruction: Instruction, bound: float) -> Value:
        made = self._append(instruction.in_dtype(torch.int32))
        self.bounds[made.index] = bound
        return made

    def _as_it_was(self, instruction: Instruction) -> Value:
        takes_any = instruction.operation.gives_bool
        if isinstance(instruction, Conversion):
            if instruction.dtype == torch.float32:
                result = self._in_floats(instruction.value)
                if result is not None:
                    return result
            takes_any = True
        are_narrow = all(value.index in self.bounds for value in instruction.operands)
        if not ((takes_any or isinstance(instruction, Indirect)) and are_narrow):
            wide = {value.index: self._widened(value) for value in instruction.operands}
            instruction = instruction.moved(wide)
        return self._append(instruction)

    def _in_floats(self, value: Value) -> Value | None:
        """A sum or difference, exact on floats as on integers, computed on these; None for another value.

        Positions of queries alone, and of keys alone, are few to convert.
        """
        made = self.instructions[value.index]
        if made.operation not in (ADD, SUB) or value.index not in self.bounds:
            return None
        if self.bounds[value.index] >= FLOAT32_EXACT:
            return None
        parts = tuple(self._converted(operand, torch.float32) for operand in made.operands)
        return self._append(made.operation.instruction(parts, torch.float32))

    def _widened(self, value: Value) -> Value:
        """``value`` in 64 bits, if it was."""
        if value.index not in self.bounds:
            return value
        if value.index not in self.wide:
            self.wide[value.index] = self._converted(value, torch.int64)
        return self.wide[value.index]


NO_LARGER_THAN_SUM = [*map(operation_named, "add sub neg abs maximum minimum".split())]
"""Operations whose results are no larger than the sum of their operands, signs apart."""
