"""BlockPropagation of algorithm 1: carries new versions out of the blocks that define them.

A region's graph is closed: what it takes from the block around it, it takes as operands.  So a write inside
a region is a write to a placeholder of its graph, and a region operator is, to the block around it, an
operator that writes to some of its operands.  Blocks are converted from the innermost outwards:

* the block returns the last version of each placeholder that it writes (paper: add x to B.returns);
* a branch that does not write what its sibling writes returns it as it came (add x to B'.returns);
* a loop takes what its body writes as carried values (add x to N.inputs, x_p to B.params);
* the operator's node has a result more for each (add x_o to N.outputs), and the rewriting of the block
  around it gives the operand that new version (Update(x_o, x)), views and bases included.

A loop's body may also write to a tensor that it carries and binds anew in each iteration.  The first
iteration's write is to the operand, later ones are to what the body made.  The operator then *clobbers* the
operand: it has no new version, and nothing may read it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.fx

from .._torch import HigherOrderOperator

_WRITTEN = "region_writes"
_SEEN = "region_writes_seen"
_CLOBBERED = "region_clobbers"


def region_writes(node: torch.fx.Node) -> tuple[tuple[torch.fx.Node, int], ...]:
    """The operands that a region operator writes, each with the position of its new version."""
    if not isinstance(node.target, HigherOrderOperator):
        return ()
    writes: tuple[tuple[torch.fx.Node, int], ...] = node.meta.get(_WRITTEN, ())
    return writes


def writes_seen(node: torch.fx.Node) -> frozenset[torch.fx.Node]:
    """Those of the operands that a region operator writes with autograd looking on."""
    seen: frozenset[torch.fx.Node] = node.meta.get(_SEEN, frozenset())
    return seen


def set_region_writes(
    node: torch.fx.Node,
    writes: Sequence[tuple[torch.fx.Node, int]],
    seen: Iterable[torch.fx.Node],
) -> None:
    """Note the operands that the region writes, each with the position of its version.

    ``seen`` are those that it writes with autograd looking on.
    """
    node.meta[_WRITTEN] = tuple(writes)
    node.meta[_SEEN] = frozenset(seen)


def region_clobbers(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The operands that a region operator writes without giving their new versions."""
    clobbers: tuple[torch.fx.Node, ...] = node.meta.get(_CLOBBERED, ())
    return clobbers


def set_region_clobbers(node: torch.fx.Node, operands: Sequence[torch.fx.Node]) -> None:
    node.meta[_CLOBBERED] = tuple(operands)


def order_parameters(graph: torch.fx.Graph, order: Sequence[torch.fx.Node]) -> None:
    """Put the placeholders of a block in ``order``, which has all of them."""
    anchor = graph._root
    for node in order:
        if anchor.next is not node:
            anchor.append(node)
        anchor = node
