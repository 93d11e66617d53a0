"""Sums at indexed places of dtypes that the hardware doesn't add atomically: in 32 bits, and back.

Integers of fewer bits wrap the same when what was summed in 32 is cut; truth values sum to true where numbers
sum to other than 0.
"""

from __future__ import annotations

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, source_of

aten = torch.ops.aten

SUMS = {
    aten.scatter_add.default: (0, 3),
    aten.index_add.default: (0, 3),
    aten.index_put.default: (0, 2),
}
"""Operators, and the positions of their operands that are added."""

NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)


def widen_small_sums(graph: torch.fx.Graph) -> None:
    """Have every sum of ``graph`` at indexed places made in a dtype that can be added atomically."""
    for target, positions in SUMS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if node.meta["val"].dtype in NARROW and _adds(node):
                _widen(node, positions)


def _adds(node: torch.fx.Node) -> bool:
    is_put = node.target is aten.index_put.default
    return not is_put or bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate"))


def _widen(node: torch.fx.Node, positions: tuple[int, ...]) -> None:
    result = node.meta["val"]
    for position in positions:
        operand = source_of(node, position)
        wide = call_before(node, aten._to_copy.default, operand, dtype=torch.int32)
        node.update_arg(position, wide)
    with result.fake_mode:
        node.meta["val"] = torch.empty_strided(
            result.shape, result.stride(), dtype=torch.int32, device=result.device
        )
    narrow = call_before(node.next, aten._to_copy.default, node, dtype=result.dtype)
    narrow.meta["val"] = result
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
