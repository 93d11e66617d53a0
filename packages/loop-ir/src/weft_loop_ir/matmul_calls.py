"""Calls of the library's matmuls: what each multiplies, and what it adds to that."""

from __future__ import annotations

import torch

from weft_loop_ir.ir import BufferView, ExternCall

aten = torch.ops.aten

_OPERANDS = {
    aten.mm.default: ("self", "mat2", None),
    aten.bmm.default: ("self", "mat2", None),
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.baddbmm.default: ("batch1", "batch2", "self"),
}
"""The names of the left operand, the right one and what is added."""


def matmul_operands(call: ExternCall) -> tuple[BufferView, BufferView, BufferView | None]:
    """The left operand, the right one and what is added by ``mm``, ``bmm``, ``addmm`` or ``baddbmm``."""
    named = call.named_arguments
    left, right, added = _OPERANDS[call.operator]
    return named[left], named[right], None if added is None else named[added]
