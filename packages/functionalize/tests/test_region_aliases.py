"""What regions' results may be one with: searched for in graphs with more paths than can be gone through."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.fx
from weft_functionalize.tensor_ssa.alias_graph import build_alias_graph
from weft_functionalize.tensor_ssa.region_aliases import RegionAlias, SharedValues


def shared_values(count: int, exact: bool = False) -> tuple[list[torch.fx.Node], SharedValues]:
    """``count`` values of which each may be any other."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{k}") for k in range(count)]
    for node in nodes:
        node.meta["val"] = torch.empty(3)
    graph.output(tuple(nodes))
    pairs = [
        RegionAlias(right, left, True, exact) for left, right in itertools.combinations(nodes, 2)
    ]
    return nodes, SharedValues(graph, build_alias_graph(graph), pairs)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_values(count: int) -> None:
    nodes, shared = shared_values(count)
    ways = shared.ways(nodes[0], nodes[-1])
    assert ways is not None and len(ways) == {2: 1, 3: 2, 4: 5}[count]
    assert shared.seen(nodes[0], nodes[-1]) is True
    assert shared.others(nodes[0], count) == nodes[1:]


def test_exact_pairs_are_the_only_way() -> None:
    nodes, shared = shared_values(30, exact=True)
    assert shared.ways(nodes[0], nodes[-1]) == [[]]
    assert shared.seen(nodes[0], nodes[-1]) is True


def test_many_values_are_given_up() -> None:
    nodes, shared = shared_values(30)
    assert shared.ways(nodes[0], nodes[-1]) is None
    assert shared.seen(nodes[0], nodes[-1]) is None
    assert set(shared.others(nodes[0], 30)) == set(nodes[1:])
