"""Running a captured graph as it is written, with branches and loops that torch's own operators refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx


def plain_run(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """What runs ``graph_module`` in eager, writes included.

    torch's ``cond`` and ``while_loop`` take no floats, and neither tensors that share memory nor writes
    where they may show.  As Python, a branch is a call of one of two graphs, and a loop calls two in turn.
    """
    nodes = graph_module.graph.nodes
    return _Run(graph_module).run if any(n.target in _REGIONS for n in nodes) else graph_module


class _Run(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # errors say what eager's say

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        region = _REGIONS.get(target)
        return super().call_function(target, args, kwargs) if region is None else region(*args)


def _branch(predicate: Any, true_graph: Any, false_graph: Any, operands: Sequence[Any]) -> Any:
    return plain_run(true_graph if predicate else false_graph)(*operands)


def _loop(condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    goes_on, turn = plain_run(condition), plain_run(body)
    while goes_on(*carried, *others):
        carried = turn(*carried, *others)
    return tuple(carried)


_REGIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.cond: _branch,
    torch.ops.higher_order.while_loop: _loop,
}
