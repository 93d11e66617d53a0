"""Removes operators that give their argument back."""

from __future__ import annotations

from collections.abc import Set

import torch
import torch.fx
from weft_functionalize import known_equal

from .._torch import OpOverload
from .storage_origins import is_view, returned_origins

aten = torch.ops.aten

_ALIASES = frozenset({aten.alias.default, aten.detach.default, aten.lift_fresh.default})


def remove_identities(graph: torch.fx.Graph, *, keep_copies: bool = False) -> int:
    """Remove aliases, and copies and views that change neither values nor placement.

    What the graph returns stays an own tensor: a copy whose result is returned is kept.  A matrix that is
    transposed twice, as backward does with each weight and its gradient, is the matrix.  ``keep_copies``:
    what is copied may be another value when the copy is read.
    """
    returned = returned_origins(graph)
    (output,) = graph.find_nodes(op="output")
    results = set(output.all_input_nodes)
    removed = 0
    for node in list(graph.nodes):
        if not isinstance(node.target, OpOverload) or not node.args:
            continue
        source = node.args[0]
        whole = _viewed_twice(node)
        if whole is not None and (node not in results or _may_be_returned(whole, results)):
            if node in results:
                results.add(whole)
            node.replace_all_uses_with(whole)
            graph.erase_node(node)
            removed += 1
            continue
        if node in returned or (keep_copies and node.target in _COPIES):
            continue
        if isinstance(source, torch.fx.Node) and _is_identity(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            removed += 1
    return removed


_COPIES = frozenset({aten.clone.default, aten._to_copy.default})


def _may_be_returned(node: torch.fx.Node, results: Set[torch.fx.Node]) -> bool:
    """Whether ``node`` may be returned in the place of a view: not twice, and no input."""
    return node.op == "call_function" and node not in results


def _viewed_twice(node: torch.fx.Node) -> torch.fx.Node | None:
    """What ``node`` is a view of a view of, where it is that very tensor again."""
    source = node.args[0]
    if not isinstance(source, torch.fx.Node) or not (is_view(node) and is_view(source)):
        return None
    whole = source.args[0]
    assert isinstance(whole, torch.fx.Node)
    if not all(isinstance(n.meta["val"], torch.Tensor) for n in (node, whole)):
        return None  # several views of a call
    return whole if _same_tensor(node, whole) else None


def _is_identity(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    if node.target in _ALIASES:
        return True
    assert isinstance(node.target, OpOverload)
    check = _CHECKS.get(node.target)
    return check is not None and check(node, source)


def _same_tensor(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    new, old = node.meta["val"], source.meta["val"]
    return bool(
        new.dim() == old.dim()
        and all(map(known_equal, new.shape, old.shape))
        and all(map(known_equal, new.stride(), old.stride()))
        and known_equal(new.storage_offset(), old.storage_offset())
        and new.dtype == old.dtype
        and new.device == old.device
        and new.is_conj() == old.is_conj()
        and new.is_neg() == old.is_neg()
    )


def _same_order(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    dims = node.args[1]
    return isinstance(dims, (list, tuple)) and list(dims) == list(range(len(dims)))


# By operator: whether the node gives its first argument, values and placement.
_CHECKS = {
    aten.clone.default: _same_tensor,
    aten._to_copy.default: _same_tensor,
    aten.view.default: _same_tensor,
    aten._unsafe_view.default: _same_tensor,
    aten._reshape_alias.default: _same_tensor,
    aten.expand.default: _same_tensor,
    aten.squeeze.default: _same_tensor,
    aten.squeeze.dim: _same_tensor,
    aten.squeeze.dims: _same_tensor,
    aten.permute.default: _same_order,
}
