"""Collectives read their arguments until they are waited for: the waits hold that memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from weft_loop_ir._torch import starts_collective, waits
from weft_loop_ir.ir import ExternCall
from weft_loop_ir.loop_graph import extern_writes
from weft_loop_ir.unsupported import Unsupported


def with_held_arguments(nodes: Iterable[Any]) -> list[Any]:
    """``nodes`` of a block, with what each collective reads held by the calls that wait for it.

    Raises :class:`Unsupported` for a collective that nothing waits for in the same block.
    """
    reads: dict[str, tuple[str, ...]] = {}  # by result of a collective
    waiting: dict[str, str] = {}  # its operator
    result = []
    for node in nodes:
        if isinstance(node, ExternCall) and starts_collective(node.operator):
            reads.update(dict.fromkeys(extern_writes(node), node.reads))
            waiting.update(dict.fromkeys(extern_writes(node), str(node.operator)))
        elif isinstance(node, ExternCall) and waits(node.operator):
            names = node.reads
            held = [name for started in names for name in reads.get(started, ())]
            node = replace(node, holds=(*node.holds, *held))
            for name in names:
                waiting.pop(name, None)
        result.append(node)
    for operator in waiting.values():
        raise Unsupported(
            "collective without a wait", operator, "Wait for it in the same function."
        )
    return result
