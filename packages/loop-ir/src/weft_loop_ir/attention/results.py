"""Where matmuls end up: what reads them may add up groups of them, and copies them elsewhere.

The counterpart of :mod:`~weft_loop_ir.attention.operands`, for what a kernel writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from weft_loop_ir.attention.operands import MatrixOperand, moved, steps_of
from weft_loop_ir.bodies import Access, Conversion, Load, Reduction, Store
from weft_loop_ir.ir import Kernel
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps


@dataclass(frozen=True)
class SummedMatrices:
    """``count`` matrices that are added up, ``step`` apart in a batch."""

    count: sympy.Expr
    step: sympy.Expr


ALONE = SummedMatrices(sympy.S.One, sympy.S.One)


@dataclass(frozen=True)
class Result:
    """Where matrices are stored, summed over ``group``; ``places`` are the steps that would do that.

    The place is the same for all matrices of a group.
    """

    operand: MatrixOperand
    group: SummedMatrices
    places: tuple[int, ...]


def result_of(written: MatrixOperand, place: int, around: ReplacedSteps, sums: bool) -> Result:
    """Where the matrices end up that the step at ``place`` writes; with ``sums`` groups are added up."""
    found = Result(written, ALONE, ())
    while True:
        last = found.places[-1] if found.places else place
        reader = around.only_reader(found.operand.buffer, last)
        after = None if reader is None else _after(found, reader, around)
        if after is None or (after.group != ALONE and not sums):
            return found
        found = after


def _after(result: Result, place: int, around: ReplacedSteps) -> Result | None:
    """``result`` after the step at ``place`` too; None if that does more than to add and copy."""
    kernel, operand = around.step(place), result.operand
    passed = None if type(kernel) is not Kernel else sum_of_load(kernel, operand.buffer)
    if type(kernel) is not Kernel or passed is None:
        return None
    load, store, target = passed
    if not around.is_made_at(target, place):
        return None
    every = kernel.all_loops
    loops = {v.symbol: v.size for v in every if v.size != 1}
    ones = {v.symbol: sympy.S.Zero for v in every if v.size == 1}
    steps = steps_of(load.xreplace(ones), loops)
    if steps is None or not all(n.is_Integer for n in operand.size):
        return None
    if sympy.prod(loops.values()) * result.group.count != sympy.prod(operand.size):
        return None
    group = result.group
    summed = [v.symbol for v in kernel.inner_loops if v.symbol in loops]
    if summed:
        made = _group(steps, summed[0], loops, operand) if len(set(summed)) == 1 else None
        if made is None or group != ALONE:
            return None
        group = made
    found = moved(operand, every, load, store, target)
    if found is None or not found.base.free_symbols <= {MatrixOperand.batch}:
        return None
    if not all(step.is_Integer for step in found.steps):
        return None
    return Result(found, group, (*result.places, place))


def _group(
    steps: dict[sympy.Symbol, sympy.Expr],
    summed: sympy.Symbol,
    loops: dict[sympy.Symbol, sympy.Expr],
    operand: MatrixOperand,
) -> SummedMatrices | None:
    """The matrices that the loop ``summed`` goes through, where they lie one after another."""
    _, rows, columns = operand.size
    apart = sympy.expand(operand.base - rows * columns * MatrixOperand.batch)
    inside = (abs(n) for n in operand.steps)
    step = sympy.cancel(steps[summed] / (rows * columns))
    if apart != 0 or not step.is_Integer or any(n > rows * columns for n in inside):
        return None
    return SummedMatrices(loops[summed], step)


def sum_of_load(kernel: Kernel, name: str) -> tuple[sympy.Expr, sympy.Expr, str] | None:
    """Where ``kernel`` loads from ``name`` and where it stores that, or a sum of it, and in what.

    None if it does more.
    """
    instructions, local = (
        [i for body in kernel.bodies for i in body.instructions],
        kernel.local_names,
    )
    accesses = [i for i in instructions if isinstance(i, Access) and i.buffer not in local]
    reductions = [i.kind for i in instructions if isinstance(i, Reduction)]
    inner = [v for v in kernel.inner_loops if v.size != 1]
    if reductions != ["sum"] * bool(inner) or len(accesses) != 2:
        return None
    if not all(isinstance(i, Access | Conversion | Reduction) for i in instructions):
        return None
    if any(i.dtype is not None and not i.dtype.is_floating_point for i in instructions):
        return None
    load, store = accesses
    if not (isinstance(load, Load) and isinstance(store, Store)):
        return None
    if load.buffer != name or store.mode is not None:
        return None
    return load.index, store.index, store.buffer
