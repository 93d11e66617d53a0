"""``flex_attention``, which torch runs through a capture of its own: what it stands for, in the graph.

Registered when a program's function of its module is met first.
"""

from __future__ import annotations

from typing import Any

import torch

from ...._torch import flexible_attention
from ....unsupported import Unsupported
from ...polyfills import torch_functions as polyfills
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..table import bound_arguments, models
from .tensor import TensorVariable

UNUSUAL = "flex_attention with unusual arguments"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NOTHING = ConstantVariable(None)


@models(flexible_attention().flex_attention)
def _flex_attention(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """By its polyfill.

    ``kernel_options`` are left aside.  What eager has errors for is left to it, as are statistics of rows.
    """
    given = bound_arguments(function, arguments, keywords, UNUSUAL)
    for name in ("return_lse", "return_aux"):
        asked = given.get(name, _NOTHING)
        if not asked.is_constant() or asked.as_constant():
            raise Unsupported(UNUSUAL, name)
    operands = [given[name] for name in ("query", "key", "value")]
    grouped = given.get("enable_gqa", ConstantVariable(False)).truth(evaluator)
    query, key, value = (_checked(operand) for operand in operands)
    if not _fits(query, key, value, grouped):
        raise Unsupported(UNUSUAL, "operands of these sizes, dtypes or devices")
    mask = _mask(evaluator, given.get("block_mask", _NOTHING), query, key)
    rest = [given.get("score_mod", _NOTHING), mask, given.get("scale", _NOTHING)]
    polyfill = evaluator.wrap_known(polyfills.flex_attention)
    return polyfill.call(evaluator, [*operands, *rest], {})


def _checked(variable: Variable) -> torch.Tensor:
    """The fake tensor of an operand."""
    if type(variable) is not TensorVariable or variable.fake.layout != torch.strided:
        raise Unsupported(UNUSUAL, repr(variable))
    fake: torch.Tensor = variable.fake
    return fake


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool) -> bool:
    """Whether eager takes the operands, and takes them as the polyfill does."""
    operands = (query, key, value)
    if any(t.dim() != 4 or t.dtype != query.dtype or t.device != query.device for t in operands):
        return False
    heads, groups = query.size(1), key.size(1)
    are_heads = heads % groups == 0 if grouped else heads == groups
    return bool(
        query.dtype in DTYPES
        and query.size(0) == key.size(0)
        and key.shape[:3] == value.shape[:3]
        and query.size(3) == key.size(3)
        and are_heads
    )


def _mask(
    evaluator: Evaluator, block_mask: Variable, query: torch.Tensor, key: torch.Tensor
) -> Variable:
    """The function of a block mask, None for no mask; its blocks only say where the function is false."""
    if block_mask.is_none():
        return block_mask
    module = flexible_attention()
    if block_mask.python_type() is not module.BlockMask:
        raise Unsupported(UNUSUAL, repr(block_mask))
    block = _numbers(evaluator, block_mask, "BLOCK_SIZE")
    if block != (module._LARGE_SPARSE_BLOCK_SIZE,) * 2:
        lengths = _numbers(evaluator, block_mask, "seq_lengths")
        if lengths != (query.size(2), key.size(2)):
            raise Unsupported(UNUSUAL, "a block mask for other lengths")
    mask = block_mask.get_attribute(evaluator, "mask_mod")
    is_everything = getattr(mask, "value", None) is module.noop_mask
    return ConstantVariable(None) if is_everything else mask


def _numbers(evaluator: Evaluator, block_mask: Variable, name: str) -> tuple[Any, ...]:
    return tuple(n.snapshot() for n in block_mask.get_attribute(evaluator, name).iterate(evaluator))
