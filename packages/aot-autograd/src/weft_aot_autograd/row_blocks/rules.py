"""What operators do row by row: a table of how operands are taken and how a block runs an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.fx

from .._torch import OpOverload
from ..partition.operator_classes import OperatorClass, classify
from .rows import (
    MATMULS,
    SQUEEZES,
    VIEWS,
    ZEROS,
    Demand,
    Rows,
    Size,
    Whole,
    broadcast_demand,
    is_tensor,
    row_dims,
    same_sizes,
    shape_of,
    trail,
)

aten = torch.ops.aten
Node = torch.fx.Node

Values = Callable[[Node], torch.Tensor]
"""What a block has in the place of an operand."""


class Rule(Protocol):
    """How an operator works row by row.

    Of a value whose rows are its first dimensions a block has one whose first dimension is the block's rows.
    """

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        """How many dimensions are rows in the result, where ``dims`` of ``operand`` are; None: none are."""

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        """How operands are taken for a result with ``dims`` dimensions of rows; None: it can't be had so."""

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        """The result of a block of ``count`` rows."""


def rule_of(node: Node) -> Rule | None:
    """The rule of a node's operator."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not is_tensor(node):
        return None
    found = _RULES.get(node.target)
    if found is None and classify(node) is OperatorClass.POINTWISE:
        is_plain = torch.Tag.pointwise in node.target.tags
        return POINTWISE if is_plain else None
    return found


def is_cheap(node: Node) -> bool:
    """Whether computing the node anew for each block costs little, others reading it elsewhere."""
    return node.target not in MATMULS


def _filled(node: Node, values: Values, **changed: Any) -> torch.Tensor:
    """The node's operator on a block's values; ``changed`` gives other arguments by position (``_1``)."""
    args = [
        changed.get(f"_{k}", torch.fx.map_arg(argument, values))
        for k, argument in enumerate(node.args)
    ]
    kwargs = torch.fx.map_arg(dict(node.kwargs), values)
    assert isinstance(node.target, OpOverload)
    result: torch.Tensor = node.target(*args, **kwargs)
    return result


class _Pointwise:
    """One element from each operand's."""

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        result, given = shape_of(node), shape_of(operand)
        fits = len(result) == len(given) and same_sizes(result[:dims], given[:dims])
        return dims if fits else None

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        found: dict[Node, Demand] = {}
        for operand in filter(is_tensor, node.all_input_nodes):
            demand = broadcast_demand(shape_of(operand), shape_of(node), dims)
            if demand is None:
                return None
            found[operand] = demand
        return found

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        result = _filled(node, values)
        expected = (count, *trail(shape_of(node), dims))
        return result if same_sizes(result.shape, expected) else result.expand(expected)


class _Expanded(_Pointwise):
    """Elements repeated along dimensions."""

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        (operand,) = filter(is_tensor, node.all_input_nodes)
        return values(operand).expand((count, *trail(shape_of(node), dims)))


class _View:
    """The same elements in another shape."""

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        return row_dims(shape_of(node), rows)

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        (operand,) = filter(is_tensor, node.all_input_nodes)
        given = row_dims(shape_of(operand), rows)
        return None if given is None else {operand: Rows(given)}

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        (operand,) = filter(is_tensor, node.all_input_nodes)
        return values(operand).reshape((count, *trail(shape_of(node), dims)))


class _AlongDims:
    """An operator along dimensions, which its argument at ``position`` says: rows are none of them.

    All its tensors have the same rows.
    """

    def __init__(self, position: int = 1) -> None:
        self.position = position

    def _dims(self, node: Node) -> list[int] | None:
        given = node.args[self.position] if len(node.args) > self.position else None
        listed = [given] if isinstance(given, int) else given
        if not isinstance(listed, list | tuple) or not listed:
            return None
        rank = len(shape_of(_first(node)))
        return [int(d) % rank for d in listed]

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        along = self._dims(node)
        if along is None or min(along) < dims:
            return None
        result = shape_of(node)[:dims]
        fits = all(
            same_sizes(shape_of(n)[:dims], result) for n in filter(is_tensor, node.all_input_nodes)
        )
        return dims if fits else None

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        operands = list(filter(is_tensor, node.all_input_nodes))
        if self.result_dims(node, operands[0], dims, rows) is None:
            return None
        return {operand: Rows(dims) for operand in operands}

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        along = self._dims(node)
        assert along is not None
        shifted: Any = [d - dims + 1 for d in along]
        if isinstance(node.args[self.position], int):
            (shifted,) = shifted
        return _filled(node, values, **{f"_{self.position}": shifted})


class _Filled:
    """One value everywhere."""

    def __init__(self, position: int | None = None, value: float = 0) -> None:
        self.position, self.value = position, value

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        return None  # it is of no operand

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        value = self._value(node)
        return {} if isinstance(value, int | float) else None

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        like, value = node.meta["val"], self._value(node)
        size = (count, *trail(shape_of(node), dims))
        return torch.full(size, value, dtype=like.dtype, device=like.device)

    def _value(self, node: Node) -> Any:
        return self.value if self.position is None else node.args[self.position]


class _Matmul:
    """Rows of the first matrix times the second; ``biased``: added to what comes before both."""

    def __init__(self, biased: bool) -> None:
        self.biased = biased

    def result_dims(self, node: Node, operand: Node, dims: int, rows: Size) -> int | None:
        left, right = node.args[-2:]
        return 1 if operand is left and operand is not right and dims == 1 else None

    def demands(self, node: Node, dims: int, rows: Size) -> dict[Node, Demand] | None:
        left, right = node.args[-2:]
        assert isinstance(left, Node) and isinstance(right, Node)
        if dims != 1 or left is right:
            return None
        found: dict[Node, Demand] = {left: Rows(1), right: Whole()}
        if self.biased:
            bias = node.args[0]
            assert isinstance(bias, Node)
            demand = broadcast_demand(shape_of(bias), shape_of(node), 1)
            if demand is None or bias in found:
                return None
            found[bias] = demand
        return found

    def run(self, node: Node, dims: int, count: Size, values: Values) -> torch.Tensor:
        return _filled(node, values)


def _first(node: Node) -> Node:
    first = node.args[0]
    assert isinstance(first, Node)
    return first


POINTWISE = _Pointwise()
_VIEW, _EXPANDED, _ALONG = _View(), _Expanded(), _AlongDims()

_RULES: Mapping[Any, Rule] = {
    aten.mm.default: _Matmul(biased=False),
    aten.addmm.default: _Matmul(biased=True),
    aten.clone.default: POINTWISE,
    aten._to_copy.default: POINTWISE,
    aten.expand.default: _EXPANDED,
    **dict.fromkeys(VIEWS | SQUEEZES, _VIEW),
    **dict.fromkeys(
        (
            *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default),
            *(aten.logsumexp.default, aten._log_softmax.default, aten._softmax.default),
            *(aten.var.correction, aten.any.dim, aten.all.dim, aten.argmax.default),
            *(aten.gather.default, aten.scatter_add.default, aten.scatter.src),
            *(aten.scatter.value, aten.select.int, aten.slice.Tensor),
        ),
        _ALONG,
    ),
    **dict.fromkeys(ZEROS, _Filled()),
    **dict.fromkeys((aten.ones.default, aten.ones_like.default), _Filled(value=1)),
    **dict.fromkeys((aten.full.default, aten.full_like.default), _Filled(1)),
    aten.new_full.default: _Filled(2),
}
