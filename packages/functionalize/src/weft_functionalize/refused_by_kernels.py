"""Calls that eager's own kernel refuses and the operator's fake lets pass: ranks, sizes, dtypes, numbers.

``celu(x, alpha=0)``, ``hardshrink`` of integers, ``index_copy`` at places of int32: what kernels check is
written nowhere else, so the kernel is asked.  It runs once for operands of each form on small tensors of
zeros, and on ones where that fails: what it refuses of both it refuses whatever the values are.  Large
operands are asked about in smaller sizes; what the fake refuses too may then be these sizes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ._torch import (
    FakeTensor,
    OpOverload,
    errors_unlogged,
    new_fake_mode,
    number_hint,
    schema_arguments,
    without_modes,
)
from .unsupported import Unsupported

_MAX_ELEMENTS = 1 << 12
"""Of all operands of a call that is tried as it is; larger ones are made smaller."""

_MAX_CONFIRMED = 1 << 22
"""Of all operands of a call that is tried as it is once it was refused in smaller sizes."""

_MAX_SPAN = 1 << 16
"""Elements of the memory of an operand that is tried as it lies; rows further apart are moved together."""

_MAX_SIZE = 8
"""A larger integer among the arguments of a large call may be a size: it is then tried for dtypes alone."""

_MAX_CALLS = 1 << 14
"""How many answers of kernels are remembered."""

_BY_VALUE = (
    *("linalg_", "_linalg_", "cholesky", "lu_", "triangular_solve", "lstsq", "ormqr"),
    *("segment_reduce", "_embedding_bag", "_ctc_loss", "_cudnn_ctc_loss", "_pack_padded_sequence"),
    *("_assert", "_validate", "sspaddmm", "sparse_", "_sparse_", "histogram", "histc"),
    *("quantize", "fake_quantize", "_make_per"),
)
"""Beginnings of names of operators that may refuse both values, and take others."""

_BY_MASK = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
"""Ends of names of operators that take as many elements as a mask among their operands chooses."""

_TRUSTING = ("mkldnn_", "_mkldnn_", "cudnn_", "_cudnn_", "miopen_", "_thnn_", "_fft_", "fbgemm_")
"""Beginnings of names of operators whose kernels believe the sizes that they are told as integers.

Tensors of other sizes than those are read and written behind their ends.
"""

_UNTRIED = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.inplace_view,
    }
)


@dataclass(frozen=True)
class _TensorForm:
    """All of a tensor that an example of it depends on, with sizes as they are now."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Elements of the memory from the first to the last."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return last + 1 if self.elements else 0

    def example(self, number: int) -> torch.Tensor:
        """A tensor of this form, with ``number`` everywhere."""
        memory = torch.full((self.span,), number, dtype=self.dtype)
        return memory.as_strided(self.shape, self.stride)

    def resized(self, sizes: Mapping[int, int]) -> _TensorForm:
        """The same with ``sizes`` in the place of others: dense, dims in the same order in memory."""
        shape = tuple(sizes.get(size, size) for size in self.shape)
        stride, span = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda d: (self.stride[d], -d)):
            if self.stride[dim]:
                stride[dim], span = span, span * max(shape[dim], 1)
        return replace(self, shape=shape, stride=tuple(stride))


@dataclass(frozen=True)
class _Plain:
    """A number, or what else is compared by value: 1, 1.0 and True are equal and not one argument."""

    kind: type
    value: Any


@dataclass(frozen=True)
class _Call:
    """An operator with forms of its arguments: :class:`_TensorForm`, :class:`_Plain`, or tuples of them."""

    operator: OpOverload
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def forms(self) -> Iterator[_TensorForm | _Plain]:
        """Those of all arguments, lists opened."""
        return _flat([*self.arguments, *(form for _, form in self.keywords)])

    def tensors(self) -> list[_TensorForm]:
        return [form for form in self.forms() if isinstance(form, _TensorForm)]

    def has_masks(self) -> bool:
        """Whether a tensor may choose elements: how many, and so what fits, depends on its values."""
        return any(form.dtype in (torch.bool, torch.uint8) for form in self.tensors())

    def elements(self) -> float:
        """Of all tensors; where there is none, of what is made."""
        tensors = self.tensors()
        return sum(t.elements for t in tensors) if tensors else self._made_elements()

    def resized(self, sizes: Mapping[int, int]) -> _Call:
        """The call with ``sizes`` in the place of other sizes of tensors."""
        named = tuple((name, _resized(form, sizes)) for name, form in self.keywords)
        return replace(self, arguments=_resized(self.arguments, sizes), keywords=named)

    def _made_elements(self) -> float:
        """Of what an operator makes of numbers alone; infinity where it doesn't say without making it."""
        if not any(argument.name == "device" for argument in schema_arguments(self.operator)):
            return math.inf
        try:
            made = self._run(0, device="meta")
        except Exception:  # a meta function's own, of whatever class: the fake raises too
            return math.inf
        return made.numel() if isinstance(made, torch.Tensor) else math.inf

    def refusal(self) -> Exception | None:
        """What eager raises for examples of the arguments, of zeros and of ones."""
        draws = torch.Tag.nondeterministic_seeded in self.operator.tags
        raised: Exception | None = None
        for number in (0, 1):
            try:
                self._run(number, **({"generator": torch.Generator()} if draws else {}))
            except Exception as error:  # of whatever class: it is what was asked
                raised = error
            else:
                return None
        return raised

    def fake_refuses(self) -> bool:
        """Whether the operator's fake raises an error for these forms."""
        with new_fake_mode(), errors_unlogged():
            try:
                self._run(0)
            except Exception:  # of whatever class
                return True
        return False

    def _run(self, number: int, **others: Any) -> Any:
        arguments = [_of_form(form, number) for form in self.arguments]
        keywords = {name: _of_form(form, number) for name, form in self.keywords}
        return self.operator(*arguments, **keywords | others)


class _Untried(Exception):
    """An argument of which no example can be made."""


class _DecidedByData(_Untried):
    """A size or number that only data decides."""


def check_by_kernel(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager's kernel refuses operands of the forms of fake ``arguments``.

    Of a call on the CPU.  The graph then runs as it was captured, so that the error is eager's own.
    """
    if not _may_be_tried(operator):
        return
    try:
        call = _call(operator, arguments, keywords)
    except _Untried:
        return
    if operator._schema.name.endswith(_BY_MASK) and call.has_masks():
        return
    reason = _refusal(call)
    if reason is not None:
        raise Unsupported(
            "operands that the operator refuses",
            f"{operator}: {reason}",
            "give it operands that eager takes",
        )


def _call(operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> _Call:
    """What is tried; of sizes that data decides where an operator computes by element, and so any will do."""

    def formed(number: Callable[[Any], Any]) -> _Call:
        named = tuple((name, _form(value, number)) for name, value in keywords.items())
        return _Call(operator, _form(arguments, number), named)

    try:
        return formed(_hint)
    except _DecidedByData:
        if torch.Tag.pointwise not in operator.tags:
            raise
        return formed(lambda number: 1)


@functools.cache
def _may_be_tried(operator: OpOverload) -> bool:
    namespace, _, name = operator._schema.name.partition("::")
    if namespace != "aten" or operator.is_view or name.startswith((*_BY_VALUE, *_TRUSTING)):
        return False
    if torch.Tag.nondeterministic_seeded in operator.tags and not any(
        argument.name == "generator" for argument in schema_arguments(operator)
    ):
        return False  # it would draw from the program's own generator
    return _UNTRIED.isdisjoint(operator.tags)


def _form(value: Any, number: Callable[[Any], Any]) -> Any:
    """``number`` gives an example's sizes of the operand's."""
    if isinstance(value, torch.Tensor):
        plain = type(value) is FakeTensor and value.layout is torch.strided
        if not plain or value.device.type != "cpu" or value.is_conj() or value.is_neg():
            raise _Untried
        return _TensorForm(
            value.dtype, *(tuple(map(number, n)) for n in (value.shape, value.stride()))
        )
    if isinstance(value, (list, tuple)):
        return tuple(_form(item, number) for item in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        value = _hint(value)
    if isinstance(value, torch.device) and value.type != "cpu":
        raise _Untried
    if isinstance(value, _PLAIN):
        return _Plain(type(value), value)
    raise _Untried


_PLAIN = (
    *(int, float, bool, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def _hint(number: Any) -> Any:
    """A number in the call that is being compiled."""
    found = number_hint(number)
    if found is None:
        raise _DecidedByData
    return found


@functools.lru_cache(_MAX_CALLS)
def _refusal(call: _Call) -> str | None:
    """What the kernel says of operands of these forms, None if it takes some."""
    with without_modes():
        are_near = all(tensor.span <= _MAX_SPAN for tensor in call.tensors())
        if are_near and call.elements() <= _MAX_ELEMENTS:
            error = call.refusal()
        else:
            error = _refusal_of_large(call)
    return None if error is None else str(error).partition("\n")[0]


def _refusal_of_large(call: _Call) -> Exception | None:
    if not call.tensors():
        return None
    numbers = [form.value for form in call.forms() if isinstance(form, _Plain)]
    has_sizes = any(isinstance(number, int) and number > _MAX_SIZE for number in numbers)
    small = call.resized(_smaller_sizes(call))
    error = small.refusal()
    if error is None or isinstance(error, NotImplementedError):
        return error
    if has_sizes or small.fake_refuses():
        return None
    if call.elements() <= _MAX_CONFIRMED:
        return call.refusal()
    return None if _has_window(call.operator) else error


def _has_window(operator: OpOverload) -> bool:
    """Whether numbers say which part of a tensor another one takes: of other sizes it may not fit."""
    names = {argument.name for argument in schema_arguments(operator)}
    return {"start", "end"} <= names or {"offset", "dim1", "dim2"} <= names


def _smaller_sizes(call: _Call) -> dict[int, int]:
    """New sizes by the old ones, so that there are few elements; equal ones stay equal, unequal ones unequal.

    But for sizes that are small already: there may be no more numbers below them.
    """
    sizes = {size: size for tensor in call.tensors() for size in tensor.shape}
    while call.resized(sizes).elements() > _MAX_ELEMENTS:
        largest = max(sizes.values(), default=1)
        if largest == 1:
            break
        smaller = _smaller_size(largest, set(sizes.values()))
        sizes = {old: smaller if new == largest else new for old, new in sizes.items()}
    return sizes


def _smaller_size(size: int, others: set[int]) -> int:
    """About half of ``size``, and none of ``others`` where another is left: 1 would be spread."""
    half = (size + 1) // 2
    near = itertools.chain(range(half, 1, -1), range(half + 1, size))
    return next((number for number in near if number not in others), half)


def _resized(form: Any, sizes: Mapping[int, int]) -> Any:
    if isinstance(form, tuple):
        return tuple(_resized(item, sizes) for item in form)
    return form.resized(sizes) if isinstance(form, _TensorForm) else form


def _of_form(form: Any, number: int) -> Any:
    if isinstance(form, tuple):
        return [_of_form(item, number) for item in form]
    return form.example(number) if isinstance(form, _TensorForm) else form.value


def _flat(forms: Sequence[Any]) -> Iterator[_TensorForm | _Plain]:
    for form in forms:
        if isinstance(form, tuple):
            yield from _flat(form)
        else:
            yield form
