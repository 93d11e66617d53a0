"""Symbolic sizes in a graph: where each symbol is read, and the nodes that compute with them.

All such nodes stand together behind the placeholders, so that every other node may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import expression_nodes, expression_of, python_function
from .unsupported import Unsupported

aten = torch.ops.aten

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class SymbolPlace:
    """Where a symbol is read: ``inputs[index]`` itself, or its size or stride in ``dimension``."""

    index: int
    dimension: int | None = None
    is_stride: bool = False

    def read(self, inputs: Sequence[Any]) -> Any:
        """The number, from the values of the graph's placeholders."""
        value = inputs[self.index]
        if self.dimension is None:
            return value
        return value.stride(self.dimension) if self.is_stride else value.size(self.dimension)


def symbol_places(graph: torch.fx.Graph) -> dict[Any, SymbolPlace]:
    """The first place of each symbol that is a size, a stride or a number among the graph's inputs."""
    return symbols_given_by([node.meta.get("val") for node in graph.find_nodes(op="placeholder")])


def symbols_given_by(values: Sequence[Any]) -> dict[Any, SymbolPlace]:
    """The first place of each symbol that is a size, a stride or a number among ``values``."""
    places: dict[Any, SymbolPlace] = {}

    def note(number: Any, place: SymbolPlace) -> None:
        if isinstance(number, SYMBOLIC_TYPES):
            expression = expression_of(number)
            if expression.is_Symbol:
                places.setdefault(expression, place)

    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            note(value, SymbolPlace(index))
            continue
        for dimension, size in enumerate(value.shape):
            note(size, SymbolPlace(index, dimension))
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for dimension, stride in enumerate(value.stride()):
                note(stride, SymbolPlace(index, dimension, True))
    return places


def symbols_of(value: Any) -> set[Any]:
    """The symbols in a node's value: in a tensor's sizes, strides and offset, or in a number."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return symbols_of((*value.shape, *strides, value.storage_offset()))
    if isinstance(value, (tuple, list)):
        return set().union(*map(symbols_of, value))
    return set(expression_of(value).free_symbols) if isinstance(value, SYMBOLIC_TYPES) else set()


def is_float_symbol(value: Any) -> bool:
    """Whether a value is a symbolic float that is a symbol, not an expression of others."""
    return isinstance(value, torch.SymFloat) and bool(expression_of(value).is_Symbol)


class NumberNodes:
    """The nodes of symbolic numbers in ``graph``; placeholders and nodes there already are found again."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[Any, torch.fx.Node] | None = None
        self._last: torch.fx.Node | None = None

    def node_of(self, number: Any) -> Any:
        """The node that computes a symbolic number, made if there is none; a plain number as it is.

        :raises Unsupported: the inputs do not determine it.
        """
        if not isinstance(number, SYMBOLIC_TYPES):
            return number
        expression = expression_of(number)
        if expression.is_number:
            kinds: dict[type, type] = {
                torch.SymInt: int,
                torch.SymFloat: float,
                torch.SymBool: bool,
            }
            return kinds[type(number)](number)
        if self._nodes is None:
            self._nodes = self._find()
        node = self._nodes.get(expression)
        if node is None:
            unknown = expression.free_symbols - self._nodes.keys()
            if unknown:
                raise Unsupported("number that the inputs do not determine", str(number))
            node = self._make(expression, self._nodes)
        return node

    def add(self, node: torch.fx.Node) -> None:
        """Note a placeholder of a number, added after the others."""
        if self._nodes is None:
            return
        self._note(node, self._nodes)
        if self._last is None or self._last.op == "placeholder":
            self._last = node

    def known(self) -> dict[Any, torch.fx.Node]:
        """The node of each expression that has one; symbols that a tensor's sizes give have got one."""
        if self._nodes is None:
            self._nodes = self._find()
        return self._nodes

    def define(self, number: Any, target: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Add the node of a float that ``target`` computes from numbers, and that is a symbol of its own.

        Such a symbol, unlike an expression of others, stands for floating-point arithmetic as it is written.
        """
        expression = expression_of(number)
        nodes = with_numbers(args, self.node_of)
        if self._nodes is None:
            self._nodes = self._find()
        if expression not in self._nodes:
            assert self._last is not None
            with self._graph.inserting_before(self._last.next):
                node = self._graph.call_function(target, nodes)
            node.meta["val"] = number
            self._nodes[expression] = self._last = node
        return number

    def _find(self) -> dict[Any, torch.fx.Node]:
        placeholders = self._graph.find_nodes(op="placeholder")
        self._last = placeholders[-1] if placeholders else None
        found: dict[Any, torch.fx.Node] = {}
        for node in placeholders:
            self._note(node, found)
        for node in self._graph.nodes:
            if node.op == "placeholder":
                continue
            if not isinstance(node.meta.get("val"), SYMBOLIC_TYPES):
                break
            self._note(node, found)
            self._last = node
        for symbol, place in symbol_places(self._graph).items():
            if symbol not in found and place.dimension is not None:
                query = aten.sym_stride.int if place.is_stride else aten.sym_size.int
                node = self._insert(query, (placeholders[place.index], place.dimension))
                found[symbol] = node
        return found

    @staticmethod
    def _note(node: torch.fx.Node, found: dict[Any, torch.fx.Node]) -> None:
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC_TYPES):
            found.setdefault(expression_of(value), node)

    def _insert(self, target: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.Node:
        assert self._last is not None
        with self._graph.inserting_before(self._last.next):
            node = self._graph.call_function(target, args)
        self._evaluate_until(node)
        return node

    def _make(self, expression: Any, nodes: dict[Any, torch.fx.Node]) -> torch.fx.Node:
        assert self._last is not None
        known = {symbol: nodes[symbol] for symbol in expression.free_symbols}
        node = expression_nodes(expression, known, self._graph, self._last.next)
        self._evaluate_until(node)
        nodes[expression] = node
        return node

    def _evaluate_until(self, node: torch.fx.Node) -> None:
        """Compute the values of the nodes behind the last one known, up to ``node``."""
        while self._last is not node:
            assert self._last is not None
            self._last = self._last.next
            args, kwargs = torch.fx.node.map_arg(
                (self._last.args, self._last.kwargs), lambda argument: argument.meta["val"]
            )
            assert callable(self._last.target)
            self._last.meta["val"] = self._last.target(*args, **kwargs)


def with_numbers(value: Any, number: Callable[[Any], Any]) -> Any:
    """Arguments of an operator with ``number`` applied to the symbolic numbers in them."""
    if isinstance(value, SYMBOLIC_TYPES):
        return number(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = (with_numbers(item, number) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, torch.Size):
        return [with_numbers(item, number) for item in value]
    if isinstance(value, dict):
        return {key: with_numbers(item, number) for key, item in value.items()}
    return value


def number_reader(graph: torch.fx.Graph, number: Any) -> Callable[[Sequence[Any]], Any]:
    """A function from the values of the graph's placeholders to the number."""
    if not isinstance(number, SYMBOLIC_TYPES):
        return lambda inputs: number
    expression = expression_of(number)
    places = symbol_places(graph)
    symbols = sorted(expression.free_symbols, key=str)
    unknown = [symbol for symbol in symbols if symbol not in places]
    if unknown:
        raise Unsupported("number that the inputs do not determine", str(number))
    evaluate = python_function(expression, symbols)
    reads = tuple(places[symbol].read for symbol in symbols)
    return lambda inputs: evaluate(*(read(inputs) for read in reads))
