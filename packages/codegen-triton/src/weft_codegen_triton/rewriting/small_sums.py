"""Sums at indexed places of dtypes that the hardware doesn't add atomically: in 32 bits, and back.

Integers of fewer bits wrap the same when what was summed in 32 is cut; truth values sum to true where numbers
sum to other than 0.  Floats of 16 bits are rounded once, as torch's sum of sorted places is.
"""

from __future__ import annotations

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, is_static, source_of

aten = torch.ops.aten

SUMS = {
    aten.scatter_add.default: (0, 3),
    aten.index_add.default: (0, 3),
    aten.index_put.default: (0, 2),
}
"""Operators, and the positions of their operands that are added."""

WIDE = {
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32),
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
}
"""In what is added instead."""
MAX_ROOM = 4
"""Elements that there are for each that floats are added to: all of them are read and written twice more."""


def widen_small_sums(graph: torch.fx.Graph) -> None:
    """Have every sum of ``graph`` at indexed places made in a dtype that can be added atomically."""
    for target, positions in SUMS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            if node.meta["val"].dtype in WIDE and _adds(node) and _may_widen(node, positions):
                _widen(node, positions)


def _may_widen(node: torch.fx.Node, positions: tuple[int, ...]) -> bool:
    """Whether no order is asked for, and copies of the whole are not most of the work."""
    value, added = node.meta["val"], source_of(node, positions[1])
    if not value.dtype.is_floating_point:
        return True
    if torch.are_deterministic_algorithms_enabled() or not is_static(node) or not is_static(added):
        return False
    return bool(value.numel() <= MAX_ROOM * added.meta["val"].numel())


def _adds(node: torch.fx.Node) -> bool:
    is_put = node.target is aten.index_put.default
    return not is_put or bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate"))


def _widen(node: torch.fx.Node, positions: tuple[int, ...]) -> None:
    result = node.meta["val"]
    for position in positions:
        operand = source_of(node, position)
        wide = call_before(node, aten._to_copy.default, operand, dtype=WIDE[result.dtype])
        node.update_arg(position, wide)
    with result.fake_mode:
        node.meta["val"] = torch.empty_strided(
            result.shape, result.stride(), dtype=WIDE[result.dtype], device=result.device
        )
    narrow = call_before(node.next, aten._to_copy.default, node, dtype=result.dtype)
    narrow.meta["val"] = result
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
