"""Matrices that kernels take and give, one for each element of a batch, and the rows of them.

Operands are read where they lie before copies, results written where they end up: what reads these may add
up groups of them, and copy them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
import torch

from weft_loop_ir.bodies import Access, Conversion, Load, Reduction, Store
from weft_loop_ir.digits import Digit, digits_of
from weft_loop_ir.expressions import FloorDiv, Mod, loop_symbol
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import BufferView, Kernel, Layout, LoopVariable
from weft_loop_ir.ops import HALVES
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps

FindWriter = Callable[[str], Kernel | None]
"""The kernel that alone writes a buffer, if its operands still hold what it read."""


@dataclass(frozen=True)
class MatrixOperand:
    """The matrices ``[batch, rows, columns]`` of a buffer, in elements: where each begins, and its steps.

    ``base`` is an expression over :attr:`batch`, which counts the matrices, and sizes.
    """

    batch: ClassVar[sympy.Symbol] = loop_symbol("batch", 0)

    buffer: str
    size: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    base: sympy.Expr
    steps: tuple[sympy.Expr, sympy.Expr]

    @classmethod
    def of(cls, buffer: str, place: BufferView | Layout) -> MatrixOperand:
        """All of ``place``, of two or three dimensions."""
        missing = 3 - len(place.size)
        batch, rows, columns = (sympy.S.One,) * missing + place.size
        step, *steps = (sympy.S.Zero,) * missing + place.stride
        base = place.offset + cls.batch * step
        return cls(buffer, (batch, rows, columns), base, (steps[0], steps[1]))

    def turned(self) -> MatrixOperand:
        """The same with rows and columns exchanged."""
        batch, rows, columns = self.size
        row_step, column_step = self.steps
        return MatrixOperand(
            self.buffer, (batch, columns, rows), self.base, (column_step, row_step)
        )


def operand_of(
    view: BufferView, writer: FindWriter, before_widening: bool = False
) -> MatrixOperand:
    """The matrices of ``view`` (of two or three dimensions), before copies that kernels made of them.

    With ``before_widening`` conversions from 16 bits to float32 are copies, too.
    """
    found = MatrixOperand.of(view.buffer, view)
    while True:
        before = _before_copy(found, writer, before_widening)
        if before is None:
            return found
        found = before


def _before_copy(
    operand: MatrixOperand, writer: FindWriter, before_widening: bool
) -> MatrixOperand | None:
    """``operand`` in what its buffer is a copy of; None if that is not known."""
    kernel = writer(operand.buffer)
    copied = None if kernel is None else _copied(kernel, operand.buffer, before_widening)
    if kernel is None or copied is None:
        return None
    source, load, store = copied
    return moved(operand, kernel.outer, store, load, source)


def moved(
    operand: MatrixOperand,
    every: Sequence[LoopVariable],
    before: sympy.Expr,
    after: sympy.Expr,
    buffer: str,
) -> MatrixOperand | None:
    """``operand`` in ``buffer``, where loops over ``every`` element have it at ``after``, not ``before``.

    None unless the loops are the digits of a position, and what is at ``after`` are matrices.
    """
    ones = {v.symbol: sympy.S.Zero for v in every if v.size == 1}
    loops = {v.symbol: v.size for v in every if v.size != 1}
    steps = steps_of(before.xreplace(ones), loops)
    if steps is None:
        return None
    row, column = loop_symbol("row", 0), loop_symbol("column", 0)
    batch, rows, columns = operand.size
    ranges = ranges_for(((MatrixOperand.batch, batch), (row, rows), (column, columns)))
    place = sympy.expand(operand.base + row * operand.steps[0] + column * operand.steps[1])
    digits = {s: ranges.simplify(Mod(FloorDiv(place, steps[s]), n)) for s, n in loops.items()}
    index = sympy.expand(after.xreplace({**digits, **ones}))
    row_step, column_step = index.coeff(row), index.coeff(column)
    base = sympy.expand(index - row * row_step - column * column_step)
    if {row, column} & (base.free_symbols | row_step.free_symbols | column_step.free_symbols):
        return None
    return MatrixOperand(buffer, operand.size, base, (row_step, column_step))


def steps_of(
    index: sympy.Expr, loops: Mapping[sympy.Symbol, sympy.Expr]
) -> dict[sympy.Symbol, sympy.Expr] | None:
    """What ``index`` multiplies loops of these sizes by; None unless they are the digits of a position."""
    digits = digits_of(index, loops)
    if digits is None or not all(n.is_Integer for n in loops.values()):
        return None
    return {digit.loop.symbol: digit.step for digit in digits}


def _copied(
    kernel: Kernel, name: str, before_widening: bool
) -> tuple[str, sympy.Expr, sympy.Expr] | None:
    """The buffer that ``kernel`` copies to ``name``, where it loads and where it stores."""
    body = kernel.pointwise_body
    store = None if body is None else body.only_store(name)
    if body is None or store is None:
        return None
    load = body.at(store.value)
    if before_widening and isinstance(load, Conversion) and load.dtype == torch.float32:
        source = body.at(load.value)
        load = source if source.dtype in HALVES else load
    loops = {loop.symbol for loop in kernel.outer}
    if not isinstance(load, Load) or load.index.free_symbols - loops:
        return None
    return load.buffer, load.index, store.index


# -- rows of scores ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreRows:
    """``digits`` are the loops, of ``batch * queries + row``; a loop of size 1 is none.

    ``batch`` and ``row`` are the matrix and its row as expressions over the loops; ``query`` is the row
    where no loop runs over rows of several matrices, else None.  ``first_key``: the index of a row's first
    element.
    """

    digits: tuple[Digit, ...]
    batches: sympy.Expr
    queries: sympy.Expr
    batch: sympy.Expr
    row: sympy.Expr
    query: sympy.Expr | None
    first_key: sympy.Expr

    @property
    def number(self) -> sympy.Expr:
        """The number of the row among those of all matrices."""
        return sympy.Add(*(digit.loop.symbol * digit.step for digit in self.digits))

    @property
    def positions(self) -> frozenset[sympy.Symbol]:
        """The loops that vary with the row of a matrix."""
        loops = frozenset(digit.loop.symbol for digit in self.digits)
        return loops if self.query is None else loops & self.query.free_symbols


def score_rows_of(
    index: sympy.Expr, kernel: Kernel, batches: sympy.Expr, queries: sympy.Expr, keys: sympy.Expr
) -> ScoreRows | None:
    """The loops by ``index``, where an element of dense matrices ``[batches, queries, keys]`` lies.

    None unless the outer loops go through all rows once, and one loop more along a row.
    """
    along = index.free_symbols & {v.symbol for v in kernel.inner_loops}
    if len(along) != 1 or index.coeff(min(along, key=str)) != 1:
        return None
    first_key = sympy.expand(index - along.pop())
    outer = {v.symbol: v.size for v in kernel.outer if v.size != 1}
    digits = digits_of(first_key, outer, keys)
    if digits is None or sympy.expand(sympy.prod(outer.values()) - batches * queries) != 0:
        return None
    # how many loops run within a matrix
    starts = (k for k, d in enumerate(digits) if sympy.expand(d.step - queries) == 0)
    inside = next(starts, len(digits) if batches == 1 else None)
    number = sympy.Add(*(d.loop.symbol * d.step for d in digits))
    if inside is None:
        batch, row = FloorDiv(number, queries), Mod(number, queries)
    else:
        row = sympy.Add(*(d.loop.symbol * d.step for d in digits[:inside]))
        batch = sympy.Add(
            *(d.loop.symbol * sympy.cancel(d.step / queries) for d in digits[inside:])
        )
    query = None if inside is None else row
    return ScoreRows(digits, batches, queries, batch, row, query, first_key)


# -- results -------------------------------------------------------------------------------------------


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
