"""Fake tensors whose results are remembered: an operator runs once for operands that look alike.

A model repeats its layers and an optimizer its update of each parameter, so most operators have been
evaluated before on tensors of the same sizes.  Torch's fake mode has a cache too; finding a result in it
costs ten times what making the result does.  What a mode remembers, others may be given
(:mod:`.known_results`): those of a frame's other evaluations, and of other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ..._torch import (
    OpOverload,
    argument_names,
    count_list_writes,
    runs_in_backward,
    same_dispatch,
    shares_operands,
    storage_identity,
    written_operands,
)
from ..._torch.composed_operators import is_composed, run_composed
from ..._torch.fake_mode_on_demand import FakeModeOnDemand
from ..._torch.fakes import (
    FakeForm,
    FakeLayout,
    FakeTensor,
    computed_constant,
    fake_of_leaf,
    hold_constant,
    is_strided,
    known_numbers,
    read_as_it_is,
)
from ..._torch.symbols import has_known_sizes, has_symbolic_layout, has_unbacked_symbols
from ...unsupported import Unsupported
from .fake_corrections import (
    as_kernel_computes,
    has_eager_strides,
    rule_for,
    with_eager_strides,
)
from .kernel_strides import may_have_other_strides, with_kernel_strides
from .known_results import KnownResult, key_text
from .operator_warnings import WARN_OF_TOO_FEW, warn_of_too_few
from .storages import leaves, storages
from .symbolic_results import (
    PLAIN,
    SymbolicResult,
    ambient,
    symbolic_key,
    symbolic_result,
)
from .whole_windows import covers_windows, of_image, whole

_DEVICE = torch.ops.prim.device.default
_NONZERO = torch.ops.aten.nonzero.default

_Result = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Gives what an operator gives again, of its arguments."""

OperandCheck = Callable[[Any, Sequence[Any], Mapping[str, Any]], None]
"""Raises for an operator and arguments that eager refuses and the operator's fake lets pass."""


class RememberingFakeMode(FakeModeOnDemand):
    """A fake mode that knows what operators gave for operands of the same dtypes, layouts and devices.

    What depends on data or raises goes through torch's own mode each time, and so do known values but where
    an operator computes by element, or of values that are not all known.
    """

    def __init__(
        self,
        check_operands: OperandCheck | None = None,
        known: MutableMapping[str, KnownResult] | None = None,
        **options: Any,
    ) -> None:
        """``known`` is what other captures got, and this one adds to it; ``options`` are the base's."""
        super().__init__(**options)
        self._check_operands = check_operands
        self._known = {} if known is None else known
        self._operators: dict[OpOverload, tuple[str | None, bool]] = {}
        self._writing: set[OpOverload] = set()  # of these
        # What was found of inference tensors since the last write, by identity, with the tensor.
        self._places: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._results: dict[tuple[Any, ...], _Result] = {}
        self._symbolic_results: dict[tuple[Any, ...], SymbolicResult] = {}
        self._leaves: dict[tuple[Any, ...], FakeForm | None] = {}

    def from_leaf(self, tensor: torch.Tensor) -> FakeTensor:
        """``from_tensor`` of a parameter or a buffer, with sizes that are numbers."""
        fake = fake_of_leaf(self, self._leaves, tensor)
        if fake is not None:
            return fake
        with torch.inference_mode(tensor.is_inference()):
            return read_as_it_is(super().from_tensor(tensor, static_shapes=True))

    def from_tensor(self, tensor: torch.Tensor, **options: Any) -> FakeTensor:
        """The fake of ``tensor``; not by torch's converter where it is plain and its sizes are numbers."""
        if options == {"static_shapes": True}:
            fake = fake_of_leaf(self, self._leaves, tensor)
            if fake is not None:
                return fake
        return read_as_it_is(super().from_tensor(tensor, **options))

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What ``func`` gives on fake tensors."""
        if func is _DEVICE:  # asked for with each argument in Python; a fake knows it
            return args[0].fake_device
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and is_composed(func):
            with self:
                return run_composed(func, args, kwargs)
        kind, by_element = self._operators.get(func) or self._examine(func)
        if func in self._writing:
            self._places.clear()
            _refuse_outside_inference_mode(func, args, kwargs)
            count_list_writes(func, args, kwargs)
        if func is _NONZERO and args[0].is_inference():
            return self._places_in(args[0], types)
        if kind is None and func is _LIFT:
            literal = self.fake_of_literal(args[0])
            if literal is not None:
                return literal
        if func in WARN_OF_TOO_FEW:
            warn_of_too_few(func, args, kwargs)
        key = None if kind is None else self._key(kind, by_element, func, args, kwargs)
        if kind is None or key is None:
            return self._dispatch_varying(kind, func, types, args, kwargs)
        again = self._results.get(key) or self._of_other_capture(func, key)
        if again is not None:
            return again(args, kwargs)
        self._check(func, args, kwargs)
        result = self._dispatch_plain(func, types, args, kwargs)
        known = _looks(self, kind, args, kwargs, result)
        if known is not None and known.has_value and not by_element:
            return result
        if known is not None and key == self._key(kind, by_element, func, args, kwargs):
            self._results[key] = _again(self, func, known)
            if not runs_in_backward():  # whose operands are not checked
                self._known[key_text(key)] = known
        return result

    def _places_in(self, mask: torch.Tensor, types: Sequence[type]) -> Any:
        """The places of a mask's elements: as many as before, where nothing has been written since.

        Torch's mode knows that of tensors with a version, which inference tensors have not.
        """
        known = self._places.get(id(mask))
        if known is not None:
            with self:
                return torch.empty_like(known[1])
        result = self._dispatch_varying(None, _NONZERO, types, (mask,), {})
        self._places[id(mask)] = mask, result
        return result

    def _dispatch_varying(
        self,
        kind: str | None,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """What ``func`` gives of what may be symbolic, which this mode alone remembers."""
        key = symbolic_key(self, func, args, kwargs) if kind in (_FRESH, _VIEW) else None
        again = None if key is None else self._symbolic_results.get(key)
        if again is not None:
            return again(args)
        self._check(func, args, kwargs)
        result = self._dispatch_new(func, types, args, kwargs)
        if key is not None:
            again = symbolic_result(self, args, kwargs, result)
            if again is not None and key == symbolic_key(self, func, args, kwargs):
                self._symbolic_results[key] = again
        return result

    def _of_other_capture(self, func: Any, key: tuple[Any, ...]) -> _Result | None:
        """What answers a call that an earlier capture has seen."""
        known = self._known.get(key_text(key))
        if known is None:
            return None
        again = self._results[key] = _again(self, func, known)
        return again

    def _check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise what eager refuses and torch's mode lets pass."""
        if isinstance(func, OpOverload):
            # what a formula of autograd's calls in backward is not the program's
            if self._check_operands is not None and not runs_in_backward():
                self._check_operands(func, args, kwargs)
            if func in _SELECTS:
                _check_position(*args)
            if func in _OF_ONE_DTYPE:
                _check_one_dtype(func, *args[:2])

    def _dispatch_new(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What ``func`` gives of what may be symbolic."""
        rule = rule_for(func, args)
        if rule is not None:
            with self, self._unchecked():
                result = rule(*args, **kwargs)
            if result is not None:
                return result
        return self._dispatch_plain(func, types, args, kwargs)

    @contextmanager
    def _unchecked(self) -> Iterator[None]:
        """Ask nothing about the operands of what a rule computes: its own have been checked."""
        check, self._check_operands = self._check_operands, None
        try:
            yield
        finally:
            self._check_operands = check

    def _dispatch_plain(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What torch's own mode gives, with eager's strides."""
        if func is torch.ops.aten.linalg_vector_norm.default and len(args) > 2:
            args = _counted_from_the_front(*args)
        if covers_windows(func, args):
            with self:
                covered, others = whole(func, args, kwargs)
                return of_image(func, args, super().dispatch(func, types, covered, others))
        unchecked = self._unchecked() if func in _SUBSCRIPTS else nullcontext()
        with unchecked:
            result: Any = super().dispatch(func, types, args, kwargs)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            _require_no_gradients(result, (*args, *kwargs.values()))
        if _waits_for_several(func):
            with self:  # torch's gives the operands, which hold nothing until they are waited for
                return [torch.empty_like(value) for value in result]
        with self:
            result = as_kernel_computes(func, args, result)
        if not has_eager_strides(func):
            with self:
                result = with_eager_strides(func, args, kwargs, result)
        if may_have_other_strides(func, result):
            with self:
                return with_kernel_strides(func, args, kwargs, result)
        return result

    def _examine(self, func: Any) -> tuple[str | None, bool]:
        """How the results of an operator are made again, None where they are not; if it is by element."""
        kind = _kind_of(func) if isinstance(func, OpOverload) else None
        by_element = kind is not None and _computes_by_element(func)
        self._operators[func] = kind, by_element
        if not isinstance(func, OpOverload) or written_operands(func):
            self._writing.add(func)
        return kind, by_element

    def _key(
        self,
        kind: str,
        by_element: bool,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, ...] | None:
        """All that a result depends on; None where there is more than can be compared."""
        parts: list[Any] = [func, *ambient()]
        if not self._add_all(args, kwargs, parts, by_element):
            # as a cache that begins with an empty literal, to which keys are appended
            if kind != _FRESH or not _is_partly_known((*args, *kwargs.values())):
                return None
            parts = [func, *ambient()]
            if not self._add_all(args, kwargs, parts, by_element, with_values=True):
                return None
        if kind == _VIEW and not isinstance(args[0], FakeTensor):
            return None  # a number, which torch makes a tensor of
        if kind == _VIEW:
            place = (args[0].storage_offset(), args[0].untyped_storage().nbytes())
            if any(type(number) is not int for number in place):
                return None  # a part of a fixed size of what has a symbolic one
            parts += place
        return tuple(parts)

    def _add_all(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        parts: list[Any],
        by_element: bool,
        with_values: bool = False,
    ) -> bool:
        """As :meth:`_add` for all arguments."""
        for value in args:
            if not self._add(value, parts, by_element, with_values):
                return False
        for name, value in kwargs.items():
            parts.append(name)
            if not self._add(value, parts, by_element, with_values):
                return False
        return True

    def _add(
        self, value: Any, parts: list[Any], by_element: bool, with_values: bool = False
    ) -> bool:
        """Add what of a value results depend on; False where that is not known.

        With ``with_values`` known values count among that, also those of tensors in lists.
        """
        kind = type(value)
        if kind is FakeTensor:
            known = value.constant is not None
            if not self._is_plain(value) or (known and not (by_element or with_values)):
                return False
            parts += (value.dtype, value.shape, value.stride(), value.fake_device, known)
            if known and with_values:
                parts += known_numbers(value)
        elif kind in PLAIN:
            parts += (kind, value)  # 1, 1.0 and True are equal
        elif kind is list or kind is tuple:
            parts += (kind, len(value))
            return all(self._add(item, parts, False, with_values) for item in value)
        else:
            return False
        return True

    def _is_plain(self, value: FakeTensor) -> bool:
        """Whether its dtype, sizes, strides and device say all that matters to what is no view of it."""
        return value.fake_mode is self and is_strided(value) and has_known_sizes(value)

    def looks_of(self, values: Sequence[Any]) -> list[Any] | None:
        """All that what is computed of ``values`` depends on, None where that is not known."""
        parts = ambient()
        return parts if all(self._add(value, parts, False) for value in values) else None

    def layout_of(self, value: Any, base: FakeTensor | None = None) -> FakeLayout | None:
        """All that tells ``value`` from other fake tensors, None where that is more than a layout.

        ``base``: what it is a view of, if so, which says whether it is an inference tensor.
        """
        if type(value) is not FakeTensor or not self._is_plain(value) or value.requires_grad:
            return None
        if has_symbolic_layout(value):
            return None  # its offset is symbolic
        layout = FakeLayout.of(value)
        return layout if same_dispatch(FakeForm(self, layout).new(base), value) else None


def _is_partly_known(operands: Sequence[Any]) -> bool:
    """Whether the values of some tensors are known and those of others are not: then the result's is not."""
    known = {value.constant is not None for value in leaves(operands) if type(value) is FakeTensor}
    return len(known) == 2


def _require_no_gradients(result: torch.Tensor, operands: Sequence[Any]) -> None:
    """Undo what some of torch's forms in Python do: give a new leaf their operand's flag, in any mode.

    An operand that was written to is not asked: a view whose base was written to as well makes its history
    anew when it is, which nothing below autograd can.
    """
    if not any(result is operand for operand in operands) and result.is_leaf:
        result.requires_grad_(False)


def _waits_for_several(operator: Any) -> bool:
    """Whether an operator is ``wait_tensors``, which torch has since 2.15."""
    return (
        isinstance(operator, OpOverload)
        and operator.namespace == "_c10d_functional"
        and operator.name() == "_c10d_functional::wait_tensors"
    )


def _counted_from_the_front(
    self: torch.Tensor, order: Any, dims: Sequence[int] | None, *rest: Any
) -> tuple[Any, ...]:
    """A norm's arguments: torch 2.11's rule keeps a dimension of size 1 that is counted from the end."""
    if dims is not None:
        dims = [d + self.dim() if -self.dim() <= d < 0 else d for d in dims]
    return self, order, dims, *rest


def _check_position(tensor: torch.Tensor, dimension: int, index: int | torch.SymInt) -> None:
    """:raises IndexError: there is no such element, which fakes of torch 2.11 don't ask."""
    if not -tensor.dim() <= dimension < tensor.dim():
        return  # torch's own error
    size = tensor.shape[dimension]
    if has_unbacked_symbols(index) or has_unbacked_symbols(size):
        return
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dimension}")


def _check_one_dtype(operator: OpOverload, first: torch.Tensor, second: torch.Tensor) -> None:
    """:raises NotImplementedError: two dtypes; labels of ``soft_margin_loss`` may be whole numbers."""
    are_labels = operator is _SOFT_MARGIN and not second.is_floating_point()
    if first.dtype != second.dtype and not are_labels:
        raise NotImplementedError(f"{operator} of {first.dtype} and {second.dtype}")


def _computes_by_element(operator: OpOverload) -> bool:
    return torch.Tag.pointwise in operator.tags or operator in _CONVERSIONS


def _kind_of(operator: OpOverload) -> str | None:
    """Fresh, view or in place; None for an operator whose results may differ by call."""
    if operator.namespace not in _NAMESPACES or _VARYING.intersection(operator.tags):
        return None
    if operator.is_view or operator in _UNMARKED_VIEWS:
        return None if operator in _LIFTS else _VIEW
    written = written_operands(operator)
    if written:
        return _IN_PLACE if written == [0] else None
    return None if shares_operands(operator) else _FRESH


def _looks(
    mode: RememberingFakeMode,
    kind: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
) -> KnownResult | None:
    """What a call gave; None where another such call takes more than that to be answered."""
    if kind == _IN_PLACE:  # not where a value is known, and will have changed
        is_first = result is args[0] and result.constant is None
        return KnownResult(kind, "first", (), False) if is_first else None
    # Decompositions give tuples of classes of their own; who called the operator gets plain ones.
    container = "tuple" if isinstance(result, tuple) else "list" if type(result) is list else "one"
    results = (result,) if container == "one" else result
    base = args[0] if kind == _VIEW else None
    found = (mode.layout_of(value, base) for value in results)
    layouts = tuple(layout for layout in found if layout is not None)
    if len(layouts) < len(results):
        return None
    places = [storage_identity(value) for value in results]
    if kind == _VIEW:
        is_of_first = all(place == storage_identity(args[0]) for place in places)
        is_of_first = is_of_first and not any(value is args[0] for value in results)
        return KnownResult(kind, container, layouts, False) if is_of_first else None
    operands = [*args, *kwargs.values()]
    operands += [item for value in operands if isinstance(value, (list, tuple)) for item in value]
    if storages(operands) & {*places} or len({*places}) < len(places):
        return None
    has_value = any(value.constant is not None for value in results)
    if has_value and (container != "one" or not any(isinstance(o, FakeTensor) for o in operands)):
        return None
    return KnownResult(kind, container, layouts, has_value)


def _again(mode: RememberingFakeMode, operator: Any, known: KnownResult) -> _Result:
    """What answers another call that gives ``known``."""
    forms = [FakeForm(mode, layout) for layout in known.layouts]
    if known.kind == _IN_PLACE:
        return lambda args, kwargs: args[0]
    is_view = known.kind == _VIEW
    if known.container != "one":
        several = list if known.container == "list" else tuple
        return lambda args, kwargs: several(f.new(args[0] if is_view else None) for f in forms)
    (form,) = forms
    if is_view:
        return lambda args, kwargs: form.new(args[0])
    if not known.has_value:
        return lambda args, kwargs: form.new()

    def with_value(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FakeTensor:
        made = form.new()
        hold_constant(mode, made, computed_constant(operator, args, kwargs))
        return made

    return with_value


_FRESH, _VIEW, _IN_PLACE = "fresh", "view", "in place"

_NAMESPACES = frozenset({"aten", "prims"})

_VARYING = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.inplace_view,
    }
)
"""Tags of operators whose results depend on more than how their operands look."""

_SELECTS = frozenset({torch.ops.aten.select.int})
_SUBSCRIPTS = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten.slice.Tensor})
"""Operators whose fakes ask for windows: within the operand, or in no memory, to learn an order of dims."""
_SOFT_MARGIN = torch.ops.aten.soft_margin_loss.default
_OF_ONE_DTYPE = frozenset({torch.ops.aten.huber_loss.default, _SOFT_MARGIN})
"""Operators that give the dtype of the first operand, where the fake's is that of both."""


_CONVERSIONS = frozenset({torch.ops.aten._to_copy.default})
"""Operators that compute by element although torch does not say so."""

_LIFT = torch.ops.aten.lift_fresh.default
_LIFTS = frozenset({_LIFT, torch.ops.aten.lift_fresh_copy.default})
"""Operators that make a fake tensor of a real one."""

_UNMARKED_VIEWS = frozenset({torch.ops.aten._unsafe_view.default})
"""Operators that give a view although their schema does not say so: matmuls of several dims end with one."""


def _refuse_outside_inference_mode(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a write that eager may: fakes of views of inference tensors take it.

    Eager takes some, to what ``detach()`` gives.
    """
    if torch.is_inference_mode_enabled() or not isinstance(func, OpOverload):
        return
    names = argument_names(func)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    for position in written_operands(func):
        written = given.get(names[position])
        for tensor in written if isinstance(written, (list, tuple)) else (written,):
            if isinstance(tensor, torch.Tensor) and tensor.is_inference():
                raise Unsupported("write to an inference tensor outside inference mode", str(func))
