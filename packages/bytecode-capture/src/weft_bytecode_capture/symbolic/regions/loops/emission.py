"""The operator of a loop that a tensor ends: its condition is the outcome of the test, which is carried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.fx

from ...models.torch.tensor import TensorVariable
from ..subgraph import Carried, Subgraph, add_region, call_region, parameter

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator


def emit_while(
    evaluator: FrameEvaluator,
    subgraph: Subgraph,
    first: TensorVariable,
    following: TensorVariable,
    kept: Sequence[Carried],
) -> list[torch.fx.Node]:
    """Append a ``while_loop`` whose body is ``subgraph``; the nodes of other graphs that its body uses.

    ``first`` says whether there is an iteration, ``following`` in the body whether there is another.
    Parameters in ``kept`` become the loop's results.
    """
    graph = subgraph.graph
    test = parameter(graph, "goes_on", first.fake)
    inner = [following, *(c.result for c in kept if c.result is not None)]
    nodes = tuple(variable.node for variable in inner)
    parameters = [test, *(c.parameter.node for c in kept)]
    taken = subgraph.taken()
    taken += dict.fromkeys(n for n in nodes if n.graph is not graph and n not in taken)
    body = subgraph.close(parameters, taken, nodes)
    condition = Subgraph(evaluator)
    copies = [parameter(condition.graph, n.name, n.meta["example_value"]) for n in parameters]
    tested = condition.close(copies, taken, copies[0])
    arguments = (
        add_region(evaluator, "condition", tested),
        add_region(evaluator, "body", body),
        (first.node, *(c.start.node for c in kept)),
        tuple(taken),
    )
    fakes = [first.fake, *(c.parameter.fake for c in kept)]
    items = call_region(evaluator, torch.ops.higher_order.while_loop, arguments, fakes)
    for carried, node in zip(kept, items[1:], strict=True):
        carried.parameter.node = node
    return taken
