"""Where the graph has to end so that a tensor gets a place of its own in autograd's graph.

To autograd all that a compiled graph gives comes from one function.  A hook of one result does not see the
gradients of others that are computed from it, ``torch.autograd.grad`` finds no way from one to another, and
the hook of a result that gets no gradient is called with None where another gets one.  So the operation that
makes such a tensor runs in eager.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from ..._torch import storage_identity
from ...unsupported import BreakEarlier, Unsupported
from ..protocol import Evaluator
from .purity import possibly_written, writes


def with_history(
    evaluator: Evaluator, tensors: Iterable[tuple[torch.fx.Node, torch.Tensor]], error: Unsupported
) -> Unsupported:
    """What to raise in the stead of ``error``, so that each of ``tensors`` has its history in eager.

    It is to be raised at once: a frame that keeps an error it raises lives on, and the program's objects
    with it.
    """
    position = first_history(evaluator, tensors)
    return error if position is None else BreakEarlier(position, error)


def first_history(
    evaluator: Evaluator, tensors: Iterable[tuple[torch.fx.Node, torch.Tensor]]
) -> int | None:
    """The root frame's instruction with the first operation that gives one of ``tensors`` its history.

    A graph that ends there leaves that operation to eager; what comes after it is captured again, and ends
    at the next one.
    """
    made_at = evaluator.graph.made_at
    wanted = {node: fake for node, fake in tensors if fake.requires_grad}
    storages = {storage_identity(fake) for fake in wanted.values()}
    nodes = list(evaluator.graph.outermost.nodes)
    last: dict[Any, torch.fx.Node] = {}
    for node in nodes:
        last.update(dict.fromkeys(_histories(node, wanted, storages), node))
    order = {node: number for number, node in enumerate(nodes)}
    for node in sorted(last.values(), key=order.__getitem__):
        made = node.args[0] if node.target is operator.getitem and node not in made_at else node
        if made in made_at:
            return made_at[made]
    return None


def _histories(
    node: torch.fx.Node, wanted: dict[torch.fx.Node, torch.Tensor], storages: set[int]
) -> set[int]:
    """The storages, of ``storages``, of those tensors to which ``node`` gives their history."""
    found = {storage_identity(wanted[node])} if node in wanted else set()
    if writes(node):
        values = [argument.meta.get("example_value") for argument in possibly_written(node)]
        written = {storage_identity(v) for v in values if isinstance(v, torch.Tensor)}
        found |= written & storages
    return found


_ASKING = frozenset(
    {"register_hook", "retain_grad", "grad_fn", "register_multi_grad_hook", "get_gradient_edge"}
)


def asks_for_histories(code: types.CodeType) -> bool:
    """Whether code mentions what asks for a tensor's place in autograd's graph: maybe behind a break."""
    names = code.co_names
    return not _ASKING.isdisjoint(names) or ("autograd" in names and "grad" in names)
