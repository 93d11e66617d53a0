"""What a graph on a GPU computes on the CPU, and sends from there, before all else.

A model may keep a table on the CPU that each call sends to the GPU, as one of positions that is no buffer
(``x + self.table.type_as(x)``).  At the beginning of the graph it comes before what is recorded; further on
it would keep the whole program from being recorded.
"""

from __future__ import annotations

import torch
import torch.fx

from weft_codegen_triton._torch import OpOverload, tree_leaves
from weft_codegen_triton.recordable import NOT_RECORDABLE
from weft_codegen_triton.rewriting.scalars import is_on_cpu

_STAYING = (*NOT_RECORDABLE, torch.Tag.nondeterministic_seeded)
"""Operators with these tags stay: what they raise or draw has its place among others."""


def send_first(graph: torch.fx.Graph) -> None:
    """Move calls that read tensors of the CPU alone to the beginning of ``graph``, in their order.

    The graph is functional, so that nothing has changed what they read.
    """
    given = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    if not any(map(_has_dims_on_cpu, given)) or not any(map(_gives_elsewhere, graph.nodes)):
        return
    known = set(given)
    start = next(node for node in graph.nodes if node not in given)
    for node in list(graph.nodes):
        if not _reads_cpu_alone(node) or not known.issuperset(node.all_input_nodes):
            continue
        known.add(node)
        if node is start:
            start = node.next
        else:
            start.prepend(node)


def _has_dims_on_cpu(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and is_on_cpu(value) and value.dim() > 0


def _gives_elsewhere(node: torch.fx.Node) -> bool:
    values = tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and not is_on_cpu(value) for value in values)


def _reads_cpu_alone(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if target._schema.is_mutable or any(tag in target.tags for tag in _STAYING):
        return False
    values = [v for n in node.all_input_nodes for v in tree_leaves(n.meta.get("val"))]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(map(is_on_cpu, tensors))
