"""Sizes as nodes: of a region's tensors, computed outside it from inputs, and the inputs that give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..._torch.symbols import append_size, expression_of
from ...unsupported import Unsupported
from ..protocol import Graph
from ..shapes import DataSymbolSource


def size_node(graph: Graph, expression: Any) -> torch.fx.Node:
    """A node of the outermost graph that computes ``expression``, a size.

    :raises Unsupported: there is a float in it, or what only a region knows.
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
    if symbol not in graph.shapes.data and not graph.shapes.is_of_call(symbol):
        raise Unsupported("size that differs by iteration", str(symbol))
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


def needed_inputs(inputs: Sequence[torch.fx.Node]) -> list[bool]:
    """Whether the graph needs each input: a node reads it, or the sizes of a tensor are made of it alone.

    A tensor of ``2 * n`` rows that is drawn on entry does not say to every stage what ``n`` is.
    """
    sizes = {size for node in inputs if node.users for size in _sizes(node)}
    told = {size for size in sizes if size.is_Symbol}
    open_symbols = set().union(*(size.free_symbols for size in sizes)) - told
    return [bool(node.users) or not open_symbols.isdisjoint(_sizes(node)) for node in inputs]


def _sizes(node: torch.fx.Node) -> list[Any]:
    """The sizes of an input that vary, or the number that it is."""
    value = node.meta.get("example_value")
    numbers = value.shape if isinstance(value, torch.Tensor) else [value]
    return [expression_of(number) for number in numbers if isinstance(number, torch.SymInt)]
