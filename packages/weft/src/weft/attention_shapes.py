"""Attention of other shapes than the library's kernels take, in theirs: images, heads, lines, columns.

And attention over few keys, written out for kernels of our own: a library's go through tiles of 64 to 128
queries and keys, however few a matrix has.

For matrices alone, for more than two batch dims, and for keys and values that all heads or images read, torch
computes ``scaled_dot_product_attention`` by matmuls in float32, with all scores in memory.  The same
numbers in four dims, the fewer heads or images repeated without memory, are attention that its kernels take.
Not in float32 on a CPU where gradients are recorded: backward of the kernels computes scores again, in
another order than forward, and scores of about 1e5 are then a percent off in each weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from weft_loop_ir import Codegen

from .known_masks import ATTENTION, attention_arguments

Node = torch.fx.Node

OPERANDS = ("query", "key", "value")

BATCH = 2
"""Batch dims of the library's kernels."""
MAX_IMAGES = 65535
"""What a GPU's grid may have along the dim of images."""


def give_four_dims(graph_module: torch.fx.GraphModule) -> None:
    """Have attention in a captured graph computed in four dims, of equal batch dims, where eager's isn't.

    Left as it is: attention with dropout, which would draw other numbers, of nothing, what can't be
    broadcast, and float32 with gradients on a CPU.  Results lie in memory as eager's.
    """

    def rewrite(node: Node, given: dict[str, Any]) -> bool:
        result = _value(node)
        if result is None or (_loses_in_backward(result) and result.requires_grad):
            return False
        batch = _batch(given)
        if batch is not None:
            _rewrite(node, given, batch)
        return batch is not None

    _rewrite_each(graph_module, rewrite)


def _loses_in_backward(result: torch.Tensor) -> bool:
    return result.dtype == torch.float32 and result.device.type == "cpu"


def write_out_attention(graph_module: torch.fx.GraphModule, codegens: list[Codegen]) -> None:
    """Have attention in 16 bits computed by matmuls and a softmax where all of ``codegens`` ask for it.

    Left as it is: attention with dropout, a causal mask or one of truth values, and what broadcasts.  Results
    lie in memory as eager's.
    """

    def rewrite(node: Node, given: dict[str, Any]) -> bool:
        is_written = _is_written(node, given, codegens)
        if is_written:
            _write_out(node, given)
        return is_written

    _rewrite_each(graph_module, rewrite)


def _rewrite_each(
    graph_module: torch.fx.GraphModule, rewrite: Callable[[Node, dict[str, Any]], bool]
) -> None:
    """Call ``rewrite`` with each attention and its arguments; it says whether it has changed the graph."""
    nodes = graph_module.graph.find_nodes(op="call_function", target=ATTENTION)
    if sum(rewrite(node, attention_arguments(node)) for node in nodes):
        graph_module.recompile()


def _is_written(node: Node, given: dict[str, Any], codegens: list[Codegen]) -> bool:
    query, key, value, result = (
        _value(other) for other in (*(given.get(name) for name in OPERANDS), node)
    )
    if query is None or key is None or value is None or result is None:
        return False
    mask = _value(given.get("attn_mask"))  # of two dims at least
    if given.get("attn_mask") is not None and (mask is None or not mask.is_floating_point()):
        return False
    if given.get("dropout_p", 0) != 0 or given.get("is_causal") or given.get("enable_gqa"):
        return False
    trains_mask = mask is not None and mask.requires_grad
    sizes = (*query.shape, *key.shape, *value.shape, *result.stride())
    has_batch = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return (
        all(type(n) is int for n in sizes)
        and has_batch
        and result.dtype.itemsize == 2
        and result.numel() > 0
        and all(c.writes_attention(key.size(-2), trains_mask=trains_mask) for c in codegens)
    )


def _write_out(node: Node, given: dict[str, Any]) -> None:
    """Put matmuls and a softmax in the place of ``node``, laid out as its result."""
    query, mask, scale = given["query"], given.get("attn_mask"), given.get("scale")
    value = node.meta["example_value"]
    if scale is None:
        scale = 1 / math.sqrt(query.meta["example_value"].size(-1))
    scores = _call(node, "matmul", query, _call(node, "transpose", given["key"], -2, -1))
    scores = _call(node, "mul", scores, scale)
    hidden = None
    if mask is not None:  # rows that see no key give zeros, and get no gradients
        hidden = _call(node, "all", _call(node, "eq", mask, -math.inf), -1, True)
        scores = _call(node, "add", scores, _call(node, "masked_fill", mask, hidden, 0.0))
    weights = _call(node, "softmax", scores, -1)
    result = _call(node, "matmul", _call(node, "to", weights, value.dtype), given["value"])
    if hidden is not None:
        result = _call(node, "masked_fill", result, hidden, 0.0)
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    if order != list(range(value.dim())):
        dense = _call(node, "contiguous", _call(node, "permute", result, *order))
        result = _call(node, "permute", dense, *(order.index(d) for d in range(value.dim())))
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _is_written_with_gradients(value: torch.Tensor) -> bool:
    """Whether the graph writes to an operand, be it before attention or behind it."""
    return value.requires_grad and value._version > 0


def _batch(given: dict[str, Any]) -> list[int] | None:
    """The batch dims of all operands; None where nothing is to be done, or it can't be said."""
    values = [_value(given.get(name)) for name in OPERANDS]
    mask = given.get("attn_mask")
    if None in values or (mask is not None and _value(mask) is None):
        return None
    if given.get("dropout_p", 0) != 0 or given.get("enable_gqa", False):
        return None
    if any(_is_written_with_gradients(value) for value in values if value is not None):
        return None  # the library's operator saves it, where eager's matmuls save copies
    if any(type(n) is int and n == 0 for value in values if value is not None for n in value.shape):
        return None  # kernels divide by their counts
    sizes = [value.shape[:-2] for value in values if value is not None]
    if sizes[0] == sizes[1] == sizes[2] and len(sizes[0]) == BATCH:
        return None
    if not all(type(n) is int for size in sizes for n in size):
        return None
    try:
        batch = list(torch.broadcast_shapes(*sizes))
        wider = [] if mask is None else mask.meta["example_value"].shape[:-2]
        if list(torch.broadcast_shapes(wider, batch)) != batch:
            return None
    except RuntimeError:
        return None  # eager says so
    return batch if math.prod(batch) <= MAX_IMAGES else None


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return None
    is_plain = not value.is_nested and not hasattr(value, "__tensor_flatten__")
    return value if is_plain else None


def _rewrite(node: Node, given: dict[str, Any], batch: list[int]) -> None:
    """Put attention in four dims, and its result in those of ``node``, in the place of ``node``."""
    mask, is_grouped = given.get("attn_mask"), _is_grouped(given, batch)
    keys = [*batch[:-1], 1] if is_grouped else batch
    for name, size in zip(OPERANDS, (batch, keys, keys), strict=True):
        operand = _call(node, "expand", _aligned(node, given[name], len(batch)), *size, -1, -1)
        given[name] = _in_four_dims(node, operand, len(batch))
    if mask is not None and mask.meta["example_value"].dim() > 2:
        size = mask.meta["example_value"].shape[:-3]
        mask = _aligned(node, mask, len(batch))
        if any(n != 1 for n in size):
            mask = _call(node, "expand", mask, *batch, -1, -1)
        given["attn_mask"] = _in_four_dims(node, mask, len(batch))
    if is_grouped:
        given["enable_gqa"] = True
    with node.graph.inserting_before(node):
        result = node.graph.call_function(ATTENTION, (), given)
    result.meta.update(_meta(node))
    # the kernel's backward reads what it gave, that of eager's matmuls doesn't: it may be written to
    if node.meta["example_value"].requires_grad:
        result = _call(node, "clone", result, memory_format=torch.contiguous_format)
    else:
        result = _call(node, "contiguous", result)
    for _ in range(BATCH - len(batch)):
        result = _call(node, "squeeze", result, 0)
    if len(batch) > BATCH:
        result = _call(node, "unflatten", result, 0, batch[:-1])
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _is_grouped(given: dict[str, Any], batch: list[int]) -> bool:
    """Whether all heads of a query read one key and value, in a dtype whose kernels know that."""
    query, key, value = (given[name].meta["example_value"] for name in OPERANDS)
    is_half = query.dtype.itemsize == 2 or torch.is_autocast_enabled(query.device.type)
    if given.get("attn_mask") is not None or query.device.type != "cuda" or not is_half:
        return False
    heads = [1 if t.dim() == 2 else t.size(-3) for t in (query, key, value)]
    return heads[0] > 1 and heads[1:] == [1, 1] and batch[-1] == heads[0]


def _aligned(before: Node, operand: Node, rank: int) -> Node:
    """``operand`` with ``rank`` batch dims, as it is broadcast."""
    for _ in range(rank + 2 - operand.meta["example_value"].dim()):
        operand = _call(before, "unsqueeze", operand, 0)
    return operand


def _in_four_dims(before: Node, operand: Node, rank: int) -> Node:
    """``operand``, of ``rank`` batch dims, with :data:`BATCH`."""
    for _ in range(BATCH - rank):
        operand = _call(before, "unsqueeze", operand, 0)
    return _call(before, "flatten", operand, 0, -4) if rank > BATCH else operand


def _call(before: Node, method: str, operand: Node, *arguments: Any, **keywords: Any) -> Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_method(method, (operand, *arguments), keywords)
    node.meta.update(_meta(before))
    return node


def _meta(node: Node) -> dict[str, Any]:
    return {name: value for name, value in node.meta.items() if name != "example_value"}
