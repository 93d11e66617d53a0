"""Contractions: calls of the library, those with an ``out=`` form into memory that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.registry import overload, register_lowering

aten = torch.ops.aten

OUT_VARIANTS: dict[OpOverload, OpOverload] = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
}

LIBRARY = (
    "convolution addmv mv dot linear matmul _int_mm "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention "
    "convolution_backward _embedding_bag_forward_only"
).split()


def _library_rule(operator: OpOverload) -> Callable[..., Any]:
    out_variant = OUT_VARIANTS.get(operator)

    def rule(context: LoweringContext, *args: Any, **kwargs: Any) -> Any:
        return context.extern(operator, args, kwargs, context.meta, "library", out_variant)

    return rule


for _operator in OUT_VARIANTS:
    register_lowering(_operator)(_library_rule(_operator))
for _name in LIBRARY:
    _library_operator = overload(_name)
    if _library_operator is not None:
        register_lowering(_library_operator)(_library_rule(_library_operator))
