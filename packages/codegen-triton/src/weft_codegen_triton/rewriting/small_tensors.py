"""Small tensors on the CPU, of which a graph on a GPU takes parts, as a sampler's table of noise levels.

What the graph makes of them element by element is made on the GPU, of one copy::

    level = levels[step].to("cuda")           there = levels.to("cuda")
    h = h * (1 - levels[step]).sqrt()         h = h * (1 - there[step]).sqrt()

So a loop that takes another element in each iteration sends nothing in it.  What is large, drawn or
returned, and what other operators compute, stays with all that it is made of and that is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from weft_loop_ir.rewriting.fakes import call_before, is_static, is_view

from weft_codegen_triton._torch import OpOverload, tree_leaves
from weft_codegen_triton.rewriting.scalars import gives_on_cpu, is_on_cpu, regions
from weft_codegen_triton.rewriting.sent_tensors import takes_from_cpu

aten = torch.ops.aten

Node = torch.fx.Node

MAX_BYTES = 1 << 16
"""Of a small tensor: its copy takes about as long as that of a number."""

_OF_NUMBERS = frozenset((aten.full.default, aten.scalar_tensor.default))
_RAISING = frozenset(("floor_divide", "remainder", "fmod", "div", "pow"))
"""What the CPU refuses for some integers, and a GPU doesn't."""


def move_small_tensors(graph: torch.fx.Graph) -> None:
    """Compute on the GPU what ``graph`` and its regions make of small tensors on the CPU.

    Not where there are several GPUs.
    """
    devices = {
        value.device
        for node in graph.nodes
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and not is_on_cpu(value)
    }
    if len(devices) != 1:
        return
    (device,) = devices
    for part in (graph, *regions(graph)):
        for together in _connected(part):
            if all(_is_movable(node, device) for node in together):
                _move(together, device, part is graph)


def _connected(graph: torch.fx.Graph) -> Iterator[list[Node]]:
    """The nodes that give something on the CPU, in order: those together that are made of each other."""
    there = {node: None for node in graph.nodes if gives_on_cpu(node)}
    while there:
        found = {next(iter(there))}
        pending = [*found]
        while pending:
            node = pending.pop()
            near = {*node.all_input_nodes, *node.users} & there.keys()
            pending += near - found
            found |= near
        yield [node for node in there if node in found]
        for node in found:
            del there[node]


def _is_movable(node: Node, device: torch.device) -> bool:
    value: Any = node.meta["val"]
    if not is_static(node) or value.numel() * value.itemsize > MAX_BYTES:
        return False
    if node.op != "placeholder" and not _is_simple(node):
        return False
    return all(gives_on_cpu(user) or _is_sent_to(user, node, device) for user in node.users)


def _is_simple(node: Node) -> bool:
    """Whether ``node`` computes element by element, takes a part, or makes a number."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    name = target._schema.name.removeprefix("aten::")
    if name in _RAISING and not node.meta["val"].is_floating_point():
        return False
    is_simple = torch.Tag.pointwise in target.tags or target is aten._to_copy.default
    return is_simple or is_view(node) or target in _OF_NUMBERS


def _is_sent_to(user: Node, node: Node, device: torch.device) -> bool:
    value = user.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device != device:
        return False
    return user.target is aten._to_copy.default or takes_from_cpu(user, node)


def _move(nodes: list[Node], device: torch.device, is_whole: bool) -> None:
    """Have ``nodes`` be on ``device``; with ``is_whole`` numbers that are given are moved by the program."""
    for node in nodes:
        value = node.meta["val"]
        if not node.users:
            continue
        if node.op == "placeholder" and (value.dim() > 0 or not is_whole):
            users = [*node.users]
            first = next(n for n in node.graph.nodes if n.op != "placeholder")
            copy = call_before(first, aten._to_copy.default, node, device=device)
            for user in users:
                user.replace_input_with(node, copy)
            continue
        with value.fake_mode:
            node.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", device)
