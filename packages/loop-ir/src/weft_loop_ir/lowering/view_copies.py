"""Operators that are a view followed by a copy: the view's rule, and a storage of its own."""

from __future__ import annotations

from typing import Any

import torch

from weft_loop_ir.lowering import views as views  # registers the rules that are taken here
from weft_loop_ir.lowering.context import LoweringContext, storage_stride
from weft_loop_ir.lowering.registry import RULES, Rule, overload, register_lowering
from weft_loop_ir.lowering.tensors import TensorValue

VIEWS = (
    "view expand permute transpose.int select.int slice.Tensor squeeze squeeze.dim squeeze.dims "
    "unsqueeze diagonal alias detach t unfold"
).split()
"""Views whose ``_copy`` form has the same arguments."""


def _copy_rule(view: Rule) -> Rule:
    def rule(context: LoweringContext, *arguments: Any, **keywords: Any) -> TensorValue:
        result: TensorValue = view(context, *arguments, **keywords)
        return context.copy_of(result)

    return rule


for _name in VIEWS:
    _packet, _, _overload = _name.partition(".")
    _view = overload(_name)
    _copy = overload(f"{_packet}_copy" + (f".{_overload}" if _overload else ""))
    if _view in RULES and _copy is not None:
        register_lowering(_copy)(_copy_rule(RULES[_view]))


@register_lowering(torch.ops.aten.contiguous.default, torch.ops.prims.copy_strided.default)
def in_other_strides(
    context: LoweringContext, tensor: TensorValue, *arguments: Any, **keywords: Any
) -> TensorValue:
    """The same elements as they lie in the result: ``contiguous`` has a view's schema and may copy."""
    return context.copy_of(tensor, storage_stride(context.meta))


narrow_copy = overload("narrow_copy")
if narrow_copy is not None:

    @register_lowering(narrow_copy)
    def narrow(
        context: LoweringContext, tensor: TensorValue, dim: int, start: Any, length: Any
    ) -> TensorValue:
        slice_: Rule = RULES[torch.ops.aten.slice.Tensor]
        return context.copy_of(slice_(context, tensor, dim, start, start + length, 1))
