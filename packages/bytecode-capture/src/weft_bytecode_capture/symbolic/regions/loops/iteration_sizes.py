"""Sizes that differ by the iteration of a loop that is kept, as those of ``x[:i]`` and of ``x[mask]``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx

from ...._torch.symbols import append_size, expression_of, extremes, unbacked_symbols
from ....unsupported import Unsupported
from ...graph.size_nodes import size_node
from ...models.numbers.symbolic_integer import (
    SymbolicIntegerVariable,
    decided_or_none,
    integer_result,
)
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable


def differ_by_iteration(evaluator: Frame, numbers: Iterable[Any]) -> bool:
    """Whether the counters of loops alone give what is not known of ``numbers``."""
    symbols = {symbol for number in numbers for symbol in unbacked_symbols(number)}
    return bool(symbols) and symbols <= evaluator.graph.counters.keys()


def ends_hold(evaluator: Frame, value: torch.SymInt, holds: Callable[[Any, Any], Any]) -> bool:
    """Whether a condition holds of an integer's least and greatest value; guarded where sizes decide that."""
    counters = evaluator.graph.counters.items()
    ends = extremes(value, {symbol: (c.least, c.greatest) for symbol, c in counters})
    return ends is not None and decided_or_none(holds(*ends)) is True


def check_size(evaluator: Frame, tensor: torch.Tensor) -> None:
    """Refuse a tensor that leaves an iteration where its size differs by that."""
    if differ_by_iteration(evaluator, tensor.shape):
        raise Unsupported("tensor whose size differs by iteration", str(tuple(tensor.shape)))


def is_known_inside(evaluator: Frame, number: Any) -> bool:
    """Whether a size depends on data in the region at hand, of which nothing outside knows it."""
    graph = evaluator.graph
    unknown = unbacked_symbols(number) - graph.counters.keys()
    return graph.is_in_region and any(symbol not in graph.shapes.data for symbol in unknown)


def size_known_inside(
    evaluator: Frame,
    tensor: torch.fx.Node,
    query: tuple[Any, ...],
    keywords: Mapping[str, Any],
    size: torch.SymInt,
) -> Variable:
    """Such a size as a number in a tensor: what a method of ``tensor`` gives, by name and arguments."""
    from ...models.numbers.tensor_number import TensorNumberVariable
    from ...models.torch.tensor import tensor_of

    name, *arguments = query
    node = evaluator.graph.graph.call_method(name, (tensor, *arguments), dict(keywords))
    node.meta["example_value"] = size
    given = SymbolicIntegerVariable(node, size)
    made = tensor_of(evaluator, torch.full, (), given, dtype=torch.int64)
    number = TensorNumberVariable(made, int, True)
    number.known_as = size
    return number


def size_variable(evaluator: Frame, size: torch.SymInt) -> Variable:
    """A size that differs by iteration, computed from the loops' counters where the graph stands."""
    expression = expression_of(size)
    counters = evaluator.graph.counters
    if any(counters[symbol].is_size for symbol in unbacked_symbols(size)):
        known = {
            s: counters[s].variable.node if s in counters else size_node(evaluator.graph, s)
            for s in expression.free_symbols
        }
        return SymbolicIntegerVariable(append_size(expression, known, evaluator.graph.graph), size)
    found: Variable = ConstantVariable(0)
    for symbol, counter in evaluator.graph.counters.items():
        coefficient = expression.coeff(symbol)
        if coefficient == 0:
            continue
        if not coefficient.is_Integer:
            raise Unsupported("size that differs by iteration", str(size))
        part = _product(evaluator, counter.variable, int(coefficient))
        found = evaluator.binary_operation("add", part, found)
        expression = expression - coefficient * symbol
    if not expression.is_Integer:
        raise Unsupported("size that differs by iteration", str(size))
    return evaluator.binary_operation("add", found, ConstantVariable(int(expression)))


def _product(evaluator: Frame, counter: SymbolicIntegerVariable, coefficient: int) -> Variable:
    value = counter.value * coefficient
    return integer_result(evaluator, operator.mul, (counter.node, coefficient), value)
