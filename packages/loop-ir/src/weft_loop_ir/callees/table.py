"""Every function of a library that weft calls of its own choice, and what each takes.

Such a call is either not the one that eager's dispatch would make for those very operands (oneDNN where torch
would take its BLAS), or the dispatch took place while the program was made (attention, whose kernel torch
chooses by strides and offsets of the tensors that it is given then).  Eager's own operators (``mm``,
``convolution``) decide at each call, and take what eager's would: they are here with no rule.

CUDA's kernels of attention read 16 bytes at once, from each row's first byte on.  On an H100 with torch 2.11,
where rows began elsewhere, the one in CUTLASS raised an error, flash attention made the context unusable, and
cuDNN's gave wrong numbers; torch's choice looks at none of that.  torch keeps the plans of cuDNN by the
layouts of query, key and value alone: a result of attention that lies otherwise than the one for which its
gradient's plan was made is read at the wrong places, without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from weft_loop_ir.callees.rules import ANY, Callee, OperandRule

HALVES = frozenset({torch.float16, torch.bfloat16})
REALS = HALVES | {torch.float32, torch.float64}
READ_AT_ONCE = 16
"""Bytes of one access of CUDA's kernels of attention."""


def _attention(where: str, rule: OperandRule, others: str = "", **more: OperandRule) -> Callee:
    """Attention with ``rule`` for query, key and value, and what else is a matrix of the same rows."""
    rules = dict.fromkeys(("query", "key", "value", *others.split()), rule)
    is_forward = "out" not in rules
    return Callee(where, rules | more, otherwise=MATHS if is_forward else "")


MATHS = "aten::scaled_dot_product_attention"
"""Attention by eager's dispatch, which has a form for any operands."""

CHOSEN = "torch's choice for scaled_dot_product_attention, made while the program is (aot-autograd)"
DIFFERENTIATED = "the gradient of that choice (aot-autograd)"

_IN_ROWS = OperandRule(dtypes=REALS, ranks=frozenset({4}), unit_stride=True)
_FLASH = OperandRule(
    dtypes=HALVES, ranks=frozenset({4}), unit_stride=True, aligned=READ_AT_ONCE, max_last=256
)
_EFFICIENT = replace(
    _FLASH, dtypes=HALVES | {torch.float32}, last_bytes=READ_AT_ONCE, max_last=None
)
_CUDNN = replace(_FLASH, last_bytes=READ_AT_ONCE)
_GRADIENT = OperandRule(aligned=READ_AT_ONCE)
"""Copied by the kernel if it is not contiguous, not for where it begins."""

_MASK = OperandRule(ranks=frozenset({4}), unit_stride=True, aligned=READ_AT_ONCE)
_CPU_MASK = OperandRule(ranks=frozenset({2, 4}))

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_ONEDNN_BIAS = OperandRule(dtypes=_FLOATS, ranks=frozenset({1}), unit_stride=True)
"""oneDNN is given a pointer to a bias, and reads on from there."""
_ONEDNN_MATRIX = OperandRule(dtypes=_FLOATS, ranks=frozenset({2}), is_matrix=True, has_columns=True)
_ONEDNN_IMAGE = OperandRule(dtypes=_FLOATS, ranks=frozenset({4}))

DISPATCHED = "eager's own operator, into memory that is given or on operands that lie otherwise"

DISPATCHED_NAMES = """
    mm addmm bmm baddbmm mv addmv dot linear matmul _int_mm _scaled_mm convolution convolution_backward
    scaled_dot_product_attention _scaled_dot_product_attention_math _embedding_bag_forward_only
"""

CALLEES: Mapping[str, Callee] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(
        CHOSEN, _IN_ROWS, attn_mask=_CPU_MASK
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        DIFFERENTIATED, _IN_ROWS, "out", attn_mask=_CPU_MASK
    ),
    "aten::_scaled_dot_product_flash_attention": _attention(CHOSEN, _FLASH),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        DIFFERENTIATED, _FLASH, "out", grad_out=_GRADIENT
    ),
    "aten::_scaled_dot_product_efficient_attention": _attention(
        CHOSEN, _EFFICIENT, attn_bias=_MASK
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        DIFFERENTIATED, _EFFICIENT, "out", grad_out_=_GRADIENT, attn_bias=_MASK
    ),
    "aten::_scaled_dot_product_cudnn_attention": _attention(CHOSEN, _CUDNN, attn_bias=_MASK),
    "aten::_scaled_dot_product_cudnn_attention_backward": replace(
        _attention(DIFFERENTIATED, _CUDNN, "out", grad_out=_GRADIENT, attn_bias=_MASK),
        dense_as={"out": "query"},
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(CHOSEN, ANY),
    "mkldnn::_linear_pointwise": Callee(
        "large float32 matmuls on processors that Intel did not make (codegen-cpp)",
        {"X": _ONEDNN_MATRIX, "W": _ONEDNN_MATRIX, "B": _ONEDNN_BIAS},
    ),
    "mkldnn::_convolution_pointwise": Callee(
        "large convolutions there, and those with constant weights everywhere (codegen-cpp)",
        {"X": _ONEDNN_IMAGE, "W": _ONEDNN_IMAGE, "B": _ONEDNN_BIAS},
    ),
    "mkldnn::_reorder_linear_weight": Callee(
        "constant weights of matmuls (codegen-cpp)", {"self": _ONEDNN_MATRIX}
    ),
    "mkldnn::_reorder_convolution_weight": Callee(
        "constant weights of convolutions (codegen-cpp)", {"self": _ONEDNN_IMAGE}
    ),
    **{f"aten::{name}": Callee(DISPATCHED) for name in DISPATCHED_NAMES.split()},
    "aten::_foreach_copy_": Callee("inputs of recordings (codegen-triton), one dtype at a time"),
    "aten::_foreach_mul": Callee("copies of recordings' small results, of floats (codegen-triton)"),
}
"""By the name of the operator's schema, without its overload."""
