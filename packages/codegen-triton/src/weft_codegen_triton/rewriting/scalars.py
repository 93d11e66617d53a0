"""Tensors without dimensions on the CPU, which operators on a GPU take beside the GPU's own.

They are moved: those that the graph makes are made on the GPU, such as the flags of its branches and
loops, and those that it is given are copied there by the program, before each call.  Those that it returns,
such as how often a loop ran, are copied back at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import insert_call

from weft_codegen_triton._torch import tree_leaves, tree_map

MAX_RETURNED = 8
"""Each copy back waits for the GPU: an optimizer has a counter for each parameter, better left alone."""


def move_scalars(graph: torch.fx.Graph) -> None:
    """Put the CPU tensors of ``graph`` on its GPU, if all are without dimensions and few are returned.

    Those of the graphs of its regions too.
    """
    tensors = [
        (node, value)
        for part in (graph, *_regions(graph))
        for node in part.nodes
        if node.op != "output" and not _is_unread_input(node, graph)
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
    ]
    devices = {value.device for _, value in tensors if value.device.type != "cpu"}
    scalars = [(node, value) for node, value in tensors if value.device.type == "cpu"]
    returned = [
        node for node in graph.output_node().all_input_nodes if is_on_cpu(node.meta.get("val"))
    ]
    if len(devices) != 1 or any(_stays(node, value) for node, value in scalars):
        return
    if len(returned) > MAX_RETURNED:
        return
    (device,) = devices
    for node in returned:
        _return_copy(node, graph.output_node())
    move = functools.partial(_moved, device=device)
    for node in dict.fromkeys(node for node, _ in scalars):
        node.meta["val"] = tree_map(move, node.meta["val"])
        if "device" in node.kwargs:
            node.update_kwarg("device", device)


def _regions(graph: torch.fx.Graph) -> Iterator[torch.fx.Graph]:
    """The graphs of the branches and loops in ``graph``, at any depth."""
    module: Any = graph.owning_module
    for node in graph.find_nodes(op="get_attr"):
        block = module.get_submodule(node.target) if node.target in module._modules else None
        if isinstance(block, torch.fx.GraphModule):
            yield block.graph
            yield from _regions(block.graph)


def _stays(node: torch.fx.Node, value: torch.Tensor) -> bool:
    return value.dim() > 0 or node.op == "get_attr"


def _is_unread_input(node: torch.fx.Node, graph: torch.fx.Graph) -> bool:
    return node.op == "placeholder" and node.graph is graph and not node.users


def is_on_cpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _return_copy(node: torch.fx.Node, output: torch.fx.Node) -> None:
    """Have the graph return a copy on the CPU of what ``node`` gives."""
    operator, value = torch.ops.aten._to_copy.default, node.meta["val"]
    copy = insert_call(output, value, operator, node, device=value.device)
    output.replace_input_with(node, copy)


def _moved(value: Any, device: torch.device) -> Any:
    """A fake tensor of the CPU on ``device``; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty((), dtype=value.dtype, device=device)
