"""Which values stay saved under a bound on the bytes for backward: a knapsack of recompute cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set

import torch
import torch.fx
from weft_functionalize import size_hint

from .operator_classes import OperatorClass, classify
from .sides import Sides

# Cells of the table of the knapsack, and how fine bytes are counted at least.
_CELLS, _FEWEST_STEPS = 400_000, 64

# Arithmetic operations that fit in the time of moving one element through memory, roughly.
_OPERATIONS_PER_ELEMENT = 10


def values_to_keep(
    sides: Sides, saved: Sequence[torch.fx.Node], least: Sequence[torch.fx.Node], budget: float
) -> set[torch.fx.Node]:
    """Those of ``saved`` (kept by default) that are worth their bytes within ``budget`` (0 to 1).

    ``least`` are kept where all that can be is recomputed; their bytes are spent first.
    """
    default = _bytes(sides, saved)
    room = int(budget * default) - _bytes(sides, least)
    always = set(least)
    items = [n for n in saved if n.op != "placeholder" and n not in always]
    costs = [_recompute_cost(node, set(saved)) for node in items]
    chosen = knapsack([sides.nbytes(node) for node in items], costs, room)
    return {items[index] for index in chosen}


def _bytes(sides: Sides, nodes: Sequence[torch.fx.Node]) -> int:
    return sum(sides.nbytes(node) for node in nodes if not sides.is_free(node))


def knapsack(weights: Sequence[int], values: Sequence[float], room: int) -> list[int]:
    """Indices of items of greatest value whose weights sum to at most ``room``, ascending.

    Large weights are rounded up to steps of the room: the result is feasible and near the best.
    """
    if room <= 0:
        return [index for index, weight in enumerate(weights) if weight == 0]
    steps = min(room, max(_FEWEST_STEPS, _CELLS // max(1, len(weights))))
    sizes = [math.ceil(weight * steps / room) for weight in weights]
    best = [0.0] * (steps + 1)
    taken: list[list[bool]] = []
    for size, value in zip(sizes, values, strict=True):
        row = [False] * (steps + 1)
        for used in range(steps, size - 1, -1):
            if best[used - size] + value > best[used]:
                best[used] = best[used - size] + value
                row[used] = True
        taken.append(row)
    chosen, used = [], steps
    for index in reversed(range(len(weights))):
        if taken[index][used]:
            chosen.append(index)
            used -= sizes[index]
    return sorted(chosen)


def _recompute_cost(node: torch.fx.Node, saved: Set[torch.fx.Node]) -> float:
    """Operations to compute ``node`` from the other saved values."""
    pending, seen, cost = [node], {node}, 0.0
    while pending:
        current = pending.pop()
        cost += operator_cost(current)
        for argument in current.all_input_nodes:
            if argument not in seen and argument not in saved and argument.op == "call_function":
                seen.add(argument)
                pending.append(argument)
    return cost


def operator_cost(node: torch.fx.Node) -> float:
    """Roughly the arithmetic operations that take the time of ``node``."""
    kind = classify(node)
    if kind in (OperatorClass.VIEW, OperatorClass.NUMBER):
        return 0.0
    if kind is OperatorClass.CONTRACTION:
        name = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
        return _CONTRACTIONS.get(name, _by_last_dimension)(node)
    moved = sum(_elements(argument) for argument in node.all_input_nodes) + _elements(node)
    return float(_OPERATIONS_PER_ELEMENT * moved)


def _elements(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    if isinstance(value, (tuple, list)):
        return sum(size_hint(item.numel()) for item in value if isinstance(item, torch.Tensor))
    return size_hint(value.numel()) if isinstance(value, torch.Tensor) else 0


def _by_last_dimension(node: torch.fx.Node) -> float:
    """A contraction over the last dimension of the first matrix argument."""
    values = [a.meta["val"] for a in node.all_input_nodes]
    matrices = [value for value in values if isinstance(value, torch.Tensor)]
    length = next((size_hint(m.shape[-1]) for m in matrices if m.dim() > 1), 1)
    return 2.0 * _elements(node) * length


def _convolution(node: torch.fx.Node) -> float:
    weight = node.all_input_nodes[1].meta["val"]
    return float(
        2 * _elements(node) * size_hint(weight.numel()) / max(1, size_hint(weight.shape[0]))
    )


def _attention(node: torch.fx.Node) -> float:
    query, key = (a.meta["val"] for a in node.all_input_nodes[:2])
    return float(4 * size_hint(query.numel()) * size_hint(key.shape[-2]))


_CONTRACTIONS: dict[str, Callable[[torch.fx.Node], float]] = {
    "convolution": _convolution,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
}
