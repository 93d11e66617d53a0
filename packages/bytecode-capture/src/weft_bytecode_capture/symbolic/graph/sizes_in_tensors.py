"""Sizes that are given as tensors, and integers in tensors that sizes alone determine.

``torch.div(x.size(1), 16, rounding_mode="trunc")`` is a number of the call, as sizes are, though torch has
made a tensor of it: nothing depends on data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.fx

from ..._torch.symbols import unbacked_symbols
from ..models.containers.sequences import ListVariable, SequenceVariable, TupleVariable
from ..protocol import Evaluator, Graph
from ..variables.base import Keywords, Variable
from ..variables.constant import ConstantVariable
from .known_contents import known_contents
from .storages import Tensor, version_of

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
    if target is torch.arange:
        replaced, named = _with_whole_numbers(replaced, named)
    return [*arguments[:kept], *replaced], named


def _with_whole_numbers(
    bounds: list[Variable], keywords: dict[str, Variable]
) -> tuple[list[Variable], dict[str, Variable]]:
    """Bounds of ``arange`` that are whole floats, beside sizes that vary, as integers."""
    is_float = [bound.is_constant() and type(bound.as_constant()) is float for bound in bounds]
    is_known = [bound.is_constant() for bound in bounds]
    floats = [b.as_constant() for b, chosen in zip(bounds, is_float, strict=True) if chosen]
    if not floats or all(is_known) or not all(map(float.is_integer, floats)):
        return bounds, keywords
    bounds = [
        ConstantVariable(int(bound.as_constant())) if chosen else bound
        for bound, chosen in zip(bounds, is_float, strict=True)
    ]
    default: Variable = ConstantVariable(torch.get_default_dtype())
    return bounds, {"dtype": default} | keywords


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
    number = number_of_sizes(evaluator, argument)
    if number is None and fake.dtype is torch.int64:
        contents = known_contents(evaluator, cast("Tensor", argument))
        number = None if contents is None else ConstantVariable(int(contents))
    return number or argument


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
    if operand.target is operator.getitem and type(operand.args[1]) is int:
        packed: Any = operand.args[0]
        batch = packed.meta.get("batch")  # beside the sizes of a packed sequence's batches
        if batch is not None:
            known = operand.args[1] == 0 and not unbacked_symbols(batch)
            return batch if known else None
        index = operand.args[1]
        size = _length(packed)
        if size is None:
            return None
        found: int | torch.SymInt | None = _element(
            graph, packed, index + size if index < 0 else index
        )
        return found
    compute = _rule(operand.target, operand.kwargs)
    if compute is None or len(operand.args) != 2:
        return None
    left, right = (_value(graph, argument) for argument in operand.args)
    return None if left is None or right is None else compute(graph, left, right)


def _length(node: Any) -> int | torch.SymInt | None:
    """How many integers a tensor of one dimension has, if no data decides it."""
    example = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    if not isinstance(example, torch.Tensor) or example.dtype is not torch.int64:
        return None
    if example.dim() != 1 or version_of(example) or unbacked_symbols(example.shape[0]):
        return None
    return example.shape[0]


def _element(graph: Graph, node: torch.fx.Node, index: Any) -> Any:
    """Number ``index``, not below zero, of positions that ``arange`` gives, and pieces of these."""
    size = _length(node)
    if size is None or not _is_below(graph, index, size):
        return None
    if node.target is torch.arange:
        bounds = [_value(graph, argument) for argument in node.args]
        if not bounds or any(bound is None for bound in bounds):
            return None
        start = bounds[0] if len(bounds) > 1 else 0
        return start + index * (bounds[2] if len(bounds) > 2 else 1)
    if node.target is operator.getitem and isinstance(node.args[1], slice):
        return _element_of_slice(graph, node.args[0], node.args[1], index)
    if node.target is torch.cat and len(node.args) == 1 and not node.kwargs:
        return _element_of_parts(graph, node.args[0], index)
    if node.target is torch.cat and node.args[1:] == (0,):
        return _element_of_parts(graph, node.args[0], index)
    listed = node.args[1:] if node.target == "new_tensor" else node.args
    if node.target not in ("new_tensor", torch.tensor) or type(index) is not int or not listed:
        return None
    numbers: Any = listed[0]
    number = numbers[index] if isinstance(numbers, (list, tuple)) else None
    return number if type(number) is int else None


def _element_of_slice(graph: Graph, base: Any, piece: slice, index: Any) -> Any:
    start, step = (
        default if part is None else part for part, default in ((piece.start, 0), (piece.step, 1))
    )
    if type(start) is not int or type(step) is not int or start < 0 or step < 1:
        return None
    return _element(graph, base, start + index * step)


def _element_of_parts(graph: Graph, parts: Any, index: Any) -> Any:
    for part in parts:
        size = _length(part)
        if size is None:
            return None
        if _is_below(graph, index, size):
            return _element(graph, part, index)
        index = index - size
    return None


def _is_below(graph: Graph, index: Any, size: Any) -> bool:
    below = index < size
    return bool(graph.shapes.decided(below) if isinstance(below, torch.SymBool) else below)


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
