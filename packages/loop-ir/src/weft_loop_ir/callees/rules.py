"""What a callee asks of its operands, and whether an operand of the program is such.

An operand is known in three forms: while the program is made as a window on a buffer, with sizes and strides
that may vary; as a fake tensor; and in a call as a tensor with an address.  One rule decides for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy
import torch

Extent: TypeAlias = "int | sympy.Expr"

EXACT = 1 << 20
"""The alignment of a base whose address is in the offset."""


@dataclass(frozen=True)
class OperandLayout:
    """How an operand lies: ``offset`` bytes behind an address that is a multiple of ``base`` bytes."""

    dtype: torch.dtype
    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    offset: Extent = 0
    base: int = 1

    @staticmethod
    def of(tensor: torch.Tensor) -> OperandLayout:
        """A tensor with memory."""
        address = tensor.data_ptr()
        return OperandLayout(tensor.dtype, tuple(tensor.shape), tensor.stride(), address, EXACT)


@dataclass(frozen=True)
class OperandRule:
    """What a callee takes as one of its operands; what is not said may be anything.

    ``unit_stride``: elements of the last dimension lie side by side, even a single one.  ``is_matrix``: the
    elements of rows or of columns lie side by side, and neither share memory.  ``aligned``: the address, and
    the bytes from one row or matrix to the next, are multiples of it; a single row has such a step too.
    ``last_bytes``: so are the bytes of the last dimension; both are powers of two.  ``max_last``: its largest
    size.  ``has_columns``: it is not empty.
    """

    dtypes: frozenset[torch.dtype] | None = None
    ranks: frozenset[int] | None = None
    unit_stride: bool = False
    is_matrix: bool = False
    has_columns: bool = False
    aligned: int = 1
    last_bytes: int = 1
    max_last: int | None = None

    def takes(self, operand: OperandLayout) -> bool | None:
        """Whether the operand is such in every call; None where that is not known."""
        return _all(self.takes_value(operand), self.takes_layout(operand))

    def surely_takes(self, tensor: torch.Tensor) -> bool:
        """Whether numbers that are quickly read say so; :meth:`takes` decides where they don't."""
        *steps, last = tensor.stride() or (1,)
        size, width = tensor.shape, tensor.itemsize
        if self.dtypes is not None and tensor.dtype not in self.dtypes:
            return False
        if self.ranks is not None and len(size) not in self.ranks:
            return False
        if self.is_matrix or self.has_columns or (self.unit_stride and last != 1):
            return False
        if self.max_last is not None and size[-1] > self.max_last:
            return False
        if self.last_bytes > 1 and size[-1] * width % self.last_bytes:
            return False
        if self.aligned == 1:
            return True
        bits = tensor.data_ptr()
        for step in steps:
            bits |= step * width
        return bits % self.aligned == 0

    def takes_value(self, operand: OperandLayout) -> bool | None:
        """The same of what a copy of the operand has in common with it."""
        answers: list[bool | None] = [
            self.dtypes is None or operand.dtype in self.dtypes,
            self.ranks is None or len(operand.size) in self.ranks,
        ]
        if operand.size:
            last = operand.size[-1]
            if self.has_columns:
                answers.append(_is_positive(last))
            answers.append(is_multiple(last * operand.dtype.itemsize, self.last_bytes))
            if self.max_last is not None:
                answers.append(_at_most(last, self.max_last))
        return _all(*answers)

    def takes_layout(self, operand: OperandLayout) -> bool | None:
        """The same of where its elements lie."""
        answers: list[bool | None] = []
        if self.unit_stride:
            answers.append(_is(operand.stride[-1], 1) if operand.stride else True)
        if self.is_matrix:
            answers.append(_is_dense_matrix(operand))
        if self.aligned > 1:
            width = operand.dtype.itemsize
            answers.append(self._takes_address(operand))
            steps = list(zip(operand.size, operand.stride, strict=True))[:-1]
            answers += [
                is_multiple(step * width, self.aligned)
                for dim, (extent, step) in enumerate(steps, 1)
                if dim == len(steps) or extent != 1
            ]
        return _all(*answers)

    def _takes_address(self, operand: OperandLayout) -> bool | None:
        if operand.base % self.aligned:
            return None
        return is_multiple(operand.offset, self.aligned)


ANY = OperandRule()


@dataclass(frozen=True)
class Callee:
    """A function that weft calls of its own choice, or where eager's dispatch would decide again.

    ``operands``: rules by the names of the schema's arguments; those without one may be anything that the
    operator itself takes.  ``where``: where weft chooses it.  ``is_deterministic``: a call gives the same
    bits again, where :func:`torch.use_deterministic_algorithms` asks for that (guards hold it).
    ``otherwise``: eager's own operator, for operands of which no copy would do.  ``dense_as``: operands that
    lie side by side in the order of another's dimensions, as results of it do; looked at where that one is
    copied.
    """

    where: str
    operands: Mapping[str, OperandRule] = field(default_factory=dict)
    is_deterministic: bool = True
    otherwise: str = ""
    dense_as: Mapping[str, str] = field(default_factory=dict)

    def takes(self, operands: Mapping[str, OperandLayout | None]) -> bool | None:
        """Whether it takes ``operands``, by name, in every call; None where that is not known."""
        found = ((rule, operands.get(name)) for name, rule in self.operands.items())
        return _all(*(rule.takes(operand) for rule, operand in found if operand is not None))


def aligned_copy(tensor: torch.Tensor, rule: OperandRule) -> torch.Tensor:
    """``tensor`` as ``rule`` asks for it to lie: rows side by side, each beginning at a multiple.

    What is expanded stays so, and the dimensions before the last keep their order.
    """
    for dim, step in enumerate(tensor.stride()[:-1]):
        if step == 0 and tensor.shape[dim] > 1:
            copy = aligned_copy(tensor.narrow(dim, 0, 1), rule)
            return copy.expand(tensor.shape)
    last = tensor.shape[-1]
    unit = max(1, rule.aligned // tensor.itemsize)
    order = _outermost_first(tensor)
    padded = tensor.new_empty([*(tensor.shape[d] for d in order), -(-last // unit) * unit])
    back = [order.index(dim) for dim in range(tensor.ndim - 1)]
    return padded.permute(*back, -1)[..., :last].copy_(tensor)


def _outermost_first(tensor: torch.Tensor) -> list[int]:
    """The dimensions before the last, in the order in which they lie."""
    steps = tensor.stride()
    return sorted(range(tensor.ndim - 1), key=lambda dim: -steps[dim])


def dense_copy(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``tensor`` side by side in the order of the dimensions of ``other``; itself where it lies so."""
    order = [*_outermost_first(other), other.ndim - 1]
    if tensor.shape == other.shape:
        strides = torch.empty_like(other, device="meta").stride()
    else:
        ordered = torch.empty([tensor.shape[d] for d in order], device="meta")
        strides = ordered.permute([order.index(dim) for dim in range(other.ndim)]).stride()
    if tensor.stride() == strides:
        return tensor
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


# ---- what is known of extents --------------------------------------------------------------------------


def is_multiple(extent: Extent, unit: int) -> bool | None:
    """Whether ``extent`` is a multiple of ``unit`` whatever its symbols, integers, are."""
    if unit == 1:
        return True
    if isinstance(extent, int | sympy.Integer):
        return int(extent) % unit == 0
    terms = sympy.Add.make_args(sympy.expand(extent))
    factors = (term.as_coeff_Mul()[0] for term in terms)
    return True if all(f.is_Integer and int(f) % unit == 0 for f in factors) else None


def _is(extent: Extent, number: int) -> bool | None:
    return int(extent) == number if isinstance(extent, int | sympy.Integer) else None


def _is_positive(extent: Extent) -> bool | None:
    positive: bool | None = extent > 0 if isinstance(extent, int) else extent.is_positive
    return positive


def _at_most(extent: Extent, limit: int) -> bool | None:
    return int(extent) <= limit if isinstance(extent, int | sympy.Integer) else None


def _is_dense_matrix(operand: OperandLayout) -> bool | None:
    if len(operand.size) != 2:
        return False
    (rows, columns), (row, column) = operand.size, operand.stride
    answers = _is_dense(columns, column, row), _is_dense(rows, row, column)
    return True if True in answers else (None if None in answers else False)


def _is_dense(inner: Extent, step: Extent, stride: Extent) -> bool | None:
    """Whether ``inner`` elements lie side by side, and ``stride`` leads behind them."""
    if _is(step, 1) is False:
        return False
    beyond = sympy.sympify(stride) - inner
    return _all(_is(step, 1), beyond.is_nonnegative)


def _all(*answers: bool | None) -> bool | None:
    """False if one is, else None if one is, else True."""
    return False if False in answers else (None if None in answers else True)
