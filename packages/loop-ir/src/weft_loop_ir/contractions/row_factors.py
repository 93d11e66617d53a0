"""Rows that are scaled by one number each, as norms are: what an element is but for that, and the number.

``result = element * factor`` where the factor is made of sums over the row, and is no matter to what a
contraction adds up of the elements: its sums can be scaled instead.  So the row's own sums and the
contraction's are made in one pass, and nothing waits for the factor until its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from weft_loop_ir.bodies import (
    Combining,
    Constant,
    Conversion,
    Elementwise,
    Indirect,
    Instruction,
    Load,
    LoopBody,
    Random,
    Reduction,
    Scalar,
    Value,
)
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.ir import Buffer, Kernel
from weft_loop_ir.recording import BodyRecorder


@dataclass(frozen=True)
class RowFactor:
    """What a kernel stores of a row is ``element``, in float32, times ``factor``, then rounded.

    ``sums`` adds up over the row, and stores in buffers that ``factor`` loads; ``element`` and ``factor``
    are bodies with results.  Roundings between the two are left out.
    """

    sums: LoopBody
    element: LoopBody
    factor: LoopBody


@dataclass(frozen=True)
class _Product:
    """A value as ``row * element``, each a value of its own recorder; None where it is one.

    A number stands in both; ``is_number`` says that it is one, and not the square of it.
    """

    row: Value | None
    element: Value | None
    is_number: bool = False

    @property
    def of_row(self) -> bool:
        """Whether it is the same for all elements of a row."""
        return self.is_number or self.element is None

    @property
    def of_element(self) -> bool:
        """Whether it depends on no sum of the row."""
        return self.is_number or self.row is None


class _Split:
    """Records a body as products."""

    def __init__(self, kernel: Kernel, dtype_of: Callable[[str], torch.dtype]) -> None:
        self.local = kernel.local_names
        self.row = BodyRecorder.over(kernel.all_loops, dtype_of)
        self.element = BodyRecorder.over(kernel.all_loops, dtype_of)

    def products(self, body: LoopBody) -> list[_Product | None]:
        """For each instruction; None where it gives no such value."""
        found: list[_Product | None] = []
        for instruction in body.instructions:
            operands = [found[value.index] for value in instruction.operands]
            known = [operand for operand in operands if operand is not None]
            is_known = len(known) == len(operands)
            found.append(self._product(instruction, known) if is_known else None)
        return found

    def _product(self, instruction: Instruction, operands: list[_Product]) -> _Product | None:
        if isinstance(instruction, Constant | Scalar):
            row, element = (ops.again(instruction, {}) for ops in (self.row, self.element))
            return _Product(row, element, is_number=True)
        if isinstance(instruction, Load):
            if instruction.buffer in self.local:
                return _Product(self.row.again(instruction, {}), None)
            return _Product(None, self.element.again(instruction, {}))
        if not isinstance(instruction, Elementwise | Conversion):
            return None
        if operands and all(p.of_row for p in operands):
            renamed = dict(zip(instruction.operands, (p.row for p in operands), strict=True))
            return _Product(self.row.again(instruction, renamed), None)
        if operands and all(p.of_element for p in operands):
            renamed = dict(zip(instruction.operands, (p.element for p in operands), strict=True))
            return _Product(None, self.element.again(instruction, renamed))
        return self._mixed(instruction, operands)

    def _mixed(self, instruction: Instruction, operands: list[_Product]) -> _Product | None:
        """What both sums of the row and its elements are in: products, quotients, roundings."""
        if not all(map(self._is_single, operands)):
            return None
        if isinstance(instruction, Conversion):
            assert instruction.dtype is not None
            return operands[0] if instruction.dtype.is_floating_point else None
        name = instruction.operation.name
        rows = [p.row for p in operands]
        elements = [None if p.is_number else p.element for p in operands]
        if name == "neg":
            return _Product(None if rows[0] is None else self.row.neg(rows[0]), elements[0])
        if name not in ("mul", "truediv"):
            return None
        return _Product(_joined(self.row, name, *rows), _joined(self.element, name, *elements))

    def _is_single(self, product: _Product) -> bool:
        both = (self.row, product.row), (self.element, product.element)
        return all(v is None or ops.dtype_of(v) == torch.float32 for ops, v in both)


def _joined(ops: BodyRecorder, name: str, left: Value | None, right: Value | None) -> Value | None:
    """The product, or the quotient, of values that are one where they are None."""
    if right is None:
        return left
    if left is None:
        return right if name == "mul" else ops.truediv(ops.constant(1.0, torch.float32), right)
    return ops.record(name, left, right)


def row_factor(kernel: Kernel, buffers: Mapping[str, Buffer]) -> RowFactor | None:
    """How what ``kernel`` stores is a row of elements times a factor; None where it is not.

    The kernel adds up in one stage, and stores its one result in the next.
    """
    if len(kernel.stages) != 2 or len(kernel.ranges) != 1 or len(kernel.writes) != 1:
        return None
    (first, second), scalars = kernel.stages, {b.name for b in kernel.local_buffers if b.size == 1}
    store = second.body.only_store(kernel.writes[0])
    if not first.is_reduction or store is None or kernel.holds(Combining, Indirect, Random):
        return None
    kinds = {(r.kind, r.accumulated) for r in first.body.reductions()}
    results = [first.body.at(s.value) for s in first.body.stores()]
    if kinds != {("sum", torch.float32)} or not all(isinstance(r, Reduction) for r in results):
        return None
    if kernel.local_names != scalars or {*second.body.writes} != {*kernel.writes}:
        return None
    dtypes = {name: buffer.layout.dtype for name, buffer in buffers.items()}
    dtypes |= {b.name: b.dtype for b in kernel.local_buffers}
    split = _Split(kernel, dtypes.__getitem__)
    found = split.products(second.body)[store.value.index]
    if found is None or found.row is None or found.element is None or found.is_number:
        return None
    parts = ((split.row, found.row), (split.element, found.element))
    if not all(ops.dtype_of(value) == torch.float32 for ops, value in parts):
        return None
    factor, element = (without_unused(ops.body(value)) for ops, value in parts)
    return RowFactor(first.body, element, factor)
