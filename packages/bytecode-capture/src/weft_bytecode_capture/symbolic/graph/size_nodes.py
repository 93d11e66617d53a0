"""Sizes that a region asks of its own tensors, computed outside it from those of the graph's inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..._torch.symbols import append_size
from ...unsupported import Unsupported
from ..protocol import Graph
from ..shapes import DataSymbolSource


def size_node(graph: Graph, expression: Any) -> torch.fx.Node:
    """A node of the outermost graph that computes ``expression``, a size.

    :raises Unsupported: there is a float in it.
    """
    symbols = sorted(expression.free_symbols, key=str)
    if any(graph.shapes.varying_float(symbol) for symbol in symbols):
        raise Unsupported("symbolic number in a region", str(expression))
    known = {symbol: _symbol_node(graph, symbol) for symbol in symbols}
    return append_size(expression, known, graph.outermost)


def _symbol_node(graph: Graph, symbol: Any) -> torch.fx.Node:
    """The node that reads a symbol where it comes from."""
    node = graph.number_node(symbol)
    if node is not None:
        return node
    source = graph.shapes.symbol_source(symbol)
    if isinstance(source, DataSymbolSource):
        tensor, quantity = source.tensor.node, "size"
    else:
        tensor, quantity = graph.input_node(source.source), source.quantity.value
    assert tensor is not None
    value = getattr(tensor.meta["example_value"], quantity)(source.dimension)
    arguments = (tensor, source.dimension)
    graph.number(value, lambda outermost: outermost.call_method(quantity, arguments), None)
    node = graph.number_node(symbol)
    assert node is not None
    return node
