"""Copies to another device of what a program makes of nothing but numbers.

``torch.arange(n)[:, None] // 8`` on the CPU, then ``.to(x.device)``: each call would compute the same there,
and wait for the copy.  What the copy holds is computed once, by the same operators on the same device, and
becomes an input of the kind ``LITERAL``, as the list in ``torch.tensor([1, 2])`` does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ._torch import OpOverload, without_modes
from .aten_recorder import AtenRecorder
from .functional_graph import InputKind
from .tensor_ssa.functional_counterparts import written_arguments

aten = torch.ops.aten

MAX_BYTES = 1 << 25
"""Of a value that is held as long as the program is, and of each that it is computed from."""


def hold_literal_copies(recorder: AtenRecorder) -> None:
    """Lift what copies to other devices give, where no input, size or chance decides that.

    No operator of the recorded graph writes.  A call of it starts from a new copy of what is held.
    """
    copies = [node for node in recorder.graph.nodes if _changes_device(node)]
    values: dict[torch.fx.Node, Any] = {
        recorded.node: recorded.tensor
        for recorded in recorder.inputs
        if recorded.kind is InputKind.LITERAL
    }
    for node in copies:
        order = _computation(node, values)
        if order is None:
            continue
        with without_modes():
            for current in order:
                values[current] = _compute(current, values)
        fake = node.meta["val"]
        if values[node].stride() == fake.stride():
            literal = recorder.node_of(recorder.fake_of_literal(values[node]))
            node.target, node.args, node.kwargs = aten.clone.default, (literal,), {}


def _changes_device(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.target is not aten._to_copy.default:
        return False
    (source,) = node.all_input_nodes
    before, after = source.meta["val"].device, node.meta["val"].device
    return bool(before != after and before.type == "cpu")


def _computation(
    node: torch.fx.Node, known: dict[torch.fx.Node, Any]
) -> list[torch.fx.Node] | None:
    """What has to be computed for ``node``, in order, beside what is known; None if a call decides it."""
    found: dict[torch.fx.Node, None] = {}
    pending = [node]
    while pending:
        current = pending.pop()
        if current in known or current in found:
            continue
        if not _is_fixed(current):
            return None
        found[current] = None
        pending += current.all_input_nodes
    return [current for current in node.graph.nodes if current in found]


def _is_fixed(node: torch.fx.Node) -> bool:
    """Whether ``node`` gives small tensors that its arguments alone decide."""
    operator, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(operator, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in operator.tags or written_arguments(operator):
        return False
    return (
        operator.namespace == "aten"
        and isinstance(value, torch.Tensor)
        and all(type(n) is int for n in value.shape)
        and value.numel() * value.itemsize <= MAX_BYTES
    )


def _compute(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    arguments: Any = torch.fx.map_arg(node.args, values.__getitem__)
    keywords: Any = torch.fx.map_arg(node.kwargs, values.__getitem__)
    assert isinstance(node.target, OpOverload)
    return node.target(*arguments, **keywords)
