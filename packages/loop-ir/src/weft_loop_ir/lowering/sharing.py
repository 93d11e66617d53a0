"""Values that several operators use: computed once and kept, or computed again by each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from weft_loop_ir.expressions import product
from weft_loop_ir.ir import BufferKind
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.tensors import Cost, TensorValue
from weft_loop_ir.ops import STORAGE_ONLY

BROADCAST_SHARE = 16
"""A buffer with fewer elements than a result by this factor costs no memory traffic to read again."""


def realize_if_shared(
    context: LoweringContext, values: Mapping[Any, Any], node: torch.fx.Node, result: TensorValue
) -> None:
    """Materialise the result of ``node`` where it has several users and is costly to compute again.

    ``values`` are the results of the nodes before.
    """
    options = context.options
    cost = result.cost
    if context.inlines or result.storage.is_realized or len(node.users) < 2:
        return
    reads = [name for name in cost.reads if _is_large_beside(context, name, result)]
    read = sum(context.buffers[name].layout.dtype.itemsize for name in reads)
    is_widened = read < result.dtype.itemsize
    limit = options.widened_instructions if is_widened else options.shared_instructions
    if (
        cost.costly or cost.instructions > limit or len(reads) > options.shared_reads
    ) and not _realize_narrower(context, values, node, result):
        context.realize(result)


def realize_if_last(context: LoweringContext, node: torch.fx.Node, result: TensorValue) -> None:
    """Materialise what only the graph's results read as soon as it can be, so that its arguments end there.

    The gradient of a weight that was cast to 16 bits is a cast of a matmul's result, say, which would live
    to the end of backward otherwise.
    """
    made = (context.buffers[name].kind is BufferKind.INTERMEDIATE for name in result.cost.reads)
    if node.users and all(user.op == "output" for user in node.users) and any(made):
        context.realize(result)


def _is_large_beside(context: LoweringContext, name: str, result: TensorValue) -> bool:
    """Whether reading the buffer ``name`` again for each element of ``result`` costs memory traffic."""
    size, whole = product(context.buffers[name].layout.size), product(result.size)
    if not (size.is_Integer and whole.is_Integer):
        return True
    return int(size) * BROADCAST_SHARE > int(whole)


def _realize_narrower(
    context: LoweringContext, values: Mapping[Any, Any], node: torch.fx.Node, result: TensorValue
) -> bool:
    """Where ``node`` widens the floats of another tensor, materialise that one instead, if it isn't."""
    if node.target is not torch.ops.aten._to_copy.default:
        return False
    source = values[node.args[0]]
    storage = source.storage
    if (
        source.dtype not in STORAGE_ONLY
        or not result.dtype.is_floating_point
        or storage.is_realized
        or storage.size != result.size
        or storage.stride != result.storage.stride
    ):
        return False
    context.realize(source)
    result.storage.cost = Cost(2, source.cost.reads, False)
    return True
