"""Writes that eager refuses since an operand overlaps what is written: ``x[1:].add_(x[:-1])``, ``x -= x[0]``.

The value of the one before and after the write would differ by order.  Fakes let it pass, and the functional
form has a value for it, so that the error would be lost; where eager raises none, its values are those of an
order that no functional form has.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ._torch import (
    OpOverload,
    number_hint,
    schema_arguments,
    storage_identity,
    without_modes,
)
from .tensor_ssa.functional_counterparts import functional_counterpart, written_arguments
from .unsupported import Unsupported

_READS_FIRST = frozenset({"aten::masked_fill_", "aten::fill_", "aten::index_fill_"})
"""Operators that read the number in their operand before they write."""

_IN_ORDER = frozenset(
    f"aten::{name}"
    for name in (
        *("cumsum", "cumprod", "logcumsumexp", "_softmax", "_log_softmax", "softmax"),
        *("log_softmax", "sort", "tril", "triu"),
    )
)
"""Operators besides the pointwise ones that read all of an operand that lies where they write before they
write over it.  Those that scatter raise in eager; sums and matmuls give values that depend on the order."""

_ASK_FIRST = frozenset(
    f"aten::{name}_"
    for name in (
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_reduce"),
        *("index_put", "put"),
    )
)
"""Operators that eager refuses where one tensor, no view of it, is both, even one without elements."""

_MAX_ELEMENTS = 1 << 14
"""Of a tensor whose elements' places are compared one by one."""


class _Relation(enum.Enum):
    APART = enum.auto()
    SAME = enum.auto()
    IN_PLACE = enum.auto()  # what both have is at the same position in both, and eager does not ask
    PARTIAL = enum.auto()


def check_overlaps(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` for fake operands that lie where is written, unless that is well-defined.

    The graph then runs as it was captured, so that the error is eager's own, or the values are.
    """
    written = written_arguments(operator)
    if not written or operator._schema.name in _READS_FIRST:
        return
    names = [argument.name for argument in schema_arguments(operator)]
    operands = dict(zip(names, arguments, strict=False)) | dict(keywords)
    if operands.get("training") is False:
        return  # running statistics are only read
    indices = operands.get("indices")  # of index_put a list, of cummax a tensor to write to
    if not isinstance(indices, torch.Tensor) and any(
        index is not None and index.dim() == 0 for index in indices or ()
    ):
        return  # what ``x[number] = row`` stands for, which eager does by select and copy
    asks_first = operator._schema.name in _ASK_FIRST
    allowed = _allowed(operator)
    targets = [tensor for name in written for tensor in _tensors(operands.get(name))]
    read = [
        t for name, operand in operands.items() if name not in written for t in _tensors(operand)
    ]
    for target in targets:
        for tensor in read:
            same = asks_first and tensor is target
            relation = _Relation.SAME if same else _relation(target, tensor)
            if relation not in allowed:
                raise _refusal(operator)
    for first, second in itertools.combinations(targets, 2):
        if _relation(first, second) is not _Relation.APART:
            raise _refusal(operator)


def _refusal(operator: OpOverload) -> Unsupported:
    return Unsupported(
        "operand that overlaps what is written",
        str(operator),
        "clone() the operand before the write",
    )


def check_written_list(operator: OpOverload, tensors: Any) -> None:
    """Raise :class:`Unsupported` for a list to write to in which one tensor with gradients is twice.

    ``torch._foreach_mul_([v, v], 3)`` multiplies twice; eager's history of it is that of the second.
    """
    if not written_arguments(operator):
        return
    recorded = [id(t) for t in _tensors(tensors) if t.requires_grad]
    if len(set(recorded)) < len(recorded):
        raise Unsupported(
            "list to write to that has one tensor twice",
            str(operator),
            "leave out its second place",
        )


def _allowed(operator: OpOverload) -> set[_Relation]:
    """How an operand may lie to what is written."""
    if _is_by_element(operator):
        return {_Relation.APART, _Relation.SAME, _Relation.IN_PLACE}
    if operator._schema.name in _IN_ORDER:
        return {_Relation.APART, _Relation.SAME}
    return {_Relation.APART}


def _is_by_element(operator: OpOverload) -> bool:
    """Whether what is written to an element depends on no other elements of operands of its shape."""
    counterpart = functional_counterpart(operator) or operator
    return torch.Tag.pointwise in counterpart.tags or operator._schema.name == "aten::copy_"


def _tensors(operand: Any) -> Iterator[torch.Tensor]:
    if isinstance(operand, torch.Tensor):
        yield operand
    elif isinstance(operand, (list, tuple)):
        yield from (item for item in operand if isinstance(item, torch.Tensor))


@dataclass(frozen=True)
class _Extent:
    """Where the elements of a tensor lie in its storage, in bytes; dimensions of one element left out."""

    itemsize: int
    begin: int
    dims: tuple[tuple[int, int], ...]
    strides: tuple[int, ...] = field(compare=False)

    @property
    def elements(self) -> int:
        return math.prod(size for size, _ in self.dims)

    @property
    def end(self) -> int:
        return self.begin + sum((n - 1) * s for n, s in self.dims) + self.itemsize

    @property
    def is_dense(self) -> bool:
        """Whether no two elements share a byte and there are no gaps."""
        step = self.itemsize
        for size, stride in sorted(self.dims, key=lambda dim: dim[1]):
            if stride != step:
                return False
            step *= size
        return True

    def bytes(self) -> torch.Tensor:
        """Those that hold elements."""
        places = torch.arange(self.begin, self.begin + self.itemsize)
        for size, stride in self.dims:
            places = (places[:, None] + torch.arange(size) * stride).flatten()
        return places


def _relation(target: Any, operand: torch.Tensor) -> _Relation:
    """How two fake tensors lie, with sizes as they are now."""
    if not isinstance(target, torch.Tensor):
        return _Relation.APART
    if storage_identity(target) != storage_identity(operand):
        return _Relation.APART
    written, read = _extent(target), _extent(operand)
    if written is None or read is None:
        return _Relation.SAME if target is operand else _Relation.APART
    if not written.elements or not read.elements:
        return _Relation.APART
    if written == read:
        # Eager asks for the strides of single elements too.
        differ = written.is_dense and written.strides != read.strides
        return _Relation.PARTIAL if differ else _Relation.SAME
    if max(written.begin, read.begin) >= min(written.end, read.end):
        return _Relation.APART
    if max(written.elements, read.elements) <= _MAX_ELEMENTS:
        with without_modes():
            return _relation_of_bytes(written, read)
    # Of large ones with gaps it is not known: eager does not ask either.
    return _Relation.PARTIAL if written.is_dense and read.is_dense else _Relation.APART


def _relation_of_bytes(written: _Extent, read: _Extent) -> _Relation:
    places, others = written.bytes(), read.bytes()
    shared = torch.isin(places, others)
    if not shared.any():
        return _Relation.APART
    sizes, other_sizes = ([size for size, _ in extent.dims] for extent in (written, read))
    asks = written.is_dense and read.is_dense
    if asks or sizes != other_sizes or written.itemsize != read.itemsize:
        return _Relation.PARTIAL
    same = places == others
    aligned = torch.equal(shared, same) and torch.equal(torch.isin(others, places), same)
    return _Relation.IN_PLACE if aligned else _Relation.PARTIAL


def _extent(tensor: torch.Tensor) -> _Extent | None:
    """None where its place depends on data."""
    numbers = [number_hint(n) for n in (tensor.storage_offset(), *tensor.shape, *tensor.stride())]
    if any(number is None for number in numbers):
        return None
    itemsize, rank = tensor.element_size(), tensor.dim()
    dims = zip(numbers[1 : 1 + rank], numbers[1 + rank :], strict=True)
    return _Extent(
        itemsize,
        numbers[0] * itemsize,
        tuple((size, stride * itemsize) for size, stride in dims if size != 1),
        tuple(numbers[1 + rank :]),
    )
