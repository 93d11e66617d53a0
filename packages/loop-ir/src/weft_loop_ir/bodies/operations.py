"""The table of operations: what each takes and gives, what it does besides, what it costs.

An operation's method is described in :mod:`weft_loop_ir.ops`.  Code generators spell operations, each in its
own tables; tests hold these against this one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from weft_loop_ir.bodies.instructions import (
    Bitcast,
    Combining,
    Constant,
    Conversion,
    Elementwise,
    Fold,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    Masked,
    Random,
    Reduction,
    Scalar,
    Scan,
    Store,
    Value,
    Where,
)

HALVES = (torch.float16, torch.bfloat16)
"""Conversions to these and back may be left out where rounding is not asked for."""

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Conversions round to nearest, ties to even."""

STORAGE_ONLY = (*HALVES, *FLOAT8)
"""Dtypes that values may have only between a memory access and a conversion."""

ATOMIC_MODES = ("atomic_add", "atomic_mul", "atomic_max", "atomic_min")
"""Modes of ``store``.  NaN propagates through the last two; all but the first are for the CPU only."""


class Cost(enum.IntEnum):
    """What an operation takes on one element, of float32, on a vector unit."""

    FREE = 0
    """A number, or a position, that is at hand."""
    SIMPLE = 1
    """A cycle or two, as an access to memory that is near."""
    RECIPROCAL = 2
    """One instruction of several cycles."""
    DIVISION = 3
    """A few instructions, or one of many cycles."""
    FUNCTION = 4
    """Tens of instructions."""


class Effect(enum.Flag):
    """What an operation does besides computing its result from its operands in this iteration."""

    NONE = 0
    READS = enum.auto()
    """It reads memory."""
    WRITES = enum.auto()
    """It writes memory."""
    COMBINES = enum.auto()
    """Its result depends on other iterations of the inner loops."""
    ENDS_LOOP = enum.auto()
    """Its result is known after the inner loops."""
    RANDOM = enum.auto()
    """It draws numbers, the same for the same seed and offset."""
    BINDS = enum.auto()
    """It binds a symbol, and may check its value."""
    GUARDS = enum.auto()
    """It runs a nested body where a mask holds."""


class Domain(enum.Enum):
    """The dtypes that arithmetic is on: complex ones and those of storage are in none."""

    ANY = "any"
    FLOATS = "floats"
    INTEGERS = "integers"
    """Bools included."""


class Connective(enum.Enum):
    """What a function of bools says of them."""

    NOT = "not"
    AND = "and"
    OR = "or"
    XOR = "xor"


@dataclass(frozen=True)
class ReductionKind:
    """How elements are reduced to one.

    ``identity`` changes no result; infinite where the least or the largest number of a dtype does.
    ``connective`` is what joins truth values.  ``finds_position``: the result is a position.  ``is_moment``:
    it depends on how many elements there are.
    """

    identity: float = 0
    connective: Connective | None = None
    finds_position: bool = False
    is_moment: bool = False

    @property
    def needs_elements(self) -> bool:
        """Whether it has no result of no elements."""
        return self.finds_position or math.isinf(self.identity)

    @property
    def joins_itself(self) -> bool:
        """Whether partial results reduce again by the same kind."""
        return not (self.finds_position or self.is_moment)

    def identity_of(self, dtype: torch.dtype) -> bool | int | float:
        """What changes no result of values of ``dtype``."""
        if not math.isinf(self.identity):
            return int(self.identity)
        if dtype is torch.bool:
            return self.identity > 0
        if dtype.is_floating_point:
            return self.identity
        limits = torch.iinfo(dtype)
        return limits.min if self.identity < 0 else limits.max

    def result(self, accumulated: torch.dtype) -> torch.dtype:
        """The dtype of the result."""
        return torch.int64 if self.finds_position else accumulated


REDUCTIONS = {
    "sum": ReductionKind(),
    "prod": ReductionKind(1),
    "max": ReductionKind(-math.inf),
    "min": ReductionKind(math.inf),
    "any": ReductionKind(0, Connective.OR),
    "all": ReductionKind(1, Connective.AND),
    "argmax": ReductionKind(finds_position=True),
    "argmin": ReductionKind(finds_position=True),
    "welford_mean": ReductionKind(is_moment=True),
    "welford_m2": ReductionKind(is_moment=True),
}
"""``argmax`` and ``argmin`` give the int64 position in the row-major order of the stage's inner loops, the
first of equals, NaN first of all.  ``welford_mean`` and ``welford_m2`` of the same value share one pass."""


class Dtypes(Protocol):
    """What rules ask: the dtypes of values and of buffers' elements."""

    def dtype_of(self, value: Value) -> torch.dtype: ...

    def buffer_dtype(self, name: str) -> torch.dtype: ...


Rule = Callable[[tuple[Any, ...], Any], torch.dtype | None]
"""The dtype of a result, by an operation's arguments and :class:`Dtypes`."""

Check = Callable[[Any, list[torch.dtype]], str | None]
"""What is wrong with an instruction whose operands have some dtypes; None: nothing."""


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation.  ``form`` names its operands, ``result`` gives the result's dtype (None: no result).

    ``infix`` is its sign in readable dumps.  Of comparisons, ``negated`` is what holds where it does not (of
    floats that are no NaN), ``mirrored`` what holds of exchanged operands.  ``connective`` is what it is of
    bools.
    """

    name: str
    form: type[Instruction]
    result: Rule
    cost: Cost = Cost.SIMPLE
    effects: Effect = Effect.NONE
    check: Check = lambda instruction, operands: None
    arity: int | None = None
    domain: Domain = Domain.ANY
    commutes: bool = False
    infix: str | None = None
    negated: str | None = None
    mirrored: str | None = None
    connective: Connective | None = None

    def instruction(self, arguments: tuple[Any, ...], dtype: torch.dtype | None) -> Instruction:
        """A call of it, whose result has ``dtype``."""
        return self.form(self, arguments, dtype)

    def called(self, arguments: tuple[Any, ...], dtypes: Dtypes) -> Instruction:
        """A call of it, its result's dtype by the rule."""
        return self.form(self, arguments, self.result(arguments, dtypes))

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether arithmetic by it is on values of ``dtype``."""
        if dtype in STORAGE_ONLY or dtype.is_complex:
            return False
        of_floats = {Domain.ANY: None, Domain.FLOATS: True, Domain.INTEGERS: False}[self.domain]
        return of_floats is None or of_floats == dtype.is_floating_point

    @property
    def is_elementwise(self) -> bool:
        return self.form is Elementwise

    @property
    def gives_bool(self) -> bool:
        return self.result is _bool

    @property
    def touches_memory(self) -> bool:
        return bool(self.effects & (Effect.READS | Effect.WRITES))

    @property
    def combines(self) -> bool:
        """Whether its result depends on other iterations."""
        return bool(self.effects & Effect.COMBINES)

    @property
    def ends_loop(self) -> bool:
        """Whether its result is known only after the inner loops."""
        return bool(self.effects & Effect.ENDS_LOOP)

    @property
    def is_costly(self) -> bool:
        """Whether it takes several instructions, or a long one."""
        return self.cost >= Cost.DIVISION

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be computed again, or earlier, where what it reads has not changed."""
        return not self.effects & ~Effect.READS

    @property
    def is_of_element(self) -> bool:
        """Whether its result depends on this iteration alone, and is the same at each call."""
        return not self.effects & (Effect.COMBINES | Effect.WRITES | Effect.RANDOM)

    @property
    def negation(self) -> Operation | None:
        """The comparison that holds where this one does not; of floats, if they are no NaN."""
        return None if self.negated is None else OPERATIONS[self.negated]

    @property
    def mirror(self) -> Operation | None:
        """The comparison of the same operands in the other order."""
        return None if self.mirrored is None else OPERATIONS[self.mirrored]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return operation_named, (self.name,)

    def __copy__(self) -> Operation:
        return self

    def __deepcopy__(self, memo: Any) -> Operation:
        return self


# -- results ---------------------------------------------------------------------------------------------


def _first(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return dtypes.dtype_of(arguments[0])


def _second(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return dtypes.dtype_of(arguments[1])


def _bool(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return torch.bool


def _given(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    dtype: torch.dtype = arguments[1]
    return dtype


def _of_buffer(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return dtypes.buffer_dtype(arguments[0])


def _none(arguments: tuple[Any, ...], dtypes: Dtypes) -> None:
    return None


def _reduced(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return REDUCTIONS[arguments[0]].result(_given(arguments, dtypes))


def _combined(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    combine_function, number = arguments[:2]
    dtype: torch.dtype = combine_function.dtypes[number]
    return dtype


def _nested(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype | None:
    body = arguments[1]
    dtype: torch.dtype | None = body.at(body.result).dtype
    return dtype


def _float32(arguments: tuple[Any, ...], dtypes: Dtypes) -> torch.dtype:
    return torch.float32


# -- operands --------------------------------------------------------------------------------------------


def _check_alike(instruction: Instruction, operands: list[torch.dtype]) -> str | None:
    """Arithmetic: no dtypes of storage, all alike."""
    if any(d in STORAGE_ONLY for d in operands):
        return "arithmetic on a half-precision value"
    if any(d.is_complex for d in operands):
        return "a complex value"
    if len(set(operands)) > 1:
        return f"operands of different dtypes: {', '.join(map(str, operands))}"
    if not instruction.operation.takes(operands[0]):
        return f"{instruction.operation} of {operands[0]}"
    return None


def _check_where(instruction: Instruction, operands: list[torch.dtype]) -> str | None:
    if operands[0] != torch.bool:
        return f"the condition is {operands[0]}"
    return _check_alike(instruction, operands[1:])


def _check_masked(instruction: Masked, operands: list[torch.dtype]) -> str | None:
    return None if operands == [torch.bool] else f"the mask is {operands[0]}"


def _check_store(instruction: Store, operands: list[torch.dtype]) -> str | None:
    known = instruction.mode is None or instruction.mode in ATOMIC_MODES
    return None if known else f"unknown mode {instruction.mode}"


def _check_reduction(instruction: Reduction, operands: list[torch.dtype]) -> str | None:
    if instruction.kind not in REDUCTIONS:
        return f"unknown reduction {instruction.kind}"
    if operands[0] != instruction.accumulated:
        return f"reduces {operands[0]} in {instruction.accumulated}"
    return _check_alike(instruction, operands)


def _check_combining(instruction: Combining, operands: list[torch.dtype]) -> str | None:
    dtypes = instruction.combine_function.dtypes
    if tuple(operands) == dtypes:
        return None
    return f"combines {operands} by a function of {dtypes}"


# -- the table -------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Operation] = {}


ANY, FLOATS, INTEGERS = Domain.ANY, Domain.FLOATS, Domain.INTEGERS
_ELEMENTWISE: tuple[tuple[str, int, Cost, Domain, Rule], ...] = (
    ("abs neg relu sign floor ceil trunc round", 1, Cost.SIMPLE, ANY, _first),
    ("bitwise_not", 1, Cost.SIMPLE, INTEGERS, _first),
    ("rsqrt reciprocal", 1, Cost.RECIPROCAL, FLOATS, _first),
    ("sqrt", 1, Cost.DIVISION, FLOATS, _first),
    ("sigmoid exp exp2 expm1 log log2 log10 log1p", 1, Cost.FUNCTION, FLOATS, _first),
    ("sin cos tan asin acos atan sinh cosh tanh asinh", 1, Cost.FUNCTION, FLOATS, _first),
    ("acosh atanh erf erfc erfinv lgamma digamma", 1, Cost.FUNCTION, FLOATS, _first),
    ("logical_not isnan isinf signbit", 1, Cost.SIMPLE, ANY, _bool),
    ("add sub mul maximum minimum", 2, Cost.SIMPLE, ANY, _first),
    ("copysign", 2, Cost.SIMPLE, FLOATS, _first),
    ("bitwise_and bitwise_or bitwise_xor", 2, Cost.SIMPLE, INTEGERS, _first),
    ("left_shift right_shift", 2, Cost.SIMPLE, INTEGERS, _first),
    ("truediv", 2, Cost.DIVISION, FLOATS, _first),
    ("floordiv truncdiv fmod remainder pow", 2, Cost.FUNCTION, ANY, _first),
    ("atan2 hypot nextafter", 2, Cost.FUNCTION, FLOATS, _first),
    ("eq ne lt le gt ge logical_and logical_or logical_xor", 2, Cost.SIMPLE, ANY, _bool),
)
for _names, _arity, _cost, _domain, _result in _ELEMENTWISE:
    for _name in _names.split():
        OPERATIONS[_name] = Operation(
            _name, Elementwise, _result, _cost, check=_check_alike, arity=_arity, domain=_domain
        )

for _operation in (
    Operation("load", Load, _of_buffer, effects=Effect.READS),
    Operation("store", Store, _none, effects=Effect.WRITES, check=_check_store),
    Operation(
        "reduction", Reduction, _reduced,
        effects=Effect.COMBINES | Effect.ENDS_LOOP, check=_check_reduction,
    ),
    Operation("scan", Scan, _combined, effects=Effect.COMBINES, check=_check_combining),
    Operation(
        "fold", Fold, _combined,
        effects=Effect.COMBINES | Effect.ENDS_LOOP, check=_check_combining,
    ),
    Operation("constant", Constant, _given, Cost.FREE),
    Operation("scalar", Scalar, _given, Cost.FREE),
    Operation("index_expr", IndexValue, _given, Cost.FREE),
    Operation("to_dtype", Conversion, _given),
    Operation("to_dtype_bitcast", Bitcast, _given),
    Operation("where", Where, _second, check=_check_where),
    Operation("indirect", Indirect, _none, effects=Effect.BINDS),
    Operation("masked", Masked, _nested, effects=Effect.GUARDS, check=_check_masked),
    Operation("rand", Random, _float32, Cost.FUNCTION, Effect.RANDOM),
    Operation("randn", Random, _float32, Cost.FUNCTION, Effect.RANDOM),
):  # fmt: skip
    OPERATIONS[_operation.name] = _operation

_SPECIAL: dict[str, dict[str, Any]] = {
    "add": {"infix": "+", "commutes": True},
    "sub": {"infix": "-"},
    "mul": {"infix": "*", "commutes": True},
    "truediv": {"infix": "/"},
    "floordiv": {"infix": "//"},
    "bitwise_and": {"infix": "&", "commutes": True, "connective": Connective.AND},
    "bitwise_or": {"infix": "|", "commutes": True, "connective": Connective.OR},
    "bitwise_xor": {"infix": "^", "commutes": True, "connective": Connective.XOR},
    "bitwise_not": {"connective": Connective.NOT},
    "logical_and": {"commutes": True, "connective": Connective.AND},
    "logical_or": {"commutes": True, "connective": Connective.OR},
    "logical_xor": {"commutes": True, "connective": Connective.XOR},
    "logical_not": {"connective": Connective.NOT},
    "left_shift": {"infix": "<<"},
    "right_shift": {"infix": ">>"},
    "eq": {"infix": "==", "commutes": True, "negated": "ne", "mirrored": "eq"},
    "ne": {"infix": "!=", "commutes": True, "negated": "eq", "mirrored": "ne"},
    "lt": {"infix": "<", "negated": "ge", "mirrored": "gt"},
    "le": {"infix": "<=", "negated": "gt", "mirrored": "ge"},
    "gt": {"infix": ">", "negated": "le", "mirrored": "lt"},
    "ge": {"infix": ">=", "negated": "lt", "mirrored": "le"},
}
OPERATIONS.update((name, replace(OPERATIONS[name], **has)) for name, has in _SPECIAL.items())


def operation_named(name: str) -> Operation:
    """The operation that handlers have as the method ``name``; raises KeyError for none."""
    return OPERATIONS[name]


LOAD, STORE = OPERATIONS["load"], OPERATIONS["store"]
ADD, SUB, MUL, NEG = (OPERATIONS[name] for name in "add sub mul neg".split())
EQ, NE, LT, LE, GT, GE = (OPERATIONS[name] for name in "eq ne lt le gt ge".split())
