"""Tensors on the CPU that operators on a GPU take beside the GPU's own: numbers, and positions.

``h * number`` and ``h[:, order]`` take them where they are; a kernel can't, and a call that does has the host
wait.  Each is copied to the GPU, once, by a call that comes before all kernels.
"""

from __future__ import annotations

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before

from weft_codegen_triton._torch import OpOverload, tree_leaves
from weft_codegen_triton.rewriting.scalars import is_on_cpu, regions

aten = torch.ops.aten

_TAKING_POSITIONS = frozenset(
    (
        *(aten.index.Tensor, aten._unsafe_index.Tensor),
        *(aten.index_put.default, aten._unsafe_index_put.default),
    )
)
_TAKING_NUMBERS = frozenset(
    (aten.masked_fill.Tensor, aten.index_fill.int_Tensor, aten.fill.Tensor, aten.copy.default)
)
"""Beside pointwise ones: the operators that take a number on the CPU beside tensors elsewhere."""


def send_operands(graph: torch.fx.Graph) -> None:
    """Have the operators of ``graph`` and of its regions read copies of what they take from the CPU."""
    for part in (graph, *regions(graph)):
        sent: dict[tuple[torch.fx.Node, torch.device], torch.fx.Node] = {}
        for node in list(part.nodes):
            device = _device_beside(node)
            if device is None:
                continue
            for operand in [n for n in node.all_input_nodes if takes_from_cpu(node, n)]:
                copy = sent.get((operand, device))
                if copy is None:
                    copy = call_before(node, aten._to_copy.default, operand, device=device)
                    sent[operand, device] = copy
                node.replace_input_with(operand, copy)


def _device_beside(node: torch.fx.Node) -> torch.device | None:
    """The one device but the CPU that ``node`` reads from and gives its result on, if it may read both."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or not isinstance(value, torch.Tensor):
        return None
    devices = {
        read.device
        for source in node.all_input_nodes
        for read in tree_leaves(source.meta.get("val"))
        if isinstance(read, torch.Tensor) and not is_on_cpu(read)
    }
    return value.device if devices == {value.device} else None


def takes_from_cpu(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    """Whether ``node``, which calls an operator elsewhere, takes ``operand`` from the CPU as it is."""
    value, target = operand.meta.get("val"), node.target
    if not is_on_cpu(value) or not isinstance(target, OpOverload):
        return False
    if target in _TAKING_POSITIONS:
        return True
    takes_numbers = torch.Tag.pointwise in target.tags or target in _TAKING_NUMBERS
    return takes_numbers and bool(value.dim() == 0)
