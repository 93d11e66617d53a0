"""Finds values of one graph in another: what forward has saved need not be computed again."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from weft_functionalize import InputDescriptor, InputKind, known_equal

from .joint_graph import JointGraph
from .passes import eliminate_dead_code
from .passes.common_subexpressions import hashable
from .passes.dead_code import is_impure


def reuse_values(
    joint: JointGraph, values: Sequence[torch.fx.Node], first_input: int | None = None
) -> tuple[JointGraph, tuple[int, ...]]:
    """Let ``joint`` take as inputs what it would compute as one of ``values``, nodes of another graph.

    Both graphs have the same first inputs.  New inputs are added behind the others, and the second result
    says which of the values they are; all have inputs already where ``first_input`` is the first of these.
    """
    graph = joint.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    inputs = placeholders[: len(joint.inputs)]
    numbers: _Numbers = {}
    found: dict[int, list[torch.fx.Node]] = {}
    for node, number in _numbered(graph, inputs, numbers).items():
        found.setdefault(number, []).append(node)
    known: dict[int, int] = {}
    for k, number in enumerate(_numbers_of(values, numbers)):
        known.setdefault(number, k)
    added: list[torch.fx.Node] = []
    reused = []
    for number, k in known.items():
        same = [n for n in found.get(number, ()) if n.users and _same_layout(n, values[k])]
        if not same:
            continue
        if first_input is None:
            given = _add_input(graph, values[k], [*inputs, *added][-1])
            added.append(given)
        else:
            given = inputs[first_input + k]
        for node in same:
            node.replace_all_uses_with(given, lambda user: user.op != "output")
        reused.append(k)
    eliminate_dead_code(graph)
    graph.lint()
    joint.graph_module.recompile()
    described = [
        InputDescriptor(InputKind.USER_INPUT, node.name, position=len(joint.inputs) + k)
        for k, node in enumerate(added)
    ]
    return replace(joint, inputs=(*joint.inputs, *described)), tuple(reused)


_Numbers = dict[Hashable, int]
"""Expressions have equal numbers if they are equal."""


def _numbers_of(values: Sequence[torch.fx.Node], numbers: _Numbers) -> list[int]:
    if not values:
        return []
    graph = values[0].graph
    numbered = _numbered(graph, graph.find_nodes(op="placeholder"), numbers)
    return [numbered[node] for node in values]


def _numbered(
    graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node], numbers: _Numbers
) -> Mapping[torch.fx.Node, int]:
    """The number of each node's expression of ``inputs``; it is not that of an input's value."""
    fresh = itertools.count(len(numbers))
    found: dict[torch.fx.Node, int] = {}
    position = {node: k for k, node in enumerate(inputs)}
    for node in graph.nodes:
        key: Hashable
        if node in position:
            key = ("input", position[node])
        elif node.op != "call_function" or is_impure(node):
            key = ("apart", node)
        elif node.target is torch.ops.aten.clone.default and not node.kwargs:
            found[node] = found[node.all_input_nodes[0]]
            continue
        else:
            args: Any = torch.fx.map_arg((node.args, node.kwargs), lambda a: _Number(found[a]))
            key = (node.target, hashable(args))
        try:
            number = numbers.get(key)
        except TypeError:  # an argument that is not hashable
            key = ("apart", node)
            number = None
        if number is None:
            number = numbers[key] = next(fresh)
        found[node] = number
    return found


class _Number(int):
    """A number that stands for an argument's expression, and is no argument itself."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _same_layout(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    mine, its = node.meta.get("val"), other.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(its, torch.Tensor):
        return False
    ours, theirs = (*mine.shape, *mine.stride()), (*its.shape, *its.stride())
    return (
        mine.dtype == its.dtype
        and mine.device == its.device
        and len(ours) == len(theirs)
        and all(map(known_equal, ours, theirs))
    )


def _add_input(graph: torch.fx.Graph, value: torch.fx.Node, last: torch.fx.Node) -> torch.fx.Node:
    with graph.inserting_after(last):
        node = graph.placeholder(f"reused_{value.name}")
    node.target = node.name
    node.meta["val"] = value.meta["val"]
    return node
