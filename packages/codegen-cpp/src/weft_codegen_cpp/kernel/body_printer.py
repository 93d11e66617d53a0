"""Prints one loop body as C++ statements: a handler of ``ops``.

A value is *uniform* (one scalar for all lanes) or *varying* (a vector over the vectorised loop).  In a
scalar context (no vectorised loop) every value is uniform.  Uniform operands meet varying ones by ``splat``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import sympy
import torch
from weft_loop_ir import SizeFloat, Unsupported, ops, print_index
from weft_loop_ir.bodies import REDUCTIONS, Cost, operation_named

from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.kernel.expressions import (
    COMPUTE_TYPE,
    INDEX,
    NARROW_FLOATS,
    coefficient,
    literal,
    memory_type,
)
from weft_codegen_cpp.kernel.loop_structure import by_lane


@dataclass(frozen=True)
class Text:
    """A value: the C++ expression that names it."""

    code: str
    dtype: torch.dtype
    varying: bool
    constant: bool | int | float | None = None
    reduction: str | None = None  # the key of the reduction that this is the result of
    rounded: str | None = None  # the float32 expression that this bfloat16 was rounded from
    widened: str | None = None  # the float32 expression that this float64 is


@dataclass(frozen=True)
class Memory:
    """A buffer as a kernel sees it: the name of its pointer."""

    pointer: str
    dtype: torch.dtype
    per_lane: bool = False  # a local buffer with one copy for each lane of the outer vector loop


@dataclass
class Scope:
    """Where a body is printed: its symbols, buffers and vectorised loop."""

    memories: Mapping[str, Memory]
    names: dict[sympy.Symbol, str]
    vector_symbol: sympy.Symbol | None
    tag: str
    numbers: Iterator[int] = field(default_factory=itertools.count)
    tiles: dict[tuple[str, sympy.Expr], str] = field(default_factory=dict)
    """Loads that are read already, as vectors of the memory type."""
    scalars: Mapping[SizeFloat, str] = field(default_factory=dict)
    """The kernel's parameters that are doubles."""
    out_of_line: bool = False
    """Whether large functions are called rather than inlined."""
    large_functions: list[str] = field(default_factory=list)
    """Those that the kernel has so far, one as often as it stands there."""


OUT_OF_LINE = "far::"

SCATTERS = {mode: f"scatter_{mode.removeprefix('atomic_')}" for mode in ops.ATOMIC_MODES}
"""The functions that store a vector lane by lane."""

UNSUPPORTED = ("scan", "fold")
"""Operations without a C++ form: :class:`~weft_loop_ir.LoweringOptions` doesn't ask for them."""


class BodyPrinter:
    """Appends statements to ``lines``.

    ``reduce(kind, dtype, value)`` is called for a reduction and gives the key that its store is kept under;
    ``stores`` collects those stores as (buffer, index, key).
    """

    def __init__(
        self,
        scope: Scope,
        reduce: Callable[[BodyPrinter, str, torch.dtype, Text], str] | None = None,
    ) -> None:
        self.scope = scope
        self.lines: list[str] = []
        self.stores: list[tuple[str, sympy.Expr, str, str | None]] = []
        self._reduce = reduce
        self._tag = scope.tag
        self._tag_is_partial = (
            False  # inside `masked` with a varying mask: perhaps no lane is active
        )
        self._varying_symbols: set[sympy.Symbol] = set()

    def __getattr__(self, name: str) -> Callable[..., Text]:
        if name in UNSUPPORTED:
            raise Unsupported("no C++ form for an operation", name)
        raise AttributeError(name)

    # -- naming ------------------------------------------------------------------------------------------

    def emit(self, statement: str) -> None:
        self.lines.append(statement)

    def _name(self, prefix: str = "v") -> str:
        return f"{prefix}{next(self.scope.numbers)}"

    def value(self, code: str, dtype: torch.dtype, varying: bool) -> Text:
        """Bind ``code`` to a new name."""
        name = self._name()
        self.emit(f"const auto {name} = {code};")
        return Text(name, dtype, varying)

    def vector(self, value: Text) -> str:
        """``value`` as a vector expression."""
        if value.varying:
            return value.code
        return f"splat<{COMPUTE_TYPE[value.dtype]}>({value.code})"

    # -- indices -----------------------------------------------------------------------------------------

    def _index(self, expression: sympy.Expr) -> str:
        return print_index(expression, INDEX, self.scope.names)

    def _lane_function(self, expression: sympy.Expr) -> str:
        """A C++ lambda from the lane's number to the value of ``expression`` in it."""
        names = dict(self.scope.names)
        if self.scope.vector_symbol is not None:
            base = names.get(self.scope.vector_symbol, self.scope.vector_symbol.name)
            names[self.scope.vector_symbol] = f"({base} + lane)"
        for symbol in self._varying_symbols:
            names[symbol] = f"{names[symbol]}[lane]"
        return (
            f"[&](int lane) WEFT_LAMBDA {{ return i64({print_index(expression, INDEX, names)}); }}"
        )

    def _access(self, expression: sympy.Expr) -> str:
        """How an index moves over the lanes: ``uniform``, ``unit`` or ``gather``."""
        free = expression.free_symbols
        if free & self._varying_symbols:
            return "gather"
        symbol = self.scope.vector_symbol
        if symbol is None or symbol not in free:
            return "uniform"
        return "unit" if coefficient(expression, symbol) == 1 else "gather"

    # -- memory ------------------------------------------------------------------------------------------

    def load(self, buffer: str, index: sympy.Expr) -> Text:
        memory = self.scope.memories[buffer]
        dtype = memory.dtype
        is_bool = dtype == torch.bool
        pointer, type_name = memory.pointer, memory_type(dtype)
        suffix = "_bool" if is_bool else ""
        if memory.per_lane:
            address = f"{pointer} + ({self._index(index)}) * lanes"
            load = f"load_bool(Full{{}}, {address})" if is_bool else f"Full::load({address})"
            return self.value(load, dtype, True)
        tile = self.scope.tiles.get((buffer, index))
        if tile is not None:
            return self.value(f"byte_mask({tile})" if is_bool else tile, dtype, True)
        access = self._access(index)
        if access == "unit":
            address = f"{pointer} + {self._index(index)}"
            load = (
                f"load_bool({self._tag}, {address})" if is_bool else f"{self._tag}.load({address})"
            )
            return self.value(load, dtype, True)
        if access == "gather":
            load = f"gather{suffix}" + ("" if is_bool else f"<{type_name}>")
            return self.value(
                f"{load}({self._tag}, {pointer}, {self._lane_function(index)})", dtype, True
            )
        element = f"{pointer}[{self._index(index)}]"
        if is_bool:
            element = f"bool({element})"
        if self._tag_is_partial:
            element = f"{self._tag}.any() ? {element} : {COMPUTE_TYPE[dtype]}(0)"
        return self.value(element, dtype, False)

    def store(self, buffer: str, index: sympy.Expr, value: Text, mode: str | None = None) -> None:
        if value.reduction is not None:
            self.stores.append((buffer, index, value.reduction, mode))
            return
        memory = self.scope.memories[buffer]
        value = self.to_dtype(value, memory.dtype)
        is_bool = memory.dtype == torch.bool
        suffix = "_bool" if is_bool else ""
        pointer = memory.pointer
        if mode is not None and mode not in ops.ATOMIC_MODES:
            raise Unsupported("no C++ form for a store", f"mode {mode!r}")
        if mode is not None and memory.dtype in (torch.bool, *NARROW_FLOATS):
            raise Unsupported("no C++ form for a store", f"{mode} of {memory.dtype}")
        if memory.per_lane:
            address = f"{pointer} + ({self._index(index)}) * lanes"
            call = f"store_bool(Full{{}}, {address}, " if is_bool else f"Full::store({address}, "
            self.emit(f"{call}{self.vector(value)});")
            return
        access = self._access(index)
        if mode is None and access == "unit":
            address = f"{pointer} + {self._index(index)}"
            call = f"store_bool({self._tag}, " if is_bool else f"{self._tag}.store("
            self.emit(f"{call}{address}, {self.vector(value)});")
        elif self.scope.vector_symbol is None or (
            mode is None and access == "uniform" and not value.varying
        ):
            self._store_one(pointer, index, value, mode)
        else:
            function = SCATTERS[mode] if mode else f"scatter{suffix}"
            self.emit(
                f"{function}({self._tag}, {pointer}, {self._lane_function(index)}, {self.vector(value)});"
            )

    def _store_one(self, pointer: str, index: sympy.Expr, value: Text, mode: str | None) -> None:
        guard = f"if ({self._tag}.any()) " if self._tag_is_partial else ""
        if mode is None:
            self.emit(f"{guard}{pointer}[{self._index(index)}] = {value.code};")
        else:
            self.emit(f"{guard}{mode}({pointer} + {self._index(index)}, {value.code});")

    # -- values ------------------------------------------------------------------------------------------

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Text:
        return Text(literal(value, dtype), dtype, False, constant=value)

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> Text:
        return self.to_dtype(Text(self.scope.scalars[number], torch.float64, False), dtype)

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> Text:
        access = self._access(expression)
        if access == "uniform":
            wide = self.value(f"i64({self._index(expression)})", torch.int64, False)
            return self.to_dtype(wide, dtype)
        symbol = self.scope.vector_symbol
        step = None
        if symbol is not None and not expression.free_symbols & self._varying_symbols:
            step = coefficient(expression, symbol)
        if step is not None:
            code = f"iota({self._index(expression)}, {self._index(step)})"
        else:
            code = f"build_index({self._lane_function(expression)})"
        return self.to_dtype(self.value(code, torch.int64, True), dtype)

    def to_dtype(self, value: Text, dtype: torch.dtype) -> Text:
        if value.dtype == dtype:
            return value
        if value.dtype in NARROW_FLOATS:
            code = f"{NARROW_FLOATS[value.dtype]}_to_f32({value.code})"
            if value.rounded is not None:  # rounding in place is shorter than there and back
                code = f"bf16_round({value.rounded})"
            widened = self.value(code, torch.float32, value.varying)
            return self.to_dtype(widened, dtype)
        if dtype in NARROW_FLOATS:
            single = self.to_dtype(value, torch.float32)
            code = f"{NARROW_FLOATS[dtype]}_from_f32({single.code})"
            if dtype in ops.FLOAT8:
                code = f"{code[:-1]}, {ops.TOO_LARGE_IN_FLOAT8[dtype]})"
            half = self.value(code, dtype, value.varying)
            return replace(half, rounded=single.code) if dtype == torch.bfloat16 else half
        converted = self.value(
            f"convert<{COMPUTE_TYPE[dtype]}>({value.code})", dtype, value.varying
        )
        if (value.dtype, dtype) == (torch.float32, torch.float64):
            return replace(converted, widened=self.vector(value))
        return converted

    def to_dtype_bitcast(self, value: Text, dtype: torch.dtype) -> Text:
        if value.dtype == torch.bool:
            value = self.to_dtype(value, torch.uint8)
        target = COMPUTE_TYPE[dtype] if dtype != torch.bool else "ui8"
        target = f"Vec<{target}>" if value.varying else target
        result = self.value(
            f"bitcast<{target}>({value.code})",
            torch.uint8 if dtype == torch.bool else dtype,
            value.varying,
        )
        return self.to_dtype(result, dtype)

    def call(self, function: str, operands: tuple[Text, ...], dtype: torch.dtype) -> Text:
        """``function`` of ``operands``, on vectors if any of them varies."""
        varying = any(o.varying for o in operands)
        if operation_named(function).cost is Cost.FUNCTION:
            is_library = by_lane(function, operands[0].dtype)
            if not is_library:
                self.scope.large_functions.append(function)
            if is_library or self.scope.out_of_line:
                function = OUT_OF_LINE + function
        arguments = ", ".join(self.vector(o) if varying else o.code for o in operands)
        return self.value(f"{function}({arguments})", dtype, varying)

    def where(self, condition: Text, value: Text, other: Text) -> Text:
        if condition.varying or value.varying or other.varying:
            chosen = self.vector(condition) if condition.varying else condition.code
            return self.value(
                f"where({chosen}, {self.vector(value)}, {self.vector(other)})", value.dtype, True
            )
        return self.call("where", (condition, value, other), value.dtype)

    def pow(self, base: Text, exponent: Text) -> Text:
        """Short cuts for the exponents 2, 3, -1 and -2 on floats; a square root differs at -0 and -inf."""
        power = exponent.constant
        if base.dtype.is_floating_point and power is not None:
            if power == -1:
                return self.call("reciprocal", (base,), base.dtype)
            if power in (2, 3, -2):
                result = self.call("mul", (base, base), base.dtype)
                if power == 3:
                    result = self.call("mul", (result, base), base.dtype)
                if power == -2:
                    result = self.call("reciprocal", (result,), base.dtype)
                return result
        return self.call("pow", (base, exponent), base.dtype)

    # -- control -----------------------------------------------------------------------------------------

    def indirect(self, value: Text, symbol: sympy.Symbol, size: sympy.Expr, check: bool) -> None:
        wide = self.to_dtype(value, torch.int64)
        name = self._name("index")
        flag = "true" if check else "false"
        active = self._tag if wide.varying else f"{self._tag}.any()"
        self.emit(
            f"const auto {name} = wrap_index<{flag}>({active}, {wide.code}, {self._index(size)}, "
            "call.error);"
        )
        self.scope.names[symbol] = name
        if wide.varying:
            self._varying_symbols.add(symbol)

    def masked(self, mask: Text, body: Callable[[], Text], other: bool | int | float) -> Text:
        return (
            self._masked_lanes(mask, body, other)
            if mask.varying
            else self._masked_all(mask, body, other)
        )

    def _masked_lanes(
        self, mask: Text, body: Callable[[], Text], other: bool | int | float
    ) -> Text:
        outer_tag, outer_partial = self._tag, self._tag_is_partial
        self._tag = self._name("chosen")
        self.emit(f"const auto {self._tag} = narrow({outer_tag}, {mask.code});")
        self._tag_is_partial = True
        inner = body()
        self._tag, self._tag_is_partial = outer_tag, outer_partial
        return self.where(mask, inner, self.constant(other, inner.dtype))

    def _masked_all(self, mask: Text, body: Callable[[], Text], other: bool | int | float) -> Text:
        saved, self.lines = self.lines, []
        inner = body()
        nested, self.lines = self.lines, saved
        name = self._name()
        type_name = COMPUTE_TYPE[inner.dtype]
        initial = self.constant(other, inner.dtype)
        if inner.varying:
            self.emit(f"Vec<{type_name}> {name} = {self.vector(initial)};")
        else:
            self.emit(f"{type_name} {name} = {initial.code};")
        self.emit(f"if ({mask.code}) {{")
        self.lines.extend("  " + line for line in nested)
        self.emit(f"  {name} = {inner.code};")
        self.emit("}")
        return Text(name, inner.dtype, inner.varying)

    def rand(self, seed: Text, offset: Text) -> Text:
        return self._random("rand", seed, offset)

    def randn(self, seed: Text, offset: Text) -> Text:
        return self._random("randn", seed, offset)

    def _random(self, function: str, seed: Text, offset: Text) -> Text:
        operands = (self.to_dtype(seed, torch.int64), self.to_dtype(offset, torch.int64))
        return self.call(function, operands, torch.float32)

    def reduction(self, kind: str, dtype: torch.dtype, value: Text) -> Text:
        if self._reduce is None or self._tag_is_partial:
            raise CodegenError(f"a reduction ({kind}) outside of a reduction stage")
        key = self._reduce(self, kind, dtype, self.to_dtype(value, dtype))
        return Text(key, REDUCTIONS[kind].result(dtype), False, reduction=key)


def _elementwise(name: str, to_bool: bool) -> Callable[..., Text]:
    def method(self: BodyPrinter, *operands: Text) -> Text:
        if to_bool and operation_named(name).connective is not None:
            operands = tuple(self.to_dtype(o, torch.bool) for o in operands)
        return self.call(name, operands, torch.bool if to_bool else operands[0].dtype)

    return method


ops.define_elementwise(BodyPrinter, ops.ELEMENTWISE, _elementwise)
