"""Sizes that are given as tensors, and integers in tensors that sizes alone determine.

``torch.div(x.size(1), 16, rounding_mode="trunc")`` is a number of the call, as sizes are, though torch has
made a tensor of it: nothing depends on data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from ..._torch.symbols import unbacked_symbols
from ..models.containers.sequences import ListVariable, SequenceVariable, TupleVariable
from ..protocol import Evaluator, Graph
from ..variables.base import Keywords, Variable
from .storages import version_of

_SIZED_METHODS = frozenset(
    "view reshape expand repeat new_zeros new_ones new_empty new_full".split()
)
_SIZED_FUNCTIONS = frozenset({torch.zeros, torch.ones, torch.empty, torch.full, torch.reshape})
_SIZED_FUNCTIONS |= {torch.arange, torch.rand, torch.randn}

_SIZES: dict[Any, tuple[int, str]] = {
    torch.nn.functional.interpolate: (1, "size"),
    torch.nn.functional.pad: (1, "pad"),
}
"""Functions of torch that take tensors among the sizes in an argument, by position and name."""


def number_of_sizes(evaluator: Evaluator, tensor: Variable) -> Variable | None:
    """The integer that a tensor without dimensions holds, if sizes alone determine it; else None."""
    graph, node = evaluator.graph, tensor.node
    if node is None or graph.is_in_region or graph.transforms.active:
        return None
    value = _value(graph, node)
    return None if value is None else graph.number(value, lambda _: None, None)


def with_sizes_read(
    evaluator: Evaluator, target: Any, arguments: Sequence[Variable], keywords: Keywords
) -> tuple[Sequence[Variable], Keywords]:
    """The arguments of a call, tensors among its sizes as the numbers that they hold."""
    if target in _SIZES:
        return _read(evaluator, _SIZES[target], arguments, keywords)
    if target not in _SIZED_METHODS and target not in _SIZED_FUNCTIONS:
        return arguments, keywords
    kept = 1 if isinstance(target, str) else 0
    replaced = [_with_number(evaluator, argument) for argument in arguments[kept:]]
    named = {name: _with_number(evaluator, argument) for name, argument in keywords.items()}
    return [*arguments[:kept], *replaced], named


def _read(
    evaluator: Evaluator,
    place: tuple[int, str],
    arguments: Sequence[Variable],
    keywords: Keywords,
) -> tuple[Sequence[Variable], Keywords]:
    position, name = place
    given = arguments[position] if position < len(arguments) else keywords.get(name)
    if not isinstance(given, SequenceVariable):
        return arguments, keywords
    items = list(given.iterate(evaluator))
    read = [_size_in_tensor(evaluator, item) for item in items]
    if read == items:
        return arguments, keywords
    if position < len(arguments):
        return [*arguments[:position], TupleVariable(read), *arguments[position + 1 :]], keywords
    return arguments, {**keywords, name: TupleVariable(read)}


def _size_in_tensor(evaluator: Evaluator, item: Variable) -> Variable:
    fake = getattr(item, "fake", None)
    if not isinstance(fake, torch.Tensor) or fake.is_floating_point() or fake.dtype is torch.bool:
        return item
    return item.call_method(evaluator, "item", [], {})


def _with_number(evaluator: Evaluator, argument: Variable) -> Variable:
    if isinstance(argument, (TupleVariable, ListVariable)):
        items = argument.items(evaluator)
        numbers = [_with_number(evaluator, item) for item in items]
        return argument if numbers == list(items) else TupleVariable(numbers)
    fake = getattr(argument, "fake", None)
    if not isinstance(fake, torch.Tensor) or fake.dim():
        return argument
    return number_of_sizes(evaluator, argument) or argument


def _value(graph: Graph, operand: Any) -> int | torch.SymInt | None:
    if type(operand) is int:
        return operand
    if not isinstance(operand, torch.fx.Node):
        return None
    example = operand.meta.get("example_value")
    if isinstance(example, torch.SymInt):
        return None if unbacked_symbols(example) else example
    if not isinstance(example, torch.Tensor) or example.dtype is not torch.int64:
        return None
    if example.dim() or version_of(example):
        return None
    if operand.target is operator.getitem and operand.args[1] == 0:
        packed: Any = operand.args[0]
        batch = packed.meta.get("batch")  # beside the sizes of a packed sequence's batches
        return None if batch is None or unbacked_symbols(batch) else batch
    compute = _rule(operand.target, operand.kwargs)
    if compute is None or len(operand.args) != 2:
        return None
    left, right = (_value(graph, argument) for argument in operand.args)
    return None if left is None or right is None else compute(graph, left, right)


Rule = Callable[[Graph, Any, Any], Any]


def _floored(_: Graph, left: Any, right: Any) -> Any:
    return left // right if type(right) is int and right else None


def _truncated(graph: Graph, left: Any, right: Any) -> Any:
    """The same where nothing is negative."""
    positive = left >= 0
    if isinstance(positive, torch.SymBool):
        positive = graph.shapes.decided(positive)
    return left // right if positive and type(right) is int and right > 0 else None


def _plain(compute: Callable[[Any, Any], Any]) -> Rule:
    return lambda _, left, right: compute(left, right)


_DIVISIONS: dict[Any, Rule] = {"floor": _floored, "trunc": _truncated}
_RULES: dict[Any, Rule] = {
    **dict.fromkeys((operator.add, torch.add), _plain(operator.add)),
    **dict.fromkeys((operator.sub, torch.sub), _plain(operator.sub)),
    **dict.fromkeys((operator.mul, torch.mul), _plain(operator.mul)),
    **dict.fromkeys((operator.floordiv, torch.floor_divide), _floored),
}


def _rule(target: Any, keywords: Mapping[str, Any]) -> Rule | None:
    if target is torch.div and keywords.keys() == {"rounding_mode"}:
        return _DIVISIONS.get(keywords["rounding_mode"])
    return None if keywords else _RULES.get(target)
