"""Tensors without dimensions on the CPU, which operators on a GPU take beside the GPU's own.

They are moved: those that the graph makes are made on the GPU, and those that it is given are copied there by
the program, before each call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


def move_scalars(graph: torch.fx.Graph) -> None:
    """Put the CPU tensors of ``graph`` on its GPU, if all are without dimensions and none is returned."""
    tensors = {node: value for node in graph.nodes if (value := _tensor(node)) is not None}
    devices = {value.device for value in tensors.values() if value.device.type != "cpu"}
    scalars = [node for node, value in tensors.items() if value.device.type == "cpu"]
    (output,) = graph.find_nodes(op="output")
    if len(devices) != 1 or any(_stays(node, output) for node in scalars):
        return
    (device,) = devices
    for node in scalars:
        node.meta["val"] = _moved(node.meta["val"], device)
        if "device" in node.kwargs:
            node.update_kwarg("device", device)


def _tensor(node: torch.fx.Node) -> torch.Tensor | None:
    value: Any = node.meta.get("val") if node.op != "output" else None
    return value if isinstance(value, torch.Tensor) else None


def _stays(node: torch.fx.Node, output: torch.fx.Node) -> bool:
    return node.meta["val"].dim() > 0 or output in node.users or node.op == "get_attr"


def _moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty((), dtype=value.dtype, device=device)
