"""What kernels that do the same on other buffers have in common, known before they are printed.

The kernels of a model's layers are alike: one of them is printed, and the others are its calls.

Kernels that differ in their number of elements alone, or in where they begin in a buffer, share one function
that is told it.  Those of the blocks of rows of one matrix are such: each reads its own part of the targets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from weft_loop_ir import Kernel, LoopBody, LoopVariable
from weft_loop_ir.bodies import Access, Instruction, Scalar
from weft_loop_ir.bodies.instructions import Combining

from weft_codegen_cpp.kernel.expressions import static_int


def used_buffers(kernel: Kernel) -> tuple[str, ...]:
    """The buffers that the function of ``kernel`` is given, in order: all but its local ones."""
    used = dict.fromkeys((*kernel.reads, *kernel.writes))
    used |= dict.fromkeys(access.buffer for access in kernel.accesses())
    local = kernel.local_names
    return tuple(name for name in used if name not in local)


def kernel_form(kernel: Kernel, dtypes: Mapping[str, torch.dtype]) -> Hashable | None:
    """What is equal for kernels that are printed as one function; ``dtypes`` are those of buffers.

    None for a kernel with what has no such form: one of another class, scans, numbers of the host.
    """
    if type(kernel) is not Kernel or kernel.holds(Scalar, Combining):
        return None
    used = used_buffers(kernel)
    names = {name: k for k, name in enumerate((*used, *(b.name for b in kernel.local_buffers)))}
    stages = []
    for stage in kernel.stages:
        goes_on = None if stage.goes_on is None else names[stage.goes_on]
        kind = stage.is_reduction, stage.is_sequential, goes_on
        stages.append((stage.inner, _body_form(stage.body, names), kind))
    return (
        kernel.outer,
        tuple(stages),
        tuple((b.dtype, b.size) for b in kernel.local_buffers),
        tuple(dtypes[name] for name in used),
        tuple(names[name] for name in (*kernel.reads, *kernel.writes)),
        len(kernel.reads),
    )


def _body_form(body: LoopBody, names: Mapping[str, int]) -> Hashable:
    return tuple(_instruction_form(i, names) for i in body.instructions), body.result


def _instruction_form(instruction: Instruction, names: Mapping[str, int]) -> Hashable:
    if isinstance(instruction, Access):
        instruction = instruction.to(str(names[instruction.buffer]))
    arguments = tuple(_argument_form(a, names) for a in instruction.arguments)
    return instruction.operation.name, arguments, instruction.dtype


def _argument_form(argument: Any, names: Mapping[str, int]) -> Hashable:
    if isinstance(argument, LoopBody):
        return _body_form(argument, names)
    if isinstance(argument, bool | int | float):  # -0.0 and 0.0, and 1, 1.0 and True, are equal
        return type(argument), repr(argument)
    form: Hashable = argument
    return form


# -- that differ in their extent -----------------------------------------------------------------------


EXTENT = sympy.Symbol("extent", integer=True, positive=True)
"""The number of elements, where it is handed to the function."""


def with_common_extents(
    kernels: Sequence[Kernel],
) -> list[tuple[Kernel, Mapping[sympy.Symbol, int]]]:
    """``kernels``; those with one loop are over :data:`EXTENT`, with its value, if their lengths differ."""
    lengths = [_length(kernel) for kernel in kernels]
    if len({length for length in lengths if length is not None}) < 2:
        return [(kernel, {}) for kernel in kernels]
    return [
        (kernel, {}) if length is None else (_over_extent(kernel), {EXTENT: length})
        for kernel, length in zip(kernels, lengths, strict=True)
    ]


def _length(kernel: Kernel) -> int | None:
    """The elements of a pointwise kernel with one loop over one or more, as far as they are known."""
    if len(kernel.outer) != 1 or kernel.pointwise_body is None:
        return None
    return static_int(kernel.outer[0].size) or None


def _over_extent(kernel: Kernel) -> Kernel:
    return replace(kernel, outer=(LoopVariable(kernel.outer[0].symbol, EXTENT),))


# -- that differ in an offset --------------------------------------------------------------------------


def offset_symbol(position: int) -> sympy.Symbol:
    """Where a kernel begins in the buffer at ``position`` of those it is given."""
    return sympy.Symbol(f"offset{position}", integer=True, nonnegative=True)


def with_common_offsets(
    kernels: Sequence[Kernel], dtypes: Mapping[str, torch.dtype]
) -> dict[str, tuple[Kernel, Mapping[sympy.Symbol, int]]]:
    """By name the kernels that are alike but for offsets, which are symbols in these, with their values.

    Only kernels of several loop nests: what a compiler takes for others is less than calls with numbers cost.
    """
    groups: dict[Hashable, list[tuple[Kernel, Kernel, tuple[int, ...]]]] = {}
    for kernel in kernels:
        if type(kernel) is not Kernel or len(kernel.stages) < 2:
            continue
        offsets = _offsets(kernel)
        begun = _shifted(kernel, {name: sympy.Integer(-n) for name, n in offsets.items()})
        form = kernel_form(begun, dtypes)
        if form is not None:
            row = tuple(offsets.get(name, 0) for name in used_buffers(kernel))
            groups.setdefault(form, []).append((kernel, begun, row))
    found: dict[str, tuple[Kernel, Mapping[sympy.Symbol, int]]] = {}
    for members in groups.values():
        columns = list(zip(*(row for _, _, row in members), strict=True))
        varying = [k for k, column in enumerate(columns) if len(set(column)) > 1]
        if not varying:
            continue
        for kernel, begun, row in members:
            symbols = {k: offset_symbol(k) for k in varying}
            shifts = {
                name: symbols.get(k, sympy.Integer(row[k]))
                for k, name in enumerate(used_buffers(kernel))
            }
            values = {symbol: row[k] for k, symbol in symbols.items()}
            found[kernel.name] = _shifted(begun, shifts), values
    return found


def _offsets(kernel: Kernel) -> dict[str, int]:
    """By buffer the number that all indices have as a term, where it is one and the same."""
    terms: dict[str, set[sympy.Expr]] = {}
    for access in kernel.accesses():
        terms.setdefault(access.buffer, set()).add(access.index.as_coeff_Add()[0])
    local = kernel.local_names
    return {
        name: int(next(iter(numbers)))
        for name, numbers in terms.items()
        if name not in local and len(numbers) == 1 and next(iter(numbers)) > 0
    }


def _shifted(kernel: Kernel, shifts: Mapping[str, sympy.Expr]) -> Kernel:
    """``kernel`` with all indices of some buffers moved."""

    def changed(instruction: Instruction) -> Instruction:
        if isinstance(instruction, Access) and shifts.get(instruction.buffer, 0) != 0:
            return instruction.at(instruction.index + shifts[instruction.buffer])
        if not instruction.bodies:
            return instruction
        return instruction.mapped(lambda a: body(a) if isinstance(a, LoopBody) else a)

    def body(before: LoopBody) -> LoopBody:
        return LoopBody(tuple(map(changed, before.instructions)), before.result)

    return replace(kernel, stages=tuple(replace(s, body=body(s.body)) for s in kernel.stages))
