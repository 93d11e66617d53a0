"""The symbols of one capture: where each is read, and the relations that the capture came to rely on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import sympy
import torch
from weft_guards import (
    Computation,
    Guard,
    IsComputable,
    IsFinite,
    NumbersCompare,
    Predicate,
    Quantity,
    Reason,
    Relation,
    ShapeRelation,
    SizeExpression,
    Source,
    SymbolSource,
    TensorMetadata,
    TypeIs,
    simplify_relations,
)

from ..._torch import enable_python_dispatcher, storage_identity
from ..._torch.fake_mode_on_demand import EnvironmentOnDemand
from ..._torch.fakes import STEPS_ASK_FOR_SIZES, FakeTensorMode, as_computed, as_view_of
from ..._torch.symbols import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    SourcelessShapeEnv,
    checks_on_first,
    deferred_checks,
    expression_of,
    is_unbacked,
    new_symbol,
    number_of_symbols,
    oblivious_of_one,
    symbolic_number,
    unbacked_symbols,
)
from ...captured_graph import DropDataDependence, SpecialiseSizes
from ...marks import DimensionMark, MarkError, TensorMarks, check_size, marks_of
from ...unsupported import Unsupported
from .data_symbols import DataSymbols, DataSymbolSource
from .history import ValueHistory

Number = Any  # int, float, torch.SymInt or torch.SymFloat

# Of a symbolic number that is passed: the native check computes in 64 bits.
_MAX_INTEGER = 2**62 - 1


@dataclasses.dataclass(frozen=True)
class _Marked:
    """A dimension that a user marked, and the line that first read the tensor."""

    symbol_source: SymbolSource
    mark: DimensionMark


class ShapeSymbols:
    """Decides what is symbolic, makes the symbols and collects the relations between them.

    ``dynamic`` None makes symbolic what ``history`` has seen change, True every size of 2 and more and every
    number that is passed, False nothing; marks on tensors come first if ``use_marks``.  ``reason`` gives
    the user's line.
    """

    def __init__(
        self,
        history: ValueHistory,
        dynamic: bool | None,
        use_marks: bool,
        reason: Callable[[], Reason],
    ) -> None:
        self.environment_on_demand = EnvironmentOnDemand(
            functools.partial(SourcelessShapeEnv, duck_shape=False)
        )
        self._history = history
        self._dynamic = dynamic
        self._use_marks = use_marks
        self._reason = reason
        self._symbol_sources: dict[sympy.Symbol, SymbolSource] = {}
        self._floats: dict[sympy.Symbol, tuple[SymbolSource | Computation, float]] = {}
        self._relations: list[Relation] = []
        self._stride_relations: list[Relation] = []
        self._guards: list[Guard] = []  # on numbers, besides relations
        self._numbers: dict[Source | Computation, Number] = {}
        self._marked: dict[sympy.Symbol, _Marked] = {}
        self.data = DataSymbols()
        self._noted = 0  # of the environment's guards
        self._one_is_a_size = False  # of some symbol

    @property
    def environment(self) -> ShapeEnv:
        """What knows the symbols."""
        return self.environment_on_demand.get()

    @property
    def deferred_checks(self) -> int:
        """How many conditions on unbacked numbers have been relied on that a call has to check."""
        made = self.environment_on_demand.made
        return 0 if made is None else deferred_checks(made)

    @property
    def number_of_symbols(self) -> int:
        """How many symbols have been made."""
        made = self.environment_on_demand.made
        return 0 if made is None else number_of_symbols(made)

    def checks_on_first(self, count: int) -> int:
        """How many of the deferred checks ask for any of the first ``count`` symbols."""
        made = self.environment_on_demand.made
        return 0 if made is None or count == 0 else checks_on_first(made, count)

    @property
    def any_symbolic(self) -> bool:
        """Whether anything is symbolic."""
        return bool(self._symbol_sources or self._floats or self.data)

    # Tensors.

    def tensor(
        self, fake_mode: FakeTensorMode, tensor: torch.Tensor, source: Source
    ) -> tuple[torch.Tensor, TensorMetadata]:
        """A fake tensor with symbols for the sizes that vary, and the metadata that does not.

        :raises TypeError: not a tensor that code can be compiled for.
        :raises MarkError: a size is out of its mark's range.
        """
        require_history(tensor)
        metadata = TensorMetadata.of(tensor)
        is_plain = _is_plain(metadata) and not tensor.is_quantized
        dynamic = self._dynamic_dimensions(tensor, source) if is_plain else {}
        strides = self._dynamic_strides(tensor, source, bool(dynamic))
        if not dynamic and not strides:
            return fake_mode.from_tensor(tensor, static_shapes=True), metadata
        size = [
            self._size(tensor, source, d, dynamic[d]) if d in dynamic else extent
            for d, extent in enumerate(tensor.shape)
        ]
        stride = self._strides(tensor, source, size, strides)
        varying = dataclasses.replace(
            metadata, size=_fixed_extents(size), stride=_fixed_extents(stride)
        )
        with self.rules():
            return _fake_tensor(fake_mode, tensor, size, stride), varying

    def is_replaced(self, tensor: torch.Tensor, source: Source) -> bool:
        """Whether an earlier compilation found another tensor there; notes this one and its sizes.

        Such a tensor (a cache that grows, a running mean that is assigned anew) is passed to the graph, and
        so is one of a module that differs from an earlier one, even where that one's was not read.
        """
        if self._history.object_changed(source, tensor):
            return True
        if self._history.is_of_a_changed_object(source):
            return True
        self._history.changed_extents(source, "size", tensor.shape)
        if tensor.layout is torch.strided:
            self._history.changed_extents(source, "stride", tensor.stride())
        return False

    def _dynamic_dimensions(
        self, tensor: torch.Tensor, source: Source
    ) -> dict[int, DimensionMark | None]:
        """The dimensions that get a symbol, with the user's mark if there is one."""
        marks = marks_of(tensor) if self._use_marks else TensorMarks()
        changed = self._history.changed_extents(source, "size", tensor.shape)
        found: dict[int, DimensionMark | None] = {}
        for dimension, size in enumerate(tensor.shape):
            if dimension in marks.dynamic:
                mark = marks.dynamic[dimension]
                check_size(mark, size, f"dimension {dimension} of {source.name()}")
                if size > 0:
                    found[dimension] = mark
            elif dimension in marks.preferred and size >= 2:
                found[dimension] = None
            elif dimension in marks.static or self._dynamic is False or size < 2:
                continue
            elif self._dynamic is True or dimension in changed:
                found[dimension] = None
        return found

    def _dynamic_strides(
        self, tensor: torch.Tensor, source: Source, sizes_vary: bool
    ) -> frozenset[int]:
        """The strides that get a symbol where the sizes do not say them."""
        if self._dynamic is False or tensor.layout is not torch.strided:
            return frozenset()
        changed = self._history.changed_extents(source, "stride", tensor.stride())
        return frozenset(d for d in changed if tensor.stride(d) > 1) if sizes_vary else frozenset()

    def _size(
        self, tensor: torch.Tensor, source: Source, dimension: int, mark: DimensionMark | None
    ) -> Number:
        size = tensor.shape[dimension]
        symbol_source = SymbolSource(source, Quantity.SIZE, dimension)
        if mark is None:
            return self._symbol(symbol_source, size, 2, None)
        lower = max(1, min(size, 2) if mark.minimum is None else mark.minimum)
        if lower < 2:
            self._one_is_a_size = True
        number = self._symbol(symbol_source, size, lower, mark.maximum)
        self._marked[expression_of(number)] = _Marked(symbol_source, mark)
        return number

    def _strides(
        self,
        tensor: torch.Tensor,
        source: Source,
        size: Sequence[Number],
        varying: frozenset[int],
    ) -> list[Number]:
        """Strides as products of sizes, as a contiguous tensor's are, or else as symbols or numbers."""
        products: dict[int, Number] = {1: 1}
        strides: list[Number] = [0] * tensor.dim()
        for dimension in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
            value = tensor.stride(dimension)
            symbol_source = SymbolSource(source, Quantity.STRIDE, dimension)
            if value in products:
                stride = products[value]
                if isinstance(stride, torch.SymInt):
                    self._relate_stride(symbol_source, stride)
            elif dimension in varying:
                stride = self._symbol(symbol_source, value, 2, None)
            else:
                stride = value
            strides[dimension] = stride
            products[value * tensor.shape[dimension]] = stride * size[dimension]
        return strides

    def _relate_stride(self, symbol_source: SymbolSource, stride: torch.SymInt) -> None:
        symbol = sympy.Symbol(f"stride{len(self._symbol_sources)}", integer=True)
        self._symbol_sources[symbol] = symbol_source
        condition = sympy.Eq(symbol, expression_of(stride), evaluate=False)
        self._stride_relations.append(Relation(condition, self._reason()))

    # Numbers.

    def number(self, value: int | float, source: Source, is_passed: bool) -> Number:
        """The number at a source: symbolic if it varies, else ``value`` itself."""
        known = self._numbers.get(source)
        if known is not None:
            return known
        changed = self._history.number_changed(source, value)
        varies = changed if self._dynamic is None else self._dynamic and (changed or is_passed)
        number = self.varying(value, source) if varies else None
        return value if number is None else number

    def varying(self, value: int | float, source: Source) -> Number | None:
        """The symbol of a number that varies; None for one that code is compiled for alone."""
        known = self._numbers.get(source)
        if known is not None or not _can_vary(value):
            return known
        symbol_source = SymbolSource(source, Quantity.VALUE)
        if isinstance(value, float):
            self.guard(source, IsFinite())
            number = self._float(symbol_source, value)
        else:
            self.guard(source, TypeIs(int))
            number = self._symbol(symbol_source, value, -_MAX_INTEGER, _MAX_INTEGER)
        self._numbers[source] = number
        return number

    def computed(self, computation: Computation, value: float) -> Number:
        """The symbol of what is computed from floats that vary; ``value`` is what it is now."""
        number = self._numbers.get(computation)
        if number is None:
            number = self._numbers[computation] = self._float(computation, value)
        return number

    def varying_float(self, symbol: sympy.Expr) -> tuple[SymbolSource | Computation, float] | None:
        """Where a float that varies comes from and what it is now; None for other numbers."""
        return self._floats.get(symbol)

    def size_expression(self, number: Number) -> SizeExpression:
        """A number that sizes and integers determine, as an operand of a computation."""
        expression = expression_of(number)
        symbols = sorted(expression.free_symbols, key=str)
        return SizeExpression(expression, tuple((s, self._symbol_sources[s]) for s in symbols))

    def guard(self, source: Source, predicate: Predicate) -> None:
        """Guard a number, for the line being evaluated."""
        self._guards.append(Guard(source, predicate, self._reason()))

    def guard_numbers(self, predicate: NumbersCompare | IsComputable) -> None:
        """Guard what holds of several numbers; of known ones it holds for good."""
        if sources := predicate.sources():
            self.guard(sources[0], predicate)

    # Decisions.

    def rules(self) -> ExitStack:
        """A context for whatever computes with the symbols: how undecided questions on sizes are answered.

        Where a size may be 1, nothing is decided by its being 1 that holds for other sizes too.  Meta
        functions call operators that only their Python versions can evaluate on symbols, and until torch 2.13
        so do programs, on those that a loop has for its sizes and counters.
        """
        contexts = ExitStack()
        if self.any_symbolic or (STEPS_ASK_FOR_SIZES and self.number_of_symbols):
            contexts.enter_context(enable_python_dispatcher())
        if self._one_is_a_size:
            contexts.enter_context(oblivious_of_one())
        return contexts

    def require_shallow(self, results: Iterable[Any]) -> None:
        """Refuse sizes that are computed in very many steps, as of what a long loop halves in each turn.

        What torch asks of such an expression takes time that grows with the cube of its depth.
        """
        if not self.any_symbolic:
            return
        for value in results:
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and _is_deep(expression_of(size)):
                    error = DropDataDependence if unbacked_symbols(size) else SpecialiseSizes
                    raise error("a size that is computed in very many steps")

    def specialise(self, number: Number) -> int | float | bool:
        """The number as it is now, which becomes a relation."""
        kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
        kind = kinds.get(type(number))
        try:
            value: int | float | bool = number if kind is None else kind(number)
        except AssertionError as error:
            # The environment's own check of ranges near the largest integer.
            raise SpecialiseSizes(str(error)) from error
        except GuardOnDataDependentSymNode as error:
            raise Unsupported("decision by a number that depends on data", str(number)) from error
        self.note_relations()
        return value

    def contents_recur(self, source: Source, contents: tuple[Any, ...]) -> bool:
        """Whether compiling for what a tensor holds is worth it; see :class:`ValueHistory`."""
        return self._dynamic is not True and self._history.contents_recur(source, contents)

    def decided(self, condition: torch.SymBool) -> bool | None:
        """What a condition comes to, which becomes a relation; None where only data decides it."""
        try:
            value = bool(condition)
        except GuardOnDataDependentSymNode:
            return None
        self.note_relations()
        return value

    def note_relations(self) -> None:
        """Give relations that the environment has come to rely on the line being evaluated."""
        made = self.environment_on_demand.made
        guards = [] if made is None else made.guards
        if len(guards) > self._noted:
            reason = self._reason()
            self._relations.extend(
                Relation(guard.expr, reason)
                for guard in guards[self._noted :]
                if not is_unbacked(guard.expr)
            )
            self._noted = len(guards)

    def guards(self) -> tuple[Guard, ...]:
        """The guards on everything symbolic, as far as it is known what relies on it.

        :raises MarkError: a marked size is relied on to be one number.
        """
        self.note_relations()
        relations = simplify_relations(self._relations)
        self._check_marks(relations)
        floats = tuple((symbol, operand) for symbol, (operand, _) in self._floats.items())
        symbol_sources = (*self._symbol_sources.items(), *floats)
        found = [
            Guard(predicate.sources()[0], predicate, relation.reason)
            for relation in (*relations, *self._stride_relations)
            for predicate in (ShapeRelation(relation.condition, symbol_sources),)
        ]
        return (*self._guards, *found)

    def is_of_call(self, symbol: sympy.Symbol) -> bool:
        """Whether a symbol stands for a size or number of the call, which its code can read on entry."""
        return symbol in self._symbol_sources or symbol in self._floats

    def symbol_source(self, symbol: sympy.Symbol) -> SymbolSource | DataSymbolSource:
        return self.data[symbol] if symbol in self.data else self._symbol_sources[symbol]

    def _check_marks(self, relations: Sequence[Relation]) -> None:
        for relation in relations:
            condition = relation.condition
            if not isinstance(condition, sympy.Eq):
                continue
            symbol, number = condition.args
            marked = self._marked.get(symbol)
            if marked is not None and isinstance(number, sympy.Integer):
                reason = relation.reason
                raise MarkError(
                    f"{marked.symbol_source.name()} is marked dynamic, but {reason.file}:{reason.line} "
                    f"({reason.text}) needs it to be {number}: remove the mark or what fixes the size"
                )

    def _float(self, operand: SymbolSource | Computation, value: float) -> Number:
        expression = new_symbol(self.environment, value, operand.name(), None, None)
        self._floats[expression] = operand, value
        return symbolic_number(self.environment, expression, value)

    def _symbol(
        self, symbol_source: SymbolSource, value: int, lower: int | None, upper: int | None
    ) -> Number:
        expression = new_symbol(self.environment, value, symbol_source.name(), lower, upper)
        self._symbol_sources[expression] = symbol_source
        for bound, relation in ((lower, sympy.Ge), (upper, sympy.Le)):
            if bound is not None:
                self._relate(relation(expression, bound, evaluate=False))
        return symbolic_number(self.environment, expression, value)

    def _relate(self, condition: sympy.Basic) -> None:
        self._relations.append(Relation(condition, self._reason()))


def _can_vary(value: int | float) -> bool:
    """Whether code can be compiled for any number in place of this one.

    Not a zero with a sign: where an operator needs to know a float, SymPy's 0 stands for both.
    """
    if isinstance(value, float):
        return math.isfinite(value) and value != 0
    return abs(value) <= _MAX_INTEGER


def _is_plain(metadata: TensorMetadata) -> bool:
    """Whether a tensor is all told by sizes, strides, dtype and device."""
    return (
        metadata.python_type is torch.Tensor
        and metadata.layout is torch.strided
        and not metadata.is_conjugate
        and not metadata.is_negative
    )


def _fixed_extents(extents: Sequence[Number]) -> tuple[int | None, ...]:
    return tuple(extent if type(extent) is int else None for extent in extents)


def require_history(tensor: torch.Tensor) -> None:
    """:raises TypeError: autograd refuses to say how the tensor was made or to use it where gradients are on.

    It is a view, one of several or made in another mode, of what was written to since.  Nor do fakes tell
    MKL-DNN's layout, or make a view that is no part of its base: after ``resize_``, ``x.data = y``.  Integers
    that require gradients, as eager makes them where a number that does is written to them, have no fake.
    """
    if tensor.requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError("integers that require gradients")
    if tensor.is_mkldnn:
        raise TypeError("an MKL-DNN tensor")
    base = tensor._base if tensor._is_view() else None
    if base is not None and base.layout is torch.strided and not _is_part(tensor, base):
        raise TypeError("a view with memory that its base does not have")
    try:
        tensor.is_leaf  # noqa: B018
    except RuntimeError as error:
        raise TypeError(str(error)) from error


def _is_part(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether all elements of a view lie in a storage that ends where those of its base end."""
    if view.layout is not torch.strided or not view.numel():
        return True
    if storage_identity(view) != storage_identity(base) or not base.numel():
        return False
    return _end(view) <= _end(base)


def _end(tensor: torch.Tensor) -> int:
    """Where a tensor ends in its storage, in bytes."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in extents)
    return int((last + 1) * tensor.itemsize)


def _fake_tensor(
    fake_mode: FakeTensorMode, tensor: torch.Tensor, size: list[Number], stride: list[Number]
) -> torch.Tensor:
    with fake_mode, torch.inference_mode(tensor.is_inference()):
        fake: Any = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
        made: torch.Tensor = fake.requires_grad_(tensor.requires_grad)
        if not tensor.requires_grad:
            return made
        return as_view_of(fake if tensor.is_leaf else as_computed(fake_mode, fake), tensor)


_MOST_STEPS = 64  # halving a size takes two: no real one can be halved as often


def _is_deep(expression: Any) -> bool:
    level = {expression}
    for _ in range(_MOST_STEPS):
        level = {part for whole in level for part in whole.args}
        if not level:
            return False
    return True
