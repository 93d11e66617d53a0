"""Reductions and scans with ``out=`` that compute in the dtype of ``out`` rather than in the operand's.

``torch.sum(x, 0, out=o)`` of floats into integers adds up integers: eager converts the operand first.
"""

from __future__ import annotations

import torch
import torch.fx

from .alias_graph import argument_value
from .emitter import Emitter

aten = torch.ops.aten

_CONVERT_FIRST = frozenset(
    {
        aten.cumsum.out,
        aten.cumprod.out,
        aten.sum.out,
        aten.sum.IntList_out,
        aten.nansum.out,
        aten.prod.out,
        aten.prod.int_out,
        aten.mean.out,
        aten.std.out,
        aten.std.correction_out,
        aten.var.out,
        aten.var.correction_out,
    }
)


def convert_operand(emit: Emitter, node: torch.fx.Node) -> tuple[object, ...]:
    """The positional arguments of the operator, with the operand in the dtype that eager computes in."""
    if node.target not in _CONVERT_FIRST:
        return node.args
    operand, out = argument_value(node, "self"), argument_value(node, "out")
    assert isinstance(operand, torch.fx.Node)
    assert isinstance(out, torch.fx.Node)
    given, dtype = operand.meta["val"].dtype, out.meta["val"].dtype
    if node.target is aten.mean.out and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    if given == dtype or node.kwargs.get("dtype") is not None:
        return node.args
    if given.is_complex and not dtype.is_complex:
        return node.args  # eager refuses
    return (emit.call(aten._to_copy.default, operand, dtype=dtype), *node.args[1:])
