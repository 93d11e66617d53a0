"""Symbolic sizes in a graph: where each symbol is read, and the nodes that compute with them.

All such nodes stand together behind the placeholders, so that every other node may use them; those of numbers
that depend on data stand behind the node that gives the last of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import (
    as_symbol,
    data_dependent_symbols,
    expression_nodes,
    expression_of,
    is_data_dependent,
    is_erased,
    python_function,
)
from .unsupported import Unsupported

aten = torch.ops.aten

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class SymbolPlace:
    """Where a symbol is read: ``inputs[index]`` itself, or its size or stride in ``dimension``."""

    index: int
    dimension: int | None = None
    is_stride: bool = False

    def read(self, inputs: Sequence[Any], computed: Sequence[Any] = ()) -> Any:
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
        self._last: torch.fx.Node | None = None  # of those behind the placeholders
        self._sizes: dict[Any, tuple[torch.fx.Node, int]] = {}  # where results give a symbol

    def node_of(self, number: Any) -> Any:
        """The node that computes a symbolic number, made if there is none; a plain number as it is.

        :raises Unsupported: the inputs do not determine it.
        """
        if not isinstance(number, SYMBOLIC_TYPES):
            return number
        expression = expression_of(number)
        if not expression.free_symbols:
            kinds: dict[type, type] = {
                torch.SymInt: int,
                torch.SymFloat: float,
                torch.SymBool: bool,
            }
            return kinds[type(number)](number)
        if self._nodes is None:
            self._nodes = self._find()
        node = self._nodes.get(expression)
        unknown = expression.free_symbols - self._nodes.keys()
        if node is None and not unknown <= self._sizes.keys():
            node = self._of_products(expression, self._nodes)
        if node is None:
            for symbol in unknown:
                self._read(symbol, self._nodes)
            node = self._nodes.get(expression)
        return self._make(expression, self._nodes) if node is None else node

    def _of_products(self, expression: Any, nodes: dict[Any, torch.fx.Node]) -> Any:
        """The node of an expression of a placeholder's size that is no symbol; None if there is none.

        A region that is given the rows of ``x.view(-1, 4)`` knows how many these are, and not the factors.
        """
        for placeholder in self._graph.find_nodes(op="placeholder"):
            value = placeholder.meta.get("val")
            for dimension, size in enumerate(
                value.shape if isinstance(value, torch.Tensor) else ()
            ):
                if not isinstance(size, torch.SymInt):
                    continue
                product = expression_of(size)
                whole, rest = as_symbol(product, expression)
                if not rest.free_symbols <= {*nodes, whole}:
                    continue
                if product not in nodes:
                    query = (placeholder, dimension)
                    nodes[product] = self._insert(aten.sym_size.int, query, placeholder)
                if rest != whole:
                    known = {symbol: nodes[symbol] for symbol in rest.free_symbols - {whole}}
                    nodes[expression] = self._made(rest, known | {whole: nodes[product]})
                return nodes[expression]
        return None

    def determines(self, number: Any) -> bool:
        """Whether the graph so far gives all that a symbolic number is computed from."""
        if self._nodes is None:
            self._nodes = self._find()
        return symbols_of(number) <= self._nodes.keys() | self._sizes.keys()

    def note_result(self, node: torch.fx.Node) -> None:
        """Note that ``node``, added at the graph's end, may give numbers that depend on data."""
        if self._nodes is not None:
            self._note_late(node, self._nodes)

    def _note_late(self, node: torch.fx.Node, nodes: dict[Any, torch.fx.Node]) -> None:
        """Note what a node behind those of the inputs' numbers gives: only what these do not give."""
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC_TYPES) and is_data_dependent(expression_of(value)):
            self._note(node, nodes)
        if not isinstance(value, torch.Tensor):
            return
        for dimension, size in enumerate(value.shape):
            if isinstance(size, SYMBOLIC_TYPES) and expression_of(size).is_Symbol:
                self._sizes.setdefault(expression_of(size), (node, dimension))

    def _read(self, symbol: Any, nodes: dict[Any, torch.fx.Node]) -> None:
        """Add the node that reads a symbol from a result that it is a size of."""
        if symbol not in self._sizes:
            raise Unsupported("number that the inputs do not determine", str(symbol))
        node, dimension = self._sizes[symbol]
        if is_erased(node):
            raise Unsupported("number that the inputs do not determine", str(symbol))
        nodes[symbol] = self._insert(aten.sym_size.int, (node, dimension), node)

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
            place = self._place([node for node in nodes if isinstance(node, torch.fx.Node)])
            with self._graph.inserting_before(place.next):
                node = self._graph.call_function(target, nodes)
            node.meta["val"] = number
            self._nodes[expression] = node
            if place is self._last:
                self._last = node
        return number

    def _place(self, operands: Sequence[torch.fx.Node]) -> torch.fx.Node:
        """The node behind which to compute with ``operands``: the graph's start where there is nothing."""
        before = [*operands] if self._last is None else [self._last, *operands]
        return max(before, default=self._graph._root)

    def _find(self) -> dict[Any, torch.fx.Node]:
        placeholders = self._graph.find_nodes(op="placeholder")
        self._last = placeholders[-1] if placeholders else None
        found: dict[Any, torch.fx.Node] = {}
        for node in placeholders:
            self._note(node, found)
        first = True
        for node in self._graph.nodes:
            if node.op == "placeholder":
                continue
            first = first and isinstance(node.meta.get("val"), SYMBOLIC_TYPES)
            if first:
                self._note(node, found)
                self._last = node
            else:
                self._note_late(node, found)
        for symbol, place in symbol_places(self._graph).items():
            if symbol in self._sizes and is_data_dependent(symbol):
                continue  # of forward's result: what reads it may not read the gradient of that
            if symbol not in found and place.dimension is not None:
                query = aten.sym_stride.int if place.is_stride else aten.sym_size.int
                source = placeholders[place.index]
                found[symbol] = self._insert(query, (source, place.dimension), source)
        return found

    @staticmethod
    def _note(node: torch.fx.Node, found: dict[Any, torch.fx.Node]) -> None:
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC_TYPES):
            found.setdefault(expression_of(value), node)

    def _insert(
        self, target: Callable[..., Any], args: tuple[Any, ...], source: torch.fx.Node
    ) -> torch.fx.Node:
        place = self._place([source])
        with self._graph.inserting_before(place.next):
            node = self._graph.call_function(target, args)
        self._evaluate(place, node)
        return node

    def _make(self, expression: Any, nodes: dict[Any, torch.fx.Node]) -> torch.fx.Node:
        known = {symbol: nodes[symbol] for symbol in expression.free_symbols}
        nodes[expression] = self._made(expression, known)
        return nodes[expression]

    def _made(self, expression: Any, known: dict[Any, torch.fx.Node]) -> torch.fx.Node:
        place = self._place([*known.values()])
        node = expression_nodes(expression, known, self._graph, place.next)
        self._evaluate(place, node)
        return node

    def _evaluate(self, place: torch.fx.Node, node: torch.fx.Node) -> None:
        """Compute the values of the new nodes behind ``place``, the last of which is ``node``."""
        new = place
        while new is not node:
            new = new.next
            args, kwargs = torch.fx.node.map_arg(
                (new.args, new.kwargs), lambda argument: argument.meta["val"]
            )
            assert callable(new.target)
            new.meta["val"] = new.target(*args, **kwargs)
        if place is self._last:
            self._last = node


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


def data_dependent_parts(numbers: Sequence[Any]) -> list[torch.SymInt]:
    """The integers that depend on data and that ``numbers`` are computed from, each once."""
    found = data_dependent_symbols(numbers)
    return [found[symbol] for symbol in sorted(found, key=str)]


def data_dependent_sizes(value: Any) -> set[Any]:
    """The symbols of numbers that depend on data in a node's value."""
    if isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape):
        return set()
    return {symbol for symbol in symbols_of(value) if is_data_dependent(symbol)}


@dataclass(frozen=True)
class _ResultPlace:
    """A number that the graph itself returns as output ``index``."""

    index: int

    def read(self, inputs: Sequence[Any], computed: Sequence[Any]) -> Any:
        return computed[self.index]


def number_reader(
    graph: torch.fx.Graph, number: Any, results: Mapping[Any, int]
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """A function from the values of the graph's placeholders, and of its outputs, to the number.

    ``results`` are the indices of the outputs that are numbers, by symbol.
    """
    if not isinstance(number, SYMBOLIC_TYPES):
        return lambda inputs, computed: number
    expression = expression_of(number)
    places: dict[Any, Any] = {s: _ResultPlace(index) for s, index in results.items()}
    places |= symbol_places(graph)
    symbols = sorted(expression.free_symbols, key=str)
    unknown = [symbol for symbol in symbols if symbol not in places]
    if unknown:
        raise Unsupported("number that the inputs do not determine", str(number))
    evaluate = python_function(expression, symbols)
    reads = tuple(places[symbol].read for symbol in symbols)
    return lambda inputs, computed: evaluate(*(read(inputs, computed) for read in reads))
