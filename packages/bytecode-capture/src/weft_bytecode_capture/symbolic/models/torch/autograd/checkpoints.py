"""``torch.utils.checkpoint``: a call of the function, unless to run it again changes something.

Eager runs the function a second time in backward, with all that it does: statistics of a batch are counted
twice.  What a graph keeps for backward is for the compiler to decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
import torch.fx
import torch.utils.checkpoint

from .....unsupported import Unsupported
from ....graph.checkpointed import KIND as CHANGES
from ....graph.purity import draws, possibly_written, writes
from ....graph.storages import leaves, node_values, storages
from ....graph.transforms import KIND
from ....protocol import Evaluator
from ....regions.state.python_state import ObjectStates
from ....variables.base import Variable
from ...table import model
from .gradients import needs_gradient


@model(torch.utils.checkpoint.checkpoint)
def _checkpoint(
    evaluator: Evaluator,
    function: Variable,
    /,
    *inputs: Variable,
    use_reentrant: Variable | None = None,
    context_fn: Variable | None = None,
    **keywords: Variable,
) -> Variable:
    preserved = keywords.pop("preserve_rng_state", None)
    draws_again = preserved is not None and not (
        preserved.is_constant() and preserved.as_constant()
    )
    for name in ("determinism_check", "debug", "early_stop"):
        keywords.pop(name, None)
    if evaluator.graph.transforms.has_gradients:
        raise Unsupported(KIND, "a checkpoint in a gradient, which raises")
    is_known = use_reentrant is not None and use_reentrant.is_constant()
    if use_reentrant is None or not is_known or use_reentrant.is_none() or context_fn is not None:
        raise Unsupported("call", "checkpoint with context_fn or without use_reentrant")
    if use_reentrant.as_constant():
        if keywords:
            raise Unsupported("call", "checkpoint with keywords and use_reentrant=True")
        if not any(map(needs_gradient, inputs)):
            raise Unsupported("checkpoint without gradients", repr(function))
    if not torch.is_grad_enabled():
        return function.call(evaluator, list(inputs), keywords)
    states = ObjectStates(evaluator.frame)
    graph = evaluator.graph.graph
    last = next(iter(reversed(graph.nodes)), None)
    result = function.call(evaluator, list(inputs), keywords)
    if states.effects() or states.changed():
        raise Unsupported(CHANGES, f"{function!r} changes Python objects")
    if draws_again and any(map(draws, _nodes_behind(graph, last))):
        raise Unsupported(CHANGES, f"{function!r} draws other numbers in backward")
    for node in _written_outside(graph, last):
        raise Unsupported(CHANGES, f"{function!r} writes to {node}")
    evaluator.state.checkpoints.note(evaluator, _nodes_behind(graph, last))
    return result


def _nodes_behind(graph: torch.fx.Graph, last: torch.fx.Node | None) -> list[torch.fx.Node]:
    return list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes)))


def _written_outside(graph: torch.fx.Graph, last: torch.fx.Node | None) -> Iterator[torch.fx.Node]:
    """What the nodes behind ``last`` may write to, and did not make."""
    new = _nodes_behind(graph, last)
    written = [w for node in new if writes(node) for w in possibly_written(node)]
    if not written:
        return
    calls = {node for node in new if node.op.startswith("call_")}
    made = _storages(calls) - _storages(node for node in graph.nodes if node not in calls)
    for node in written:
        if node.graph is not graph or not _storages([node]) <= made:
            yield node


def _storages(nodes: Iterable[torch.fx.Node]) -> set[int]:
    return storages(leaves(tuple(node_values(nodes))))
