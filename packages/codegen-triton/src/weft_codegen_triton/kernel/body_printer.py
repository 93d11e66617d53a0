"""The handler of ``ops`` that prints a loop body as Triton, one line an operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from weft_loop_ir import CombineFunction, LoopBody, SizeFloat, print_index
from weft_loop_ir.bodies import MUL, operation_named
from weft_loop_ir.bodies.patterns import rewritten
from weft_loop_ir.ops import (
    ELEMENTWISE,
    FLOAT8,
    HALVES,
    STORAGE_ONLY,
    TOO_LARGE_IN_FLOAT8,
    define_elementwise,
)
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_triton.kernel.aligned_sizes import SizeNumbers
from weft_codegen_triton.kernel.bit_fields import BitField, BitFields, Word
from weft_codegen_triton.kernel.dtypes import (
    ATOMIC_ADD,
    EIGHT_BITS,
    INDEX,
    literal,
    triton_dtype,
    wrapped,
)
from weft_codegen_triton.kernel.index_bounds import is_beyond
from weft_codegen_triton.kernel.known_values import KnownValues
from weft_codegen_triton.kernel.operations import ALWAYS, FOR_HALF, template

Axes = frozenset[str]
NO_AXES: Axes = frozenset()
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Text:
    """A value: the name that holds it, and the tile's axes along which it may differ."""

    code: str
    dtype: torch.dtype
    axes: Axes


@dataclass(frozen=True)
class ReductionResult:
    """Stands for a reduction's result until the loop is over; only ``store`` takes it."""

    number: int


@dataclass(frozen=True)
class RowAccess:
    """An element of a row that is read by vectors, at ``code`` of its buffer.

    ``mask``: where to access it, None as the tile's masks say; ``rest``: where a second store does.
    """

    code: str
    axes: Axes
    mask: str | None
    rest: str | None


@dataclass
class Tile:
    """The shape that values have now: axis names in order, their masks, and what each symbol is."""

    axes: tuple[str, ...]
    shape: str
    unit: str
    masks: dict[str, str] = field(default_factory=lambda: {"x": "xmask"})
    names: dict[sympy.Symbol, str] = field(default_factory=dict)
    symbol_axes: dict[sympy.Symbol, Axes] = field(default_factory=dict)
    sizes: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)


class BodyPrinter:
    """Prints the bodies of a kernel's stages in one function.

    ``pointers`` maps buffer names to pointer parameters; ``registers`` names local buffers that are values.
    """

    def __init__(
        self,
        tile: Tile,
        pointers: Mapping[str, str],
        dtypes: Callable[[str], torch.dtype],
        registers: frozenset[str],
        wide: bool,
    ) -> None:
        self.tile = tile
        self.pointers = pointers
        self.dtype_of = dtypes
        self.registers = registers
        self.wide = wide
        self.index_type = "tl.int64" if wide else "tl.int32"
        self.cast = ".to(tl.int64)" if wide else ""  # what follows an index that may need 64 bits
        self.lines: list[str] = []
        self.indent = 1
        self.count = 0
        self.mask: Text | None = None
        self.known: dict[str, Text] = {}
        self.loaded: dict[tuple[str, str, str], Text] = {}
        self.local: dict[tuple[str, str], Text] = {}
        self.recomputed: Mapping[str, LoopBody] = {}  # rows to what computes an element anew
        self.scalars: dict[SizeFloat, str] = {}  # parameters
        self.numbers = SizeNumbers()  # parameters
        self.facts = KnownValues()
        self.scalings: dict[str, tuple[Text, Text]] = {}  # see _note_scaling
        self.for_half = False  # all floats that are stored have 16 bits
        self.divides_exactly = False  # quotients are rounded as eager's, not within an ulp or two
        self.uses_assert = False
        self.uses_atomics = False
        self.waits_to_store = False  # several threads hold an element, and it is overwritten
        self.has_loaded = False  # since they last waited
        self.unsettled: set[str] = set()  # stored to since they last waited
        self.load_policy: Callable[[str, sympy.Expr], str] | None = (
            None  # what the cache should keep
        )
        self.store_policy = ""
        self.row_access: Callable[[str, sympy.Expr, bool], RowAccess | None] | None = None
        self.word_of: Callable[[str, sympy.Expr], Word | None] | None = None
        self.bits = BitFields()
        self.reduce: Callable[[str, torch.dtype, Text], ReductionResult] | None = None
        self.scanner: Callable[[tuple[Text, ...]], list[Text]] | None = None
        self.store_result: Callable[[ReductionResult, str, sympy.Expr], None] | None = None

    def replay(self, body: LoopBody) -> Any:
        """Print ``body``, shorter forms in the place of what they stand for; gives its result."""
        return rewritten(body, FOR_HALF if self.for_half else ALWAYS).replay(self)

    # -- lines -----------------------------------------------------------------------------------------

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.indent + line for line in lines]

    def name(self, code: str, dtype: torch.dtype, axes: Axes) -> Text:
        """A new value ``code``, or the one that has been computed already."""
        found = self.known.get(code)
        if found is None:
            found = Text(f"t{self.count}", dtype, axes)
            self.count += 1
            self.emit(f"{found.code} = {code}")
            self.known[code] = found
        return found

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """The body of the loop that begins with the line ``head``; no value made in it is known after it."""
        known, loaded = dict(self.known), dict(self.loaded)
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1
        self.known, self.loaded = known, loaded

    # -- indices ---------------------------------------------------------------------------------------

    def number(self, expression: sympy.Expr) -> str:
        """An expression over symbols that have names, and sizes."""
        named = self.numbers.named(expression)
        self.numbers.mentioned |= named.free_symbols
        return print_index(named, INDEX, self.tile.names)

    def index(self, expression: sympy.Expr) -> tuple[str, Axes]:
        return self.number(expression), self._axes(expression)

    def _axes(self, expression: sympy.Expr) -> Axes:
        symbols = expression.free_symbols
        return frozenset().union(*(self.tile.symbol_axes.get(s, NO_AXES) for s in symbols))

    def address(self, buffer: str, expression: sympy.Expr, full: bool) -> tuple[str, Axes]:
        """The pointer of an element; with ``full`` it has the whole tile's shape."""
        code, axes = self.index(expression)
        if full and axes != frozenset(self.tile.axes):
            spread = f"tl.full({self.tile.shape}, 0, {self.index_type})"
            code, axes = f"{code} + {spread}", frozenset(self.tile.axes)
        return f"{self.pointers[buffer]} + {code}", axes

    def access_mask(self, axes: Axes) -> str:
        """The mask of an access that differs along ``axes``."""
        inside = self._tile_mask(axes)
        if self.mask is None:
            return inside
        return f"{inside} & {self.mask.code}" if inside else self.mask.code

    def _tile_mask(self, axes: Axes) -> str:
        """That of the points which there are."""
        masks = self.tile.masks
        return " & ".join(masks[a] for a in self.tile.axes if a in axes and a in masks)

    # -- memory ----------------------------------------------------------------------------------------

    def load(self, buffer: str, index: sympy.Expr) -> Text:
        if buffer in self.recomputed:
            value: Text = self.replay(self.recomputed[buffer])
            return value
        if buffer in self.registers:
            return self.local[buffer, self.index(index)[0]]
        word = (
            None if self.word_of is None or self.mask is not None else self.word_of(buffer, index)
        )
        if word is not None:
            return self._of_word(buffer, word)
        row = self._row(buffer, index, False)
        if row is not None:
            address, axes = f"{self.pointers[buffer]} + {row.code}", row.axes
            mask = self.access_mask(axes) if row.mask is None else row.mask
        else:
            address, axes = self.address(buffer, index, self.mask is not None)
            mask = self.access_mask(axes)
        key = (buffer, address, mask)
        found = self.loaded.get(key) or self.loaded.get((buffer, address, self._tile_mask(axes)))
        if found is not None:
            return found
        if buffer in self.unsettled:
            self.settle()
        options = f", {mask}" if mask else ""
        if self.mask is not None:
            options += ", other=0"
        if self.load_policy is not None:
            options += self.load_policy(buffer, index)
        value = Text(f"t{self.count}", self.dtype_of(buffer), axes)
        self.count += 1
        self.emit(f"{value.code} = tl.load({address}{options})")
        self.has_loaded = True
        self.loaded[key] = value
        return value

    def _of_word(self, buffer: str, word: Word) -> Text:
        """An element of a word: all that a thread reads of it at once, so that no other thread needs any.

        Threads lie along words as they do along what other operands have beside these.
        """
        dtype, (index, axes) = self.dtype_of(buffer), self.index(word.index)
        bits, bytes_ = 8 * dtype.itemsize, word.count * dtype.itemsize
        pointer, kept = self.pointers[buffer], triton_dtype(dtype)
        if word.count > 1:
            pointer = f"{pointer}.to(tl.pointer_type(tl.int{8 * bytes_}))"
        index = f"tl.max_contiguous({index}, {self.tile.unit})" if word.is_alone else index
        address, mask = f"{pointer} + {index}", self.access_mask(axes)
        whole = self.loaded.get((buffer, address, mask))
        if whole is None:
            whole = Text(
                f"t{self.count}", WORDS.get(bytes_, dtype) if word.count > 1 else dtype, axes
            )
            self.count += 1
            self.emit(f"{whole.code} = tl.load({address}{f', {mask}' if mask else ''})")
            self.loaded[buffer, address, mask] = whole
        if word.count == 1:
            return whole
        half, shift = divmod(bits * word.position, 32)
        code = f"({whole.code} >> {32 * half}).to(tl.int32)" if bytes_ == 8 else whole.code
        of_dtype = f"({code} >> {shift}).to(tl.int{bits}).to({kept}, bitcast=True)"
        value = self.name(of_dtype, dtype, axes)
        if dtype is torch.bfloat16:  # the upper half of float32
            moved = f"({code} & -65536)" if shift else f"({code} << 16)"
            single = self.name(f"{moved}.to(tl.float32, bitcast=True)", torch.float32, axes)
            self.facts.exact[value.code] = single.code
        if bytes_ == 4 and dtype in (torch.int8, torch.uint8):
            self.bits.fields[value.code] = BitField(whole.code, shift, bits, dtype is torch.int8)
        return value

    def settle(self) -> None:
        """Have all threads wait: one may load what another has stored."""
        self.emit("tl.debug_barrier()")
        self.has_loaded = False
        self.unsettled.clear()

    def hold(self, buffer: str, index: sympy.Expr, code: str) -> None:
        """Have ``code`` be what loads of this element give."""
        address, axes = self.address(buffer, index, False)
        key = (buffer, address, self.access_mask(axes))
        self.loaded[key] = Text(code, self.dtype_of(buffer), axes)

    def store(
        self, buffer: str, index: sympy.Expr, value: Text | ReductionResult, mode: str | None = None
    ) -> None:
        if isinstance(value, ReductionResult):
            assert self.store_result is not None
            self.store_result(value, buffer, index)
            return
        if buffer in self.recomputed:
            return
        if buffer in self.registers:
            self.local[buffer, self.index(index)[0]] = value
            return
        self.write(buffer, index, value, mode)

    def _row(self, buffer: str, index: sympy.Expr, is_store: bool) -> RowAccess | None:
        if self.row_access is None or self.mask is not None:
            return None
        return self.row_access(buffer, index, is_store)

    def write(self, buffer: str, index: sympy.Expr, value: Text, mode: str | None) -> None:
        """Store to memory, once for each point of the tile."""
        if self.waits_to_store and self.has_loaded:
            self.settle()
        self.unsettled.add(buffer)
        row = self._row(buffer, index, True) if mode is None else None
        if row is not None and row.rest is not None:
            address = f"{self.pointers[buffer]} + {row.code}"
            for mask in (row.mask, row.rest):
                self.emit(f"tl.store({address}, {value.code}, {mask}{self.store_policy})")
            self._forget(buffer)
            return
        if row is not None:
            address, axes = f"{self.pointers[buffer]} + {row.code}", row.axes
        else:
            address, axes = self.address(buffer, index, True)
        mask = self.access_mask(axes)
        self._forget(buffer)
        options = f", {mask}" if mask else ""
        if mode is None:
            self.emit(f"tl.store({address}, {value.code}{options}{self.store_policy})")
            if value.dtype is self.dtype_of(buffer):
                self.loaded[buffer, address, mask] = value
                narrow, own = self.address(buffer, index, False)
                if row is None and value.axes <= own:
                    self.loaded[buffer, narrow, self.access_mask(own)] = value
            return
        dtype = self.dtype_of(buffer)
        if mode != "atomic_add" or dtype not in ATOMIC_ADD:
            raise Unsupported("no Triton form for a store", f"{mode} of {dtype}")
        self.uses_atomics = True
        spread = f"tl.broadcast_to({value.code}, {self.tile.shape})"
        self.emit(f'tl.atomic_add({address}, {spread}{options}, sem="relaxed")')

    def _forget(self, buffer: str) -> None:
        """What has been loaded of ``buffer`` is written over."""
        for key in [k for k in self.loaded if k[0] == buffer]:
            del self.loaded[key]

    # -- values ----------------------------------------------------------------------------------------

    def reduction(self, kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
        assert self.reduce is not None
        return self.reduce(kind, dtype, value)

    def scan(self, combine_function: CombineFunction, number: int, *values: Text) -> Text:
        assert self.scanner is not None
        return self.scanner(values)[number]

    def fold(
        self, combine_function: CombineFunction, number: int, *values: Text
    ) -> ReductionResult:
        assert self.scanner is not None
        self.scanner(values)
        return ReductionResult(number)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Text:
        if dtype in FLOAT8:
            return self.to_dtype(self.constant(value, torch.float32), dtype)
        if dtype.is_floating_point:
            value = float(value)
        elif dtype is not torch.bool:
            value = wrapped(int(value), dtype)
        code = f"tl.full({self.tile.unit}, {literal(value)}, {triton_dtype(dtype)})"
        made = self.name(code, dtype, NO_AXES)
        if not math.isnan(value):
            self.facts.ranges[made.code] = float(value), float(value)
        self.bits.numbers[made.code] = value
        return made

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> Text:
        """A parameter, handed over as the bits of a double: Triton would round a float argument."""
        parameter = self.scalars.setdefault(number, f"scalar{len(self.scalars)}")
        bits = f"tl.full({self.tile.unit}, {parameter}, tl.int64).to(tl.float64, bitcast=True)"
        return self.to_dtype(self.name(bits, torch.float64, NO_AXES), dtype)

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> Text:
        if isinstance(expression, sympy.Integer):
            return self.constant(int(expression), dtype)
        axes, names = self._axes(expression), self.tile.names
        if not self.wide and is_beyond(expression, self.tile.sizes):
            symbols = expression.free_symbols
            names = {s: f"{names.get(s, str(s.name))}.to(tl.int64)" for s in symbols}
            self.numbers.mentioned |= symbols
            code = print_index(expression, INDEX, names)
        else:
            code = self.number(expression)
        if not axes:
            zero = f"tl.full({self.tile.unit}, 0, {triton_dtype(dtype)})"
            return self.name(f"({code} + {zero})", dtype, NO_AXES)
        return self.name(f"({code}).to({triton_dtype(dtype)})", dtype, axes)

    def to_dtype(self, value: Text, dtype: torch.dtype) -> Text:
        if value.dtype is not dtype and (value.dtype in FLOAT8 or dtype in FLOAT8):
            return self._float8(value, dtype)
        if dtype is torch.bool:
            return self.name(f"({value.code} != 0)", dtype, value.axes)
        if dtype is torch.float32:
            single = self._of_bits(value)
            if single is not None:
                return single
        if dtype in HALVES and (value.dtype in EIGHT_BITS or self.bits.is_small(value.code)):
            return self._exactly(self.to_dtype(value, torch.float32), dtype)
        if dtype is torch.float32 and value.dtype in (torch.int8, torch.uint8):
            function = f"weft.float_of_{str(value.dtype)[6:]}"
            return self.name(f"{function}({value.code})", dtype, value.axes)
        if value.code in self.facts.exact and dtype is torch.float32:
            return Text(self.facts.exact[value.code], dtype, value.axes)
        if dtype is torch.float32 and value.dtype in HALVES:
            code = self.facts.widening(value.code, value.dtype)
            wide = self.name(code or f"{value.code}.to(tl.float32)", dtype, value.axes)
            if code is None:
                self.facts.note_widening(value.dtype, wide.code)
            return wide
        through = "".join(f".to({triton_dtype(d)})" for d in _by_way_of(value.dtype, dtype))
        made = self.name(f"{value.code}{through}.to({triton_dtype(dtype)})", dtype, value.axes)
        if not (value.dtype.is_floating_point or dtype.is_floating_point):
            self.bits.note_conversion(value.code, made.code, dtype)
        if value.dtype is torch.float32:
            self.facts.note_conversion(value.code, dtype, made.code)
        return made

    def _of_bits(self, value: Text) -> Text | None:
        """float32 of an integer that is some bits of a word, or a difference of two such."""
        known = self.bits.single(value.code)
        code = self.bits.difference(value.code) if known is None else known.single(0)
        if code is None:
            return None
        single = self.name(code, torch.float32, value.axes)
        if known is not None:
            self.bits.floats[single.code] = known, 0
        return single

    def _exactly(self, single: Text, dtype: torch.dtype) -> Text:
        """In 16 bits a float32 value that these hold exactly."""
        made = self.to_dtype(single, dtype)
        self.facts.exact[made.code] = single.code
        return made

    def _float8(self, value: Text, dtype: torch.dtype) -> Text:
        """A conversion of numbers of 8 bits, or to them, by way of float32."""
        if value.dtype in FLOAT8:
            code = f"weft.from_{str(value.dtype)[6:]}({value.code})"
            single = self.name(code, torch.float32, value.axes)
            return self._exactly(single, dtype) if dtype in HALVES else self.to_dtype(single, dtype)
        single = value
        if value.dtype is not torch.float32:
            single = self.to_dtype(value, torch.float32)
        code = f"weft.to_{str(dtype)[6:]}({single.code}, {TOO_LARGE_IN_FLOAT8[dtype]})"
        if self.facts.is_within(single.code, torch.finfo(dtype).max):
            code = f"weft.to_{str(dtype)[6:]}_within({single.code})"
        return self.name(code, dtype, value.axes)

    def truediv(self, value: Text, other: Text) -> Text:
        """A quotient of floats; cheaper where the divisor is the same for a row, or not below 1."""
        axes = value.axes | other.axes
        code = f"({value.code} / {other.code})"
        if value.dtype is torch.float32:
            is_large = (
                other.code in self.facts.at_least_one
            )  # as exponentials are, which are not exact
            if other.axes < axes and self.divides_exactly:
                code = f"weft.divide_by_row_exactly({value.code}, {other.code})"
            elif other.axes < axes:
                function = "divide_by_large_row" if is_large else "divide_by_row"
                code = f"weft.{function}({value.code}, {other.code})"
            elif is_large:
                code = f"weft.divide_by_one_or_more({value.code}, {other.code})"
            elif self.divides_exactly:
                code = f"weft.divide({value.code}, {other.code})"
        return self.name(code, value.dtype, axes)

    def divide_by_large(self, value: Text, other: Text) -> Text:
        self.facts.at_least_one.add(other.code)
        return self.truediv(value, other)

    def exp_of_negative(self, value: Text) -> Text:
        return self.name(f"(weft.exp_of_negative_for_half({value.code}))", value.dtype, value.axes)

    def gelu(self, value: Text) -> Text:
        return self.name(f"(weft.gelu_for_half({value.code}))", value.dtype, value.axes)

    def _note_scaling(self, product: Text, left: Text, right: Text) -> None:
        """Remember ``product`` if it scales elements by the inverse of a root that a row has once."""
        innermost = self.tile.axes[-1]
        for value, scale in ((left, right), (right, left)):
            if scale.code in self.facts.inverse_roots and innermost in value.axes - scale.axes:
                self.scalings[product.code] = (value, scale)

    def _scale_of_row(self, left: Text, right: Text) -> tuple[Text, Text] | None:
        """``(value * scale) * factor`` as ``value * (scale * factor)``, where a row has the latter once."""
        innermost = self.tile.axes[-1]
        for product, factor in ((left, right), (right, left)):
            if product.code in self.scalings and innermost not in factor.axes:
                value, scale = self.scalings[product.code]
                axes = scale.axes | factor.axes
                return value, self.name(f"({scale.code} * {factor.code})", scale.dtype, axes)
        return None

    def to_dtype_bitcast(self, value: Text, dtype: torch.dtype) -> Text:
        return self.name(f"{value.code}.to({triton_dtype(dtype)}, bitcast=True)", dtype, value.axes)

    def where(self, condition: Text, value: Text, other: Text) -> Text:
        axes = condition.axes | value.axes | other.axes
        code = f"tl.where({condition.code}, {value.code}, {other.code})"
        made = self.name(code, value.dtype, axes)
        self.facts.note_choice((value.code, other.code), made.code)
        return made

    def indirect(self, value: Text, symbol: sympy.Symbol, size: sympy.Expr, check: bool) -> None:
        extent = self.number(size)
        code = f"tl.where({value.code} < 0, {value.code} + {extent}, {value.code})"
        if value.dtype in (torch.uint8,):
            code = f"{value.code}.to(tl.int32)"
        index = self.name(code, torch.int64, value.axes)
        if check:
            self.uses_assert = True
            inside = f"({index.code} >= 0) & ({index.code} < {extent})"
            masks = self.tile.masks
            outside_mask = [
                f"({masks[a]} == 0)" for a in self.tile.axes if a in value.axes and a in masks
            ]
            if self.mask is not None:
                outside_mask.append(f"({self.mask.code} == 0)")
            condition = " | ".join([f"({inside})", *outside_mask])
            self.emit(f'tl.device_assert({condition}, "index out of bounds")')
        self.tile.names[symbol] = index.code
        self.tile.symbol_axes[symbol] = value.axes
        self.tile.sizes[symbol] = size

    def masked(self, mask: Text, body: Callable[[], Text], other: bool | int | float) -> Text:
        previous = self.mask
        if previous is None:
            self.mask = mask
        else:
            both = f"{previous.code} & {mask.code}"
            self.mask = self.name(both, torch.bool, previous.axes | mask.axes)
        value = body()
        self.mask = previous
        otherwise = self.constant(other, value.dtype)
        return self.where(mask, value, otherwise)

    def rand(self, seed: Text, offset: Text) -> Text:
        return self._random("weft.uniform", seed, offset)

    def randn(self, seed: Text, offset: Text) -> Text:
        return self._random("weft.normal", seed, offset)

    def _random(self, function: str, seed: Text, offset: Text) -> Text:
        code = f"{function}({seed.code}, {offset.code})"
        return self.name(code, torch.float32, seed.axes | offset.axes)


def _by_way_of(source: torch.dtype, target: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes through which torch converts, where a direct conversion gives something else."""
    if torch.float32 not in (source, target) and (source in STORAGE_ONLY or target in STORAGE_ONLY):
        return (torch.float32,)
    if source.is_floating_point and not target.is_floating_point and target.itemsize < 4:
        return (torch.int32,)  # out of range, wraps instead of saturating
    return ()


def _elementwise(name: str, to_bool: bool) -> Callable[..., Text]:
    operation = operation_named(name)

    def method(self: BodyPrinter, *operands: Text) -> Text:
        dtype = operands[0].dtype
        if operation is MUL and self.for_half:
            operands = self._scale_of_row(*operands) or operands
        codes = tuple(o.code for o in operands)
        code = template(name, dtype, self.for_half).format(*codes)
        axes: Axes = frozenset().union(*(o.axes for o in operands))
        added = self.bits.added(operation, codes) if dtype is torch.float32 else None
        if added is not None:
            made = self.name(added[0].single(added[1]), dtype, axes)
            self.bits.floats[made.code] = added
            return made
        made = self.name(f"({code})", torch.bool if to_bool else dtype, axes)
        self.bits.note_operation(operation, codes, made.code, dtype)
        self.facts.note_operation(operation, codes, made.code)
        if operation is MUL and made.dtype is torch.float32:
            self._note_scaling(made, *operands)
        return made

    return method


define_elementwise(BodyPrinter, ELEMENTWISE, _elementwise)
