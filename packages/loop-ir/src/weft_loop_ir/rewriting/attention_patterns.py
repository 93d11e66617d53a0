"""What is known of the masks of attention: which rows they hide wholly, and whether they are causal.

The softmax of a row whose scores are all minus infinity is NaN; the library's attention gives zeros there.

What is known of masks: which rows they hide wholly, and whether they are causal.  The softmax of a row whose
scores are all minus infinity is NaN; the library's attention gives zeros there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx

from weft_loop_ir.expressions import to_expression
from weft_loop_ir.rewriting.fakes import ConstantValues, source_of

aten = torch.ops.aten


def hides_rows(value: torch.Tensor) -> bool:
    """Whether a row of a mask (bool, or what is added) hides all keys."""
    visible = value if value.dtype == torch.bool else value != -math.inf
    return not bool(visible.any(-1).all())


def is_causal(value: torch.Tensor) -> bool:
    """Whether a mask lets a query see just the keys up to its own position."""
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] < 2:
        return False
    visible = value if value.dtype == torch.bool else value == 0
    if not bool((visible == torch.ones_like(visible).tril()).all()):
        return False
    return value.dtype == torch.bool or bool((value[~visible] <= lowest(value.dtype)).all())


def hides_nothing(value: torch.Tensor) -> bool:
    """Whether a mask changes no score."""
    return bool(value.all() if value.dtype == torch.bool else (value == 0).all())


def lowest(dtype: torch.dtype) -> float:
    """The least finite number: in a sum with it every score is lost, beside any other it has no weight."""
    return torch.finfo(dtype).min


# ---- finite values ---------------------------------------------------------------------------------------


def is_finite(node: Any, known: ConstantValues) -> bool:
    """Whether every element is proven to be a finite number, of what is made by :data:`FINITE`."""
    number = known.number(node)
    if number is not None:
        return math.isfinite(number)
    if not isinstance(node, torch.fx.Node):
        return False
    value = known.tensor(node)
    if value is not None:
        return bool(torch.isfinite(value).all())
    operands = FINITE.get(node.target)
    return operands is not None and all(is_finite(o, known) for o in operands(node))


def _first(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args[:1]


def _values_chosen(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args[1:3]


def _converted(node: torch.fx.Node) -> tuple[Any, ...]:
    """The operand of a conversion that keeps finite numbers finite; something unknown for another."""
    source = source_of(node)
    before, after = source.meta["val"].dtype, node.meta["val"].dtype
    if before == torch.bool:
        return ()
    if not before.is_floating_point or not after.is_floating_point:
        return (None,)
    return (source,) if torch.finfo(after).max >= torch.finfo(before).max else (None,)


FINITE: dict[Any, Callable[[torch.fx.Node], tuple[Any, ...]]] = {
    aten.where.self: _values_chosen,
    aten.where.ScalarOther: _values_chosen,
    aten.where.ScalarSelf: _values_chosen,
    aten.where.Scalar: _values_chosen,
    aten._to_copy.default: _converted,
    **dict.fromkeys(
        (
            aten.expand.default,
            aten.view.default,
            aten._unsafe_view.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.slice.Tensor,
            aten.select.int,
            aten.transpose.int,
            aten.permute.default,
            aten.clone.default,
            aten.detach.default,
            aten.alias.default,
        ),
        _first,
    ),
}
"""Operators to those operands of which their results' elements are taken."""


# -- patterns ------------------------------------------------------------------------------------------


Node = torch.fx.Node


@dataclass(frozen=True)
class Mask:
    """``node`` is added to scores of the size that ``scores`` has, or says (bool) which of them are seen.

    With ``hides`` it says which are not.  ``fill``: what is in their place; it is added where it is finite.
    """

    node: Node
    scores: Node
    fill: float | None = None
    hides: bool = False


@dataclass(frozen=True)
class ScoreOperator:
    """An operator between scores and softmax: ``scores`` are scaled by ``factor``, then masked."""

    scores: Node
    factor: float = 1.0
    mask: Mask | None = None


@dataclass(frozen=True)
class Attention:
    """``softmax(query @ key * scale + masks) @ value``, ``query [n, l, e]``, ``key [n, e, s]``.

    ``masks`` are in the order in which they are applied, ``result`` gives the matmul; ``nodes`` are all that
    go with the match, each after those it reads.
    """

    query: Node
    key: Node
    value: Node
    scale: float
    masks: tuple[Mask, ...]
    result: Node
    nodes: tuple[Node, ...]

    @property
    def operands(self) -> tuple[Node, Node, Node]:
        return self.query, self.key, self.value


def find_attention(graph: torch.fx.Graph, known: ConstantValues) -> Iterator[Attention]:
    """Every match in ``graph``; what a match consists of may be changed before the next is asked for."""
    for softmax in graph.find_nodes(op="call_function", target=aten._softmax.default):
        above = _walk_up(softmax.args[0], softmax, known)
        below = _walk_down(softmax)
        if above is None or below is None or not _is_over_keys(softmax, above[0].scores):
            continue
        query, key = above[0].scores.args[-2:]
        yield Attention(
            query,  # type: ignore[arg-type]
            key,  # type: ignore[arg-type]
            below[-1].args[1],  # type: ignore[arg-type]
            math.prod(step.factor for step in above),
            tuple(step.mask for step in above if step.mask is not None),
            below[-1],
            (*(step.scores for step in above), softmax, *below),
        )


# ---- sizes -----------------------------------------------------------------------------------------------


def sizes(node: Node) -> tuple[sympy.Expr, ...]:
    """The size of the tensor that ``node`` gives; nothing is assumed of symbols."""
    return tuple(to_expression(n) for n in node.meta["val"].shape)


def keeps_order(node: Node) -> bool:
    """Whether ``node`` is a view or copy of its first argument that holds each element once, in order."""
    if node.target in RESHAPES:
        return True
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return False
    if node.target is aten.expand.default:
        return sizes(source) == sizes(node)
    if node.target is aten.permute.default:
        dims, extents = node.args[1], sizes(source)
        assert isinstance(dims, list | tuple)
        order = [d % len(extents) for d in dims if extents[d] != 1]  # type: ignore[operator, index]
        return order == sorted(order)
    return False


def keeps_elements(node: Node) -> bool:
    """As :func:`keeps_order`, or a conversion."""
    return node.target is aten._to_copy.default or keeps_order(node)


RESHAPES = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.squeeze.dim,
        aten.unsqueeze.default,
        aten.view.default,
        aten._unsafe_view.default,
    }
)
"""Operators that give the elements of their argument in order, whatever their sizes."""


def _is_over_keys(softmax: Node, matmul: Node) -> bool:
    extents = sizes(softmax)
    return softmax.args[1] in (-1, len(extents) - 1) and extents[-1] == sizes(matmul)[-1]


def _has_result_size(operand: Any, result: Node) -> bool:
    is_tensor = isinstance(operand, Node) and isinstance(operand.meta.get("val"), torch.Tensor)
    return is_tensor and sizes(operand) == sizes(result)


# ---- from the softmax to the scores ----------------------------------------------------------------------


def _walk_up(node: Any, below: Node, known: ConstantValues) -> list[ScoreOperator] | None:
    """The way from a matmul to ``node``, which ``below`` alone may read; None if there is none."""
    if not isinstance(node, Node) or list(node.users) != [below]:
        return None
    if node.target is aten.bmm.default:
        return [ScoreOperator(node)]
    if node.target is aten.baddbmm.default:
        return _added_matmul(node)
    rule = SCORES.get(node.target)
    for step in () if rule is None else rule(node, known):
        above = _walk_up(step.scores, node, known)
        if above is not None and (step.factor == 1 or not any(s.mask for s in above)):
            return [*above, replace(step, scores=node)]
    return None


def _added_matmul(node: Node) -> list[ScoreOperator] | None:
    """``baddbmm``: a matmul to which a mask is added at once."""
    mask, factor = node.args[0], node.kwargs.get("alpha", 1)
    if node.kwargs.get("beta", 1) != 1 or not isinstance(mask, Node) or not _is_scale(factor):
        return None
    return [ScoreOperator(node, factor, Mask(mask, node))]  # type: ignore[arg-type]


def _reshaped(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    if keeps_order(node):
        yield ScoreOperator(source_of(node))


def _widened(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    source = source_of(node)
    is_narrow = source.meta["val"].dtype in (torch.float16, torch.bfloat16, torch.float32)
    if is_narrow and node.meta["val"].dtype == torch.float32:
        yield ScoreOperator(source)


def _multiplied(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    for scores, factor in (node.args, node.args[::-1]):
        number = known.number(factor)
        if _has_result_size(scores, node) and _is_scale(number):
            yield ScoreOperator(scores, number)  # type: ignore[arg-type]


def _divided(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    number = known.number(node.args[1])
    if _has_result_size(node.args[0], node) and _is_scale(number):
        yield ScoreOperator(source_of(node), 1 / number)  # type: ignore[operator]


def _added(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    if node.kwargs.get("alpha", 1) != 1:
        return
    for scores, mask in (node.args, node.args[::-1]):
        if _has_result_size(scores, node) and isinstance(mask, Node) and mask is not scores:
            yield ScoreOperator(scores, mask=Mask(mask, node))  # type: ignore[arg-type]


def _chosen(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    condition, value, other = node.args
    yield from _filled(node, value, condition, known.number(other), hides=False)
    yield from _filled(node, other, condition, known.number(value), hides=True)


def _masked_fill(node: Node, known: ConstantValues) -> Iterator[ScoreOperator]:
    scores, hidden, fill = node.args
    yield from _filled(node, scores, hidden, known.number(fill), hides=True)


def _filled(
    node: Node, scores: Any, condition: Any, fill: float | None, hides: bool
) -> Iterator[ScoreOperator]:
    """Scores, or in their place a number so low that the probability is 0."""
    lost = fill is not None and fill <= lowest(node.meta["val"].dtype)
    if lost and _has_result_size(scores, node):
        yield ScoreOperator(scores, mask=Mask(condition, node, fill, hides))


def _is_scale(number: Any) -> bool:
    return isinstance(number, int | float) and 0 < number < math.inf


SCORES: dict[Any, Callable[[Node, ConstantValues], Iterator[ScoreOperator]]] = {
    **dict.fromkeys((*RESHAPES, aten.expand.default, aten.permute.default), _reshaped),
    aten._to_copy.default: _widened,
    aten.mul.Tensor: _multiplied,
    aten.mul.Scalar: _multiplied,
    aten.div.Tensor: _divided,
    aten.div.Scalar: _divided,
    aten.add.Tensor: _added,
    aten.where.self: _chosen,
    aten.where.ScalarOther: _chosen,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
}
"""What may lie between the matmul of queries and keys and the softmax, and which scores it may be of."""


# ---- from the softmax to the values ----------------------------------------------------------------------


def _walk_down(softmax: Node) -> list[Node] | None:
    """What leads to the matmul with the values, it included; None if anything else reads probabilities."""
    node, found = softmax, []
    while len(node.users) == 1:
        (below,) = node.users
        found.append(below)
        if below.target is aten.bmm.default:
            is_left = below.args[0] is node and below.args[1] is not node
            return found if is_left else None
        converts = below.target is aten._to_copy.default
        if not (keeps_order(below) or (converts and below.meta["val"].dtype.is_floating_point)):
            return None
        node = below
    return None
