"""How deep values lie among a program's library calls, which end what a kernel can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import torch.fx

from .operator_classes import OperatorClass, classify

_CALLS = frozenset({OperatorClass.CONTRACTION, OperatorClass.RANDOM, OperatorClass.OTHER})

LONGEST_CHAIN = 2
"""How many library calls lie between values that are computed again one from the other, at most.

Each value of a residual stream is the one before plus what a call gives.  Backward first reads the last:
computed from what the calls give, all would be computed then, and held until their own readers come.
"""


def depths(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, int]:
    """For each of ``nodes``, in order, the most calls on a way from the inputs to it, its own included."""
    found: dict[torch.fx.Node, int] = {}
    for node in nodes:
        before = max((found.get(argument, 0) for argument in node.all_input_nodes), default=0)
        is_call = node.op == "call_function" and classify(node) in _CALLS
        found[node] = before + is_call
    return found


def ends_of_long_chains(
    depth: dict[torch.fx.Node, int],
    recomputable: Set[torch.fx.Node],
    may_be_kept: Callable[[torch.fx.Node], bool],
) -> set[torch.fx.Node]:
    """The ``recomputable`` values that would make a chain longer than :data:`LONGEST_CHAIN`.

    ``depth`` is what :func:`depths` gives; only values that ``may_be_kept`` end a chain.
    """
    ends: set[torch.fx.Node] = set()
    lengths: dict[torch.fx.Node, int] = {}  # of values that are computed again
    for node in depth:
        if node not in recomputable:
            continue
        again = [argument for argument in node.all_input_nodes if argument in lengths]
        length = max((lengths[a] + (depth[a] < depth[node]) for a in again), default=0)
        if length > LONGEST_CHAIN and may_be_kept(node):
            ends.add(node)
        else:
            lengths[node] = length
    return ends
