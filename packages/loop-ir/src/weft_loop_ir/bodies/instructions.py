"""What a loop body is made of: instructions, each a call of an operation with typed operands.

``load.buffer``, ``load.index``, ``store.value``: each form of instruction names its operands here, and
nothing else reads them by position.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import sympy
import torch

if TYPE_CHECKING:
    from weft_loop_ir.bodies.operations import Operation
    from weft_loop_ir.size_float import SizeFloat

Number = bool | int | float
Form = TypeVar("Form", bound="Instruction")


@dataclass(frozen=True)
class Value:
    """The result of the instruction at position ``index`` of the enclosing body."""

    index: int


@dataclass(frozen=True)
class Instruction:
    """One call of an operation.  ``dtype`` is the result's, None where there is none.

    An operation makes its instructions: ``operation.instruction(arguments, dtype)`` has the form (a subclass
    of this) that names the operands.  ``arguments`` are those of the handler's method.
    """

    operation: Operation
    arguments: tuple[Any, ...]
    dtype: torch.dtype | None

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values that it takes, in order."""
        return tuple(a for a in self.arguments if isinstance(a, Value))

    @property
    def expressions(self) -> tuple[sympy.Expr, ...]:
        """The index expressions and symbols among its arguments."""
        return tuple(a for a in self.arguments if isinstance(a, sympy.Expr))

    @property
    def free_symbols(self) -> set[sympy.Symbol]:
        """The symbols that its index expressions depend on."""
        return {s for a in self.arguments if isinstance(a, sympy.Expr) for s in a.free_symbols}

    @property
    def bodies(self) -> tuple[LoopBody, ...]:
        """The nested body of ``masked``; else none."""
        return ()

    def mapped(self, change: Callable[[Any], Any]) -> Instruction:
        """The same with each argument changed."""
        arguments = tuple(map(change, self.arguments))
        return self.operation.instruction(arguments, self.dtype)

    def in_dtype(self, dtype: torch.dtype) -> Instruction:
        """The same with a result of another dtype, which may be one of its arguments."""
        arguments = tuple(dtype if a is self.dtype else a for a in self.arguments)
        return self.operation.instruction(arguments, dtype)

    def moved(self, positions: Mapping[int, Value]) -> Instruction:
        """The same on operands that have other positions."""
        return self.mapped(lambda a: positions[a.index] if isinstance(a, Value) else a)


def _argument(position: int) -> Any:
    return property(lambda self: self.arguments[position])


def _arguments_from(position: int) -> Any:
    return property(lambda self: self.arguments[position:])


class Elementwise(Instruction):
    """Arithmetic on values of one dtype."""

    operands: tuple[Value, ...] = _arguments_from(0)


class Access(Instruction):
    buffer: str = _argument(0)
    index: sympy.Expr = _argument(1)

    def to(self, buffer: str) -> Instruction:
        """The same access to another buffer."""
        return self.operation.instruction((buffer, *self.arguments[1:]), self.dtype)

    def at(self, index: sympy.Expr) -> Instruction:
        """The same access at another index."""
        return self.operation.instruction((self.buffer, index, *self.arguments[2:]), self.dtype)


class Load(Access):
    """What is in memory."""


class Store(Access):
    """``mode`` in :data:`~weft_loop_ir.ops.ATOMIC_MODES` combines the value with what is there."""

    value: Value = _argument(2)
    mode: str | None = _argument(3)


class Reduction(Instruction):
    kind: str = _argument(0)
    accumulated: torch.dtype = _argument(1)
    value: Value = _argument(2)


class Combining(Instruction):
    """Value ``number`` of ``values`` combined along the loop."""

    combine_function: CombineFunction = _argument(0)
    number: int = _argument(1)
    values: tuple[Value, ...] = _arguments_from(2)


class Scan(Combining):
    """Up to this iteration."""


class Fold(Combining):
    """Of the whole loop."""


class Constant(Instruction):
    number: Number = _argument(0)


class IndexValue(Instruction):
    index: sympy.Expr = _argument(0)


class Scalar(Instruction):
    number: SizeFloat = _argument(0)


class Conversion(Instruction):
    """The number in ``dtype``."""

    value: Value = _argument(0)


class Bitcast(Instruction):
    """The bits of a value as ``dtype``."""

    value: Value = _argument(0)


class Where(Instruction):
    condition: Value = _argument(0)
    chosen: Value = _argument(1)
    other: Value = _argument(2)


class Indirect(Instruction):
    """``symbol`` is bound to ``value``, which ``check`` says may be out of range."""

    value: Value = _argument(0)
    symbol: sympy.Symbol = _argument(1)
    size: sympy.Expr = _argument(2)
    check: bool = _argument(3)

    def unchecked(self) -> Instruction:
        """The same where the value is known to be in range."""
        return self.operation.instruction((*self.arguments[:3], False), None)


class Masked(Instruction):
    mask: Value = _argument(0)
    body: LoopBody = _argument(1)
    other: Number = _argument(2)

    @property
    def bodies(self) -> tuple[LoopBody, ...]:
        return (self.body,)


class Random(Instruction):
    seed: Value = _argument(0)
    offset: Value = _argument(1)


@dataclass(frozen=True)
class LoopBody:
    """A straight-line program executed at each point of an iteration space.

    ``result`` is set only for the nested body of ``masked``, and for a part of a body: the value that it
    yields.
    """

    instructions: tuple[Instruction, ...]
    result: Value | None = None

    def replay(self, handler: Any) -> Any:
        """Call ``handler.<operation>(*arguments)`` for each instruction, in order.

        Values are replaced by what the handler returned for them; a nested body of ``masked`` is handed
        over as a function without arguments that replays it.  Returns the value of ``result``.
        """
        results: list[Any] = []

        def resolve(argument: Any) -> Any:
            if isinstance(argument, Value):
                return results[argument.index]
            if isinstance(argument, LoopBody):
                return lambda: argument.replay(handler)
            return argument

        for instruction in self.instructions:
            method = getattr(handler, instruction.operation.name)
            results.append(method(*(resolve(a) for a in instruction.arguments)))
        return None if self.result is None else results[self.result.index]

    def at(self, value: Value) -> Instruction:
        """The instruction that gives ``value``."""
        return self.instructions[value.index]

    def made_of(self, *values: Value) -> list[int]:
        """The positions of the instructions that ``values`` are computed by, in order."""
        wanted = {value.index for value in values}
        for position in range(max(wanted, default=-1), -1, -1):
            if position in wanted:
                wanted.update(v.index for v in self.instructions[position].operands)
        return sorted(wanted)

    def under(self, value: Value) -> LoopBody:
        """What ``value`` is computed by; it has the positions of this body."""
        return LoopBody(tuple(self.instructions[k] for k in self.made_of(value)))

    def walk(self) -> Iterator[Instruction]:
        """Every instruction in order, those of nested bodies after the one that holds them."""
        return iter(self._every)

    @functools.cached_property
    def _every(self) -> tuple[Instruction, ...]:
        if not any(isinstance(i, Masked) for i in self.instructions):
            return self.instructions
        nested = ((i, *(n for body in i.bodies for n in body.walk())) for i in self.instructions)
        return tuple(itertools.chain.from_iterable(nested))

    def holds(self, *forms: type[Instruction]) -> bool:
        """Whether an instruction has one of ``forms``, nested bodies included."""
        return any(isinstance(i, forms) for i in self._every)

    def loads(self, buffer: str | None = None) -> list[Load]:
        """The loads, of one buffer or of all, nested bodies included."""
        return [i for i in self.walk() if isinstance(i, Load) and buffer in (None, i.buffer)]

    def stores(self, buffer: str | None = None) -> list[Store]:
        """The stores, to one buffer or to all."""
        return [i for i in self.instructions if isinstance(i, Store) and buffer in (None, i.buffer)]

    def only_store(self, buffer: str) -> Store | None:
        """The one store to ``buffer``, where it replaces what is there; None for several, or other ones."""
        stores = self.stores(buffer)
        return stores[0] if len(stores) == 1 and stores[0].mode is None else None

    def accesses(self) -> list[Access]:
        """Loads and stores in order, nested bodies included."""
        return [i for i in self.walk() if isinstance(i, Access)]

    def indexed(self) -> list[Access | IndexValue]:
        """What has an index: accesses, and values that are positions; nested bodies included."""
        return [i for i in self.walk() if isinstance(i, Access | IndexValue)]

    def only(self, form: type[Form]) -> Form | None:
        """The one instruction of a form; None where there are none or several."""
        found = [i for i in self.instructions if isinstance(i, form)]
        return found[0] if len(found) == 1 else None

    def reductions(self) -> list[Reduction]:
        """The reductions, which are never in a nested body."""
        return [i for i in self.instructions if isinstance(i, Reduction)]

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it loads from, in order of first access, nested bodies included."""
        return tuple(dict.fromkeys(load.buffer for load in self.loads()))

    @functools.cached_property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it stores to, in order of first access."""
        return tuple(dict.fromkeys(store.buffer for store in self.stores()))

    @property
    def accumulates(self) -> bool:
        """Whether a store adds to what is there, or combines with it otherwise."""
        return any(store.mode is not None for store in self.stores())

    @property
    def bound_symbols(self) -> set[sympy.Symbol]:
        """The symbols that stand for values, nested bodies included."""
        return {i.symbol for i in self.walk() if isinstance(i, Indirect)}

    @property
    def checks_positions(self) -> bool:
        """Whether it checks a position that it reads from memory."""
        return any(i.check for i in self.walk() if isinstance(i, Indirect))

    def expressions(self) -> Iterator[sympy.Expr]:
        """Every index expression, nested bodies included."""
        return (e for i in self.walk() for e in i.expressions)

    @property
    def host_symbols(self) -> set[sympy.Symbol]:
        """The symbols of what the host computes: numbers, and sizes of positions; nested bodies included."""
        found: set[sympy.Symbol] = set()
        for instruction in self.walk():
            if isinstance(instruction, Scalar):
                found |= instruction.number.free_symbols
            elif isinstance(instruction, Indirect):
                found |= instruction.size.free_symbols
        return found

    @property
    def free_symbols(self) -> set[sympy.Symbol]:
        """The symbols of index expressions, nested bodies included: loops, values, sizes."""
        return {s for i in self.walk() for s in i.free_symbols}


@dataclass(frozen=True)
class CombineFunction:
    """An associative function of two groups of values, by which a scan combines elements in any grouping.

    ``body`` loads the values of what comes first at 0 of :data:`LEFT` with a number appended, those of what
    follows at 0 of :data:`RIGHT`, and stores its results at 0 of :data:`COMBINED`.  ``dtypes`` are theirs.
    """

    body: LoopBody
    dtypes: tuple[torch.dtype, ...]

    @property
    def is_costly(self) -> bool:
        """Whether elements are combined by more than a few instructions of a processor."""
        return any(i.operation.is_costly for i in self.body.instructions)


LEFT, RIGHT, COMBINED = "left", "right", "combined"
