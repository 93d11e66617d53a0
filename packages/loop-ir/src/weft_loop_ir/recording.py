"""Recording a loop body: the handler of ``ops`` under which lowering's inner functions run.

The recorder numbers values, so that an equal subcomputation is recorded once, folds conversions that do
nothing, and infers the dtype of every instruction by the rules of :mod:`weft_loop_ir.ops`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import sympy
import torch

from weft_loop_ir import ops
from weft_loop_ir.bodies import (
    OPERATIONS,
    STORE,
    CombineFunction,
    Constant,
    Conversion,
    Instruction,
    LoopBody,
    Value,
    operation_named,
)
from weft_loop_ir.index_simplify import IndexRanges, ranges_for
from weft_loop_ir.size_float import SizeFloat

if TYPE_CHECKING:
    from weft_loop_ir.ir import LoopVariable

ValueOrNumber: TypeAlias = Value | bool | int | float | sympy.Expr | SizeFloat
"""An operand of an elementwise operation: a number has the dtype of the others."""


class BodyRecorder:
    """Records calls of ``ops`` as the instructions of a :class:`LoopBody`.

    ``buffer_dtype`` gives the element type of a buffer by name.  Without ``round_low_precision`` a conversion
    to half precision and back leaves the value as it is.  ``memo`` is a place for lowering to keep
    values by (tensor, index), so that a shared producer's function runs once for each body.
    """

    def __init__(
        self,
        ranges: IndexRanges,
        buffer_dtype: Callable[[str], torch.dtype],
        symbol_numbers: Iterator[int] | None = None,
        round_low_precision: bool = True,
    ) -> None:
        self.round_low_precision = round_low_precision
        self.ranges = ranges
        self.buffer_dtype = buffer_dtype
        self.instructions: list[Instruction] = []
        self.memo: dict[Any, Value] = {}
        self._numbers: dict[Any, Value] = {}
        self._symbol_numbers = symbol_numbers if symbol_numbers is not None else itertools.count()
        self._bound: dict[Any, sympy.Symbol] = {}

    @classmethod
    def over(
        cls,
        loops: Iterable[LoopVariable],
        buffer_dtype: Callable[[str], torch.dtype],
        symbol_numbers: Iterator[int] | None = None,
        round_low_precision: bool = True,
    ) -> BodyRecorder:
        """What records a body that runs at ``loops``."""
        ranges = ranges_for(tuple((v.symbol, v.size) for v in loops))
        return cls(ranges, buffer_dtype, symbol_numbers, round_low_precision)

    if TYPE_CHECKING:  # the elementwise operations are made from their tables below

        def __getattr__(self, operation: str) -> Callable[..., Value]: ...

    def body(self, result: Value | None = None) -> LoopBody:
        return LoopBody(tuple(self.instructions), result)

    def dtype_of(self, value: Value) -> torch.dtype:
        dtype = self.instructions[value.index].dtype
        assert dtype is not None
        return dtype

    def at(self, value: Value) -> Instruction:
        """The instruction that gives ``value``."""
        return self.instructions[value.index]

    def _append(self, instruction: Instruction) -> Value:
        value = Value(len(self.instructions))
        self.instructions.append(instruction)
        return value

    def record(self, name: str, *arguments: Any) -> Value:
        """Append a call of the operation ``name``, without side effects, or find the equal one before.

        The dtype of its result follows from the table of operations.
        """
        operation = OPERATIONS[name]
        dtype = operation.result(arguments, self)
        key = (name, tuple((type(a), _exact_key(a)) for a in arguments), dtype)
        known = self._numbers.get(key)
        if known is None:
            made = operation.instruction(arguments, dtype)
            known = self._numbers[key] = self._append(made)
        return known

    def again(self, instruction: Instruction, operands: Mapping[Value, Value | None]) -> Value:
        """Record a call like ``instruction`` on other operands."""
        arguments = (operands[a] if isinstance(a, Value) else a for a in instruction.arguments)
        return self.record(instruction.operation.name, *arguments)

    # -- memory ----------------------------------------------------------------------------------------

    def load(self, buffer: str, index: sympy.Expr) -> Value:
        return self.record("load", buffer, self.ranges.simplify(index))

    def store(self, buffer: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        arguments = (buffer, self.ranges.simplify(index), value, mode)
        self._append(STORE.instruction(arguments, None))

    # -- values ----------------------------------------------------------------------------------------

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Value:
        return self.record("constant", value, dtype)

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> Value:
        expression = self.ranges.simplify(expression)
        if isinstance(expression, sympy.Integer):
            return self.constant(int(expression), dtype)
        return self.record("index_expr", expression, dtype)

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> Value:
        return self.record("scalar", number, dtype)

    def number(
        self, value: bool | int | float | sympy.Expr | SizeFloat, dtype: torch.dtype
    ) -> Value:
        """A Python number, or one that the call determines, as a value of ``dtype``."""
        if isinstance(value, SizeFloat):
            return self.scalar(value, dtype)
        if isinstance(value, sympy.Expr) and not isinstance(value, sympy.Integer):
            return self.to_dtype(self.index_expr(value, torch.int64), dtype)
        return self.constant(number_of(value, dtype), dtype)

    def operands(self, operands: Sequence[ValueOrNumber]) -> Sequence[Value]:
        """Values of one dtype: numbers have that of the others."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        if len(values) == len(operands):
            return values
        dtype = self.dtype_of(values[0])
        return [o if isinstance(o, Value) else self.number(o, dtype) for o in operands]

    def to_dtype(self, value: Value, dtype: torch.dtype) -> Value:
        source = self.at(value)
        if source.dtype == dtype:
            return value
        if isinstance(source, Constant) and dtype not in ops.STORAGE_ONLY:
            assert source.dtype is not None
            folded = _convert_constant(source.number, source.dtype, dtype)
            if folded is not None:
                return self.constant(folded, dtype)
        is_rounding = isinstance(source, Conversion) and source.dtype in ops.HALVES
        if is_rounding and not self.round_low_precision:
            (original,) = source.operands
            if self.dtype_of(original) == dtype:
                return original
        return self.record("to_dtype", value, dtype)

    def to_dtype_bitcast(self, value: Value, dtype: torch.dtype) -> Value:
        if self.dtype_of(value) == dtype:
            return value
        return self.record("to_dtype_bitcast", value, dtype)

    def where(self, condition: Value, value: ValueOrNumber, other: ValueOrNumber) -> Value:
        return self.record("where", condition, *self.operands((value, other)))

    def reduction(self, kind: str, dtype: torch.dtype, value: Value) -> Value:
        return self.record("reduction", kind, dtype, value)

    def scan(self, combine_function: CombineFunction, number: int, *values: Value) -> Value:
        return self.record("scan", combine_function, number, *values)

    def fold(self, combine_function: CombineFunction, number: int, *values: Value) -> Value:
        return self.record("fold", combine_function, number, *values)

    def masked(
        self, mask: Value, body: Callable[..., Value] | LoopBody, other: bool | int | float
    ) -> Value:
        """``body`` is a function of the nested recorder, or a body recorded already."""
        if isinstance(body, LoopBody):
            nested_body = body
        else:
            nested = BodyRecorder(
                self.ranges, self.buffer_dtype, self._symbol_numbers, self.round_low_precision
            )
            result = body(nested)
            nested_body = nested.body(result)
        return self.record("masked", mask, nested_body, other)

    # -- indirect indices --------------------------------------------------------------------------------

    def indirect_symbol(self, value: Value, size: sympy.Expr, check: bool) -> sympy.Symbol:
        """A symbol bound to ``value`` by an ``indirect`` instruction; the same one for equal arguments."""
        key = (value, size, check)
        symbol = self._bound.get(key)
        if symbol is None:
            number = next(self._symbol_numbers)
            symbol = sympy.Symbol(f"indirect{number}", integer=True, nonnegative=True)
            self._bound[key] = symbol
            bound = operation_named("indirect").instruction((value, symbol, size, check), None)
            self._append(bound)
        return symbol

    def rand(self, seed: Value, offset: Value) -> Value:
        return self.record("rand", seed, offset)

    def randn(self, seed: Value, offset: Value) -> Value:
        return self.record("randn", seed, offset)


def number_of(value: Any, dtype: torch.dtype) -> bool | int | float:
    """``value`` as a number of ``dtype``."""
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _exact_key(argument: Any) -> Any:
    """A key that keeps apart constants which compare equal: 0.0 and -0.0, and NaN from itself."""
    return repr(argument) if isinstance(argument, float) else argument


def _convert_constant(
    value: bool | int | float, source: torch.dtype, target: torch.dtype
) -> bool | int | float | None:
    """``value`` converted as a tensor would be, where that is exact and simple; else None."""
    if target == torch.bool:
        return bool(value)
    if source == torch.bool:
        return float(value) if target.is_floating_point else int(value)
    if target.is_floating_point:
        if source.is_floating_point and target == torch.float64 and source != torch.float64:
            return None
        converted = float(value)
        if isinstance(value, int) and int(converted) != value:
            return None
        return converted
    if isinstance(value, int) and torch.iinfo(target).min <= value <= torch.iinfo(target).max:
        return value
    return None


def _elementwise(operation: str, to_bool: bool) -> Callable[..., Value]:
    def method(self: BodyRecorder, *operands: ValueOrNumber) -> Value:
        return self.record(operation, *self.operands(operands))

    return method


ops.define_elementwise(BodyRecorder, ops.ELEMENTWISE, _elementwise)
