"""Graphs with tensors on several devices: loops run on one of them, operators compute what is elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.fx

from weft_loop_ir.ir import Buffer, ExternCall, Region, leaves_of
from weft_loop_ir.loop_graph import LoopNode, all_items, item_reads, item_writes
from weft_loop_ir.unsupported import Unsupported


def device_of_loops(graph: torch.fx.Graph) -> torch.device | None:
    """Where the loops of ``graph`` run: where most of its tensors are, the CPU only if all are there.

    None for a graph without tensors.
    """
    found = Counter(device for node in graph.nodes for device in _devices(node))
    others = Counter({device: n for device, n in found.items() if device.type != "cpu"})
    most = (others or found).most_common(1)
    return most[0][0] if most else None


def is_elsewhere(
    node: torch.fx.Node, device: torch.device | None, found: dict[torch.fx.Node, bool]
) -> bool:
    """Whether ``node`` reads or gives a tensor that is not on ``device``.

    ``found`` has which nodes give one, as far as they were asked for: each is read by several.
    """
    for asked in (node, *node.all_input_nodes):
        if asked not in found:
            found[asked] = any(own != device for own in _devices(asked))
        if found[asked]:
            return True
    return False


def check_loops(
    nodes: Iterable[LoopNode | ExternCall | Region],
    buffers: Mapping[str, Buffer],
    device: torch.device | None,
) -> None:
    """:raises Unsupported: a loop touches what is not on ``device``, as a buffer that a region carries."""
    for item in all_items(nodes):
        if isinstance(item, LoopNode):
            for name in (*item_reads(item), *item_writes(item)):
                if buffers[name].layout.device != device:
                    place = f"{name} on {buffers[name].layout.device} beside {device}"
                    raise Unsupported("loop on another device", place, "Move it there first.")


def _devices(node: torch.fx.Node) -> Iterator[torch.device]:
    values = leaves_of(node.meta.get("val"))
    return (torch.device(v.device) for v in values if isinstance(v, torch.Tensor))
