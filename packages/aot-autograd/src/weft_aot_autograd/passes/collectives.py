"""Lets communication run beside computation: collectives start early, and are waited for late."""

from __future__ import annotations

import torch.fx

from .._torch import OpOverload

NAMESPACE = "_c10d_functional"


def overlap_collectives(graph: torch.fx.Graph) -> int:
    """Move each collective to just after its last argument, and each wait to just before its first reader.

    Collectives keep their order among each other, which has to be the same on every rank: each stays
    behind the one before.  Returns how many nodes have moved.
    """
    collectives = [node for node in graph.nodes if _is_collective(node)]
    moved = 0
    previous: torch.fx.Node | None = None
    for node in [n for n in collectives if starts(n)]:
        moved += _hoist(node, previous)
        previous = node
    for node in reversed([n for n in collectives if is_wait(n)]):
        moved += _sink(node)
    return moved


def is_wait(node: torch.fx.Node) -> bool:
    """Whether ``node`` gives its argument once the collective that makes it has ended."""
    return isinstance(node.target, OpOverload) and node.target._schema.name == (
        f"{NAMESPACE}::wait_tensor"
    )


def starts(node: torch.fx.Node) -> bool:
    """Whether the result of ``node`` holds nothing until it is waited for."""
    return _is_collective(node) and not is_wait(node)


def _is_collective(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace == NAMESPACE


def _hoist(node: torch.fx.Node, previous: torch.fx.Node | None) -> bool:
    """Put ``node`` after the last of its arguments and ``previous``; arguments may be waits themselves."""
    bounds = {*node.all_input_nodes, *([previous] if previous is not None else [])}
    last = node.prev
    while last not in bounds and last.op not in ("placeholder", "root"):
        last = last.prev
    if last is node.prev:
        return False
    last.append(node)
    return True


def _sink(node: torch.fx.Node) -> bool:
    """Put ``node`` before the first of its readers."""
    first = node.next
    while first not in node.users and first.op != "output":
        first = first.next
    if first is node.next:
        return False
    first.prepend(node)
    return True
