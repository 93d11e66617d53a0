"""Which gradients eager's autograd gives, where the branch taken or a loop's length decides that.

A gradient that is absent is not one of zeros: eager leaves ``grad`` as it was, and does not visit what leads
there, where zeros would meet infinities.  So regions tell which of their operands get one
(:class:`RegionReach`), and what is computed of zeros in the place of an absent one is set to zero before it
is added to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

Defined = bool | torch.Tensor
"""True, False, or a bool tensor without dimensions of the graph at hand."""

Reach = dict[tuple[int, int], Defined]
"""By result and operand: whether a gradient of the one leads to one of the other; no entry is False."""

_Function = Any  # a node of autograd's graph
_Slot = tuple[_Function, int]  # of one of its outputs


def either(left: Defined, right: Defined) -> Defined:
    """Whether one of the two holds."""
    if isinstance(left, bool):
        return left or right
    if isinstance(right, bool):
        return right or left
    return left if left is right else torch.logical_or(left, right)


def both(left: Defined, right: Defined) -> Defined:
    """Whether both hold."""
    if isinstance(left, bool):
        return left and right
    if isinstance(right, bool):
        return right and left
    return left if left is right else torch.logical_and(left, right)


class RegionReach:
    """What a region's node of autograd tells of itself: ``ctx.reach``, an object of this class.

    ``edges``: for each of the node's outgoing edges the operand that it leads to.
    """

    def __init__(self, reach: Reach, edges: Sequence[int]) -> None:
        self.edges = edges
        self._by_operand: dict[int, dict[int, Defined]] = {}
        for (result, operand), defined in reach.items():
            self._by_operand.setdefault(operand, {})[result] = defined

    def of_edges(self, given: Mapping[int, Defined], merge: _Merge) -> list[Defined]:
        """Whether each edge has a gradient, from which results have one."""
        found: list[Defined] = []
        for operand in self.edges:
            total: Defined = False
            for result, defined in self._by_operand.get(operand, {}).items():
                if result in given:
                    total = merge(either, total, merge(both, given[result], defined))
            found.append(total)
        return found


_Merge = Callable[[Callable[[Defined, Defined], Defined], Defined, Defined], Defined]


class GradientPaths:
    """The ways from some tensors to others in autograd's graph.

    What it computes is recorded by whichever recorder is active, where that is in data.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._input_of: dict[_Function, int] = {}
        for index, tensor in enumerate(inputs):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                self._input_of[get_gradient_edge(tensor).node] = index
        self._merged: dict[tuple[Any, int, int], tuple[Defined, Defined, Defined]] = {}
        self._behind: dict[_Function, frozenset[int] | None] = {}

    def from_result(self, tensor: torch.Tensor) -> dict[int, Defined]:
        """By index of an input: whether it has a gradient where ``tensor`` has one."""
        behind = self._inputs_behind(get_gradient_edge(tensor).node)
        if behind is not None:
            return dict.fromkeys(sorted(behind), True)
        given, _ = self._walk([(tensor, True)])
        found = {i: self._of_node(given[f]) for f, i in self._input_of.items() if f in given}
        return {index: defined for index, defined in found.items() if defined is not False}

    def _inputs_behind(self, start: _Function) -> frozenset[int] | None:
        """The inputs that a node leads to; None where a region, on some way or the other, decides that."""
        known, pending = self._behind, [start]
        while pending:
            function = pending[-1]
            if function in known:
                pending.pop()
            elif function in self._input_of:
                known[function] = frozenset({self._input_of[function]})
            elif getattr(function, "reach", None) is not None:
                known[function] = None
            else:
                following = [slot[0] for slot in _following(function) if slot is not None]
                unknown = [each for each in following if each not in known]
                pending += unknown
                if not unknown:
                    known[function] = _all_of({known[each] for each in following})
        return known[start]

    def mask(self, results: Sequence[tuple[torch.Tensor, Defined]]) -> list[RemovableHandle]:
        """Have absent gradients be zero where they meet others, when autograd visits this graph.

        ``results`` are the tensors whose gradients are given, each with whether it is.  Gives the handles of
        the hooks that do so.
        """
        handles: list[RemovableHandle] = []
        given, edges = self._walk(results)
        for function, of_edges in edges.items():
            masks = [
                self._mask(function, given, slot, defined)
                for slot, defined in zip(_following(function), of_edges, strict=True)
            ]
            if any(mask is not None for mask in masks):
                handles.append(function.register_hook(_masking(masks)))
        return handles

    def _mask(
        self,
        function: _Function,
        given: Mapping[_Function, Mapping[int, Defined]],
        slot: _Slot | None,
        defined: Defined,
    ) -> torch.Tensor | None:
        """What says where the gradient on an edge has to be set to zero; None where it need not be."""
        if slot is None or isinstance(defined, bool) or _keeps_zeros(function, given[function]):
            return None
        target, number = slot
        is_region = getattr(target, "reach", None) is not None
        met = given[target][number] if is_region else self._of_node(given[target])
        return None if met is defined else defined

    def _walk(
        self, results: Sequence[tuple[torch.Tensor, Defined]]
    ) -> tuple[dict[_Function, dict[int, Defined]], dict[_Function, list[Defined]]]:
        """For each node which of its outputs have gradients, and which of its edges pass one on."""
        starts = [(get_gradient_edge(tensor), defined) for tensor, defined in results]
        given: dict[_Function, dict[int, Defined]] = {}

        def add(function: _Function, number: int, defined: Defined) -> None:
            slots = given.setdefault(function, {})
            slots[number] = self._merge(either, slots.get(number, False), defined)

        for edge, defined in starts:
            add(edge.node, edge.output_nr, defined)
        edges: dict[_Function, list[Defined]] = {}
        for function in _in_order([edge.node for edge, _ in starts], self._input_of):
            following = _following(function)
            reach: RegionReach | None = getattr(function, "reach", None)
            if reach is not None:
                edges[function] = reach.of_edges(given[function], self._merge)
            else:
                edges[function] = [self._of_node(given[function])] * len(following)
            for slot, defined in zip(following, edges[function], strict=True):
                if slot is not None:
                    add(*slot, defined)
        return given, edges

    def _of_node(self, slots: Mapping[int, Defined]) -> Defined:
        total: Defined = False
        for defined in slots.values():
            total = self._merge(either, total, defined)
        return total

    def _merge(
        self, rule: Callable[[Defined, Defined], Defined], left: Defined, right: Defined
    ) -> Defined:
        """``rule``'s result: the same object for the same two."""
        key = (rule, id(left), id(right))
        if key not in self._merged:
            self._merged[key] = (rule(left, right), left, right)
        return self._merged[key][0]


def _all_of(sets: Set[frozenset[int] | None]) -> frozenset[int] | None:
    """Their union: one of them where that has the others; None where one is None."""
    largest = max((each for each in sets if each is not None), key=len, default=frozenset[int]())
    for each in sets:
        if each is None:
            return None
        if not each <= largest:
            largest |= each
    return largest


def _following(function: _Function) -> list[_Slot | None]:
    return [None if f is None else (f, number) for f, number in function.next_functions]


def _in_order(starts: Sequence[_Function], ends: Mapping[_Function, int]) -> list[_Function]:
    """The nodes that ``starts`` lead to, each before those that it leads to; not beyond ``ends``."""
    order: list[_Function] = []
    seen: set[_Function] = set()
    for start in starts:
        pending: list[tuple[_Function, bool]] = [(start, False)]
        while pending:
            function, is_done = pending.pop()
            if is_done:
                order.append(function)
            elif function not in seen:
                seen.add(function)
                pending.append((function, True))
                slots = () if function in ends else _following(function)
                pending += [(slot[0], False) for slot in slots if slot is not None]
    return [function for function in reversed(order) if function not in ends]


def _masking(masks: Sequence[torch.Tensor | None]) -> Callable[[Any, Any], Any]:
    """A hook that makes the gradients zero that their masks say are absent."""

    def hook(gradients: Sequence[torch.Tensor | None], _: Any) -> tuple[torch.Tensor | None, ...]:
        return tuple(
            gradient
            if mask is None or gradient is None
            else torch.where(mask, gradient, torch.zeros_like(gradient))
            for gradient, mask in zip(gradients, masks, strict=True)
        )

    return hook


def _keeps_zeros(function: _Function, given: Mapping[int, Defined]) -> bool:
    """Whether the node's gradients are zero where the absent ones that it gets are."""
    if getattr(function, "reach", None) is not None:
        return all(defined is True for defined in given.values())
    return function.name().partition("Backward")[0] in _MOVES


# Operators whose backward adds gradients up or moves them.
_MOVES = frozenset(
    {
        "Add",
        "Alias",
        "AsStrided",
        "Cat",
        "Clone",
        "Expand",
        "Neg",
        "Permute",
        "Repeat",
        "Select",
        "Slice",
        "Split",
        "Squeeze",
        "Stack",
        "Sub",
        "Sum",
        "T",
        "ToCopy",
        "Transpose",
        "Unbind",
        "UnsafeView",
        "Unsqueeze",
        "View",
    }
)
