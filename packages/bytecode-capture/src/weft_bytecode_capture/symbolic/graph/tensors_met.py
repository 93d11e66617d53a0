"""Whether a graph is of use: numbers that Python draws are tensors in it, and nothing else may be."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx

_NUMBER = "number_of_python"


def mark_number(node: torch.fx.Node) -> None:
    """Say of a graph's input that Python makes it of numbers, and no tensor is behind it."""
    node.meta[_NUMBER] = True


_KEEP = frozenset(("detach", "clone"))
"""What the graph does with a number that it is given, for Python to have it behind the graph."""


def meets_tensors(nodes: Iterable[torch.fx.Node]) -> bool:
    """Whether anything but numbers has come into a graph: a tensor that is made of numbers has."""
    of_numbers: set[torch.fx.Node] = set()
    for node in nodes:
        inputs = node.all_input_nodes
        is_computed = bool(inputs) and of_numbers.issuperset(inputs)
        if _NUMBER in node.meta or (is_computed and node.target in _KEEP):
            of_numbers.add(node)
        elif isinstance(node.meta.get("example_value"), torch.Tensor):
            return True
    return False
