"""Values that every iteration of the other loops would compute anew: computed once, kept in tables.

In ``x[row, column] * rsqrt(variance[column] + epsilon)`` the second factor depends on the vectorised loop
alone.  Where that is worth more than a load, a loop before the kernel's own fills a table with it, by
column.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import sympy
import torch
from weft_loop_ir import Instruction, Kernel, LoopBody, LoopVariable, Value
from weft_loop_ir.bodies import LOAD, STORE, Cost, Indirect, Load, Store
from weft_loop_ir.bodies.edit import chosen

from weft_codegen_cpp.cpu import Cpu
from weft_codegen_cpp.kernel.expressions import COMPUTE_TYPE, coefficient, static_int

MIN_ITERATIONS = 32
"""Iterations of the other loops from which tables pay, where several threads fill one each."""

WORTH = 3
"""The cost, in instructions, of a value that is rather read from a table."""

COSTS = {Cost.FREE: 0, Cost.SIMPLE: 1, Cost.RECIPROCAL: 8, Cost.DIVISION: 8, Cost.FUNCTION: 8}
"""In instructions."""


@dataclass(frozen=True)
class Tables:
    """``fill`` stores each value of ``dtypes``, by the name of its table, at the position of the loop."""

    variable: LoopVariable
    fill: LoopBody
    dtypes: dict[str, torch.dtype]


def with_tables(
    kernel: Kernel, vector: sympy.Symbol | None, cpu: Cpu
) -> tuple[Kernel, Tables | None]:
    """``kernel`` reading its invariant values from tables, where that pays; else as it is.

    ``vector`` is its vectorised outer loop.
    """
    body = kernel.pointwise_body
    if vector is None or body is None or kernel.local_buffers:
        return kernel, None
    variable = next(v for v in kernel.outer if v.symbol == vector)
    others = [v for v in kernel.outer if v is not variable]
    size = static_int(variable.size)
    iterations = [static_int(v.size) for v in others]
    known = math.prod(n for n in iterations if n is not None)
    if size is None or not others or (None not in iterations and known < MIN_ITERATIONS):
        return kernel, None
    roots = _roots(body, vector, {v.symbol for v in others}, kernel.writes)
    dtypes = {f"table{k}": body.instructions[root].dtype for k, root in enumerate(roots)}
    known_dtypes = {name: dtype for name, dtype in dtypes.items() if dtype in COMPUTE_TYPE}
    if not roots or len(known_dtypes) < len(dtypes):
        return kernel, None
    if size * sum(dtype.itemsize for dtype in known_dtypes.values()) > cpu.near_bytes:
        return kernel, None
    names = dict(zip(roots, dtypes, strict=True))
    tables = Tables(variable, _filling(body, names, vector), known_dtypes)
    stage = replace(kernel.stages[0], body=_reading(body, names, vector))
    return replace(kernel, stages=(stage,)), tables


def _roots(
    body: LoopBody, vector: sympy.Symbol, others: set[sympy.Symbol], written: Collection[str]
) -> list[int]:
    """The positions of the values that tables are to hold."""
    bound = others | body.bound_symbols
    costs: list[float | None] = []  # None: not the same in every iteration
    varies: list[bool] = []
    used = set()
    for instruction in body.instructions:
        operands = [value.index for value in instruction.operands]
        free = instruction.free_symbols
        cost = _cost(instruction, vector, written)
        parts = [costs[k] for k in operands]
        is_same = cost is not None and None not in parts and free.isdisjoint(bound)
        costs.append(sum(p for p in (cost, *parts) if p is not None) if is_same else None)
        varies.append(vector in free or any(varies[k] for k in operands))
        if not is_same:
            used.update(operands)
    return sorted(k for k in used if varies[k] and (costs[k] or 0) >= WORTH)


def _cost(instruction: Instruction, vector: sympy.Symbol, written: Collection[str]) -> float | None:
    """Of one instruction by itself; None where it has to run in each iteration."""
    if not instruction.operation.is_repeatable:
        return None
    if isinstance(instruction, Load):
        if instruction.buffer in written:
            return None
        step = coefficient(instruction.index, vector)
        return 0 if step is not None and step in (0, 1) else 8
    return COSTS[instruction.operation.cost]


def _filling(body: LoopBody, names: dict[int, str], vector: sympy.Symbol) -> LoopBody:
    """The instructions that the values of ``names`` need, and stores to their tables."""
    wanted = body.made_of(*map(Value, names))
    stores = [STORE.instruction((name, vector, Value(k), None), None) for k, name in names.items()]
    count = len(body.instructions)
    kept = [*wanted, *range(count, count + len(stores))]
    return chosen([*body.instructions, *stores], kept)


def _reading(body: LoopBody, names: dict[int, str], vector: sympy.Symbol) -> LoopBody:
    """``body`` with loads in place of the values of ``names``."""
    instructions = tuple(
        LOAD.instruction((names[k], vector), i.dtype) if k in names else i
        for k, i in enumerate(body.instructions)
    )
    kept = [k for k, i in enumerate(instructions) if isinstance(i, Store | Indirect)]
    return chosen(instructions, LoopBody(instructions).made_of(*map(Value, kept)))
