"""Tensors without dimensions on the CPU, which operators on a GPU take beside the GPU's own.

They are moved: those that the graph makes are made on the GPU, such as the flags of its branches and
loops, and those that it is given are copied there by the program, before each call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from weft_codegen_triton._torch import tree_leaves, tree_map


def move_scalars(graph: torch.fx.Graph) -> None:
    """Put the CPU tensors of ``graph`` on its GPU, if all are without dimensions and none is returned.

    Those of the graphs of its regions too, which may return them.
    """
    tensors = [
        (node, value)
        for part in (graph, *_regions(graph))
        for node in part.nodes
        if node.op != "output"
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
    ]
    devices = {value.device for _, value in tensors if value.device.type != "cpu"}
    scalars = [(node, value) for node, value in tensors if value.device.type == "cpu"]
    (output,) = graph.find_nodes(op="output")
    if len(devices) != 1 or any(_stays(node, value, output) for node, value in scalars):
        return
    (device,) = devices
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


def _stays(node: torch.fx.Node, value: torch.Tensor, output: torch.fx.Node) -> bool:
    return value.dim() > 0 or output in node.users or node.op == "get_attr"


def _moved(value: Any, device: torch.device) -> Any:
    """A fake tensor of the CPU on ``device``; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty((), dtype=value.dtype, device=device)
