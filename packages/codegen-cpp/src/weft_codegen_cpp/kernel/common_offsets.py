"""Kernels that differ in where they begin in a buffer alone share one function that is told it.

Those of the blocks of rows of one matrix are such: each reads its own part of the targets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import Kernel, LoopBody
from weft_loop_ir.bodies import Access, Instruction

from weft_codegen_cpp.kernel.kernel_forms import kernel_form, used_buffers


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
