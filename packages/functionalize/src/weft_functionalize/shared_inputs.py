"""User inputs in one storage, of which one is written: they become views of one flat input.

A graph has no other way to say that a write to one tensor changes another one.  The runtime makes the flat
tensor, a view of the same memory, and writes its new version back to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._torch import view_base
from .functional_graph import FunctionalGraph, SharedBase, SharedMember
from .gradient_history import is_unrecorded_view
from .tensor_ssa.layout import dense_order
from .unsupported import Unsupported


class SharedInputs(Unsupported):
    """Raised where a graph writes to one of several inputs in one storage that are recorded apart."""

    def __init__(self, groups: tuple[tuple[int, ...], ...], names: str) -> None:
        super().__init__("write to an input that shares storage with another", names)
        self.groups = groups  # positions of user inputs


@dataclass(frozen=True)
class FlatExample:
    """Example inputs in one storage, which ``first`` is one of: where they lie in it."""

    first: torch.Tensor
    members: tuple[SharedMember, ...]
    requires_grad: bool


def flat_example(
    positions: Sequence[int], examples: Sequence[Any], records_gradients: bool
) -> FlatExample:
    """The examples at ``positions``, as parts of one flat tensor.

    Raises :class:`Unsupported` where there is none: the tensors differ in dtype, or in whether they have
    gradients, or are lazily conjugated or negated, or their sizes are symbolic.
    """
    values: list[torch.Tensor] = [examples[position] for position in positions]
    first = values[0]
    for value in values:
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        if any(type(number) is not int for number in numbers):
            raise Unsupported("inputs of symbolic sizes in one storage of which one is written")
        if value.dtype != first.dtype or value.is_conj() or value.is_neg():
            raise Unsupported("inputs of several dtypes in one storage of which one is written")
        if value.requires_grad != first.requires_grad and records_gradients:
            raise Unsupported(
                "inputs in one storage of which one is written and not all have gradients",
                hint="pass copies of those that have none",
            )
    members = tuple(
        _member_of(position, value, records_gradients)
        for position, value in zip(positions, values, strict=True)
    )
    return FlatExample(first, members, any(value.requires_grad for value in values))


def _member_of(position: int, value: torch.Tensor, records_gradients: bool) -> SharedMember:
    unrecorded = records_gradients and _is_unrecorded(value)
    place = tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    return SharedMember(position, *place, unrecorded)


def _is_unrecorded(value: torch.Tensor) -> bool:
    """Whether the graph is given a view that was made without gradients; capture has written to ``value``.

    Autograd refuses to say what such a view is computed from behind a write to its memory.
    """
    try:
        return is_unrecorded_view(value)
    except RuntimeError as error:
        if not _MADE_WITHOUT_GRADIENTS.search(str(error)):
            raise
        return True


_MADE_WITHOUT_GRADIENTS = re.compile(r"view (which )?was created in (no_grad|inference) mode")


def flat_view(first: torch.Tensor, members: Sequence[SharedMember]) -> torch.Tensor:
    """The flat view of the members' memory, of a tensor in their storage."""
    start, length = _extent(members)
    return torch.as_strided(first, (length,), (1,), start)


def member_view(flat: torch.Tensor, start: int, member: SharedMember) -> torch.Tensor:
    """A member as a view of the flat tensor, which begins ``start`` elements behind the storage's start.

    By slice and permutation where the member has no gaps, which later stages know more of.
    """
    order = _dense_order(member)
    if order is None:
        return torch.as_strided(flat, member.size, member.stride, member.offset)
    first = member.offset - start
    part = flat[first : first + math.prod(member.size)]
    view = part.view([member.size[d] for d in order])
    return view if order == sorted(order) else view.permute([order.index(d) for d in sorted(order)])


def _dense_order(member: SharedMember) -> list[int] | None:
    """The dimensions from outermost to innermost in memory; None where there are gaps."""
    return dense_order(torch.empty_strided(member.size, member.stride, device="meta"))


class SharedArguments:
    """Gives, of what a caller passes, what the graph takes."""

    def __init__(self, functional: FunctionalGraph) -> None:
        self._bases = functional.shared_bases
        positions = {base.input_index: base for base in self._bases}
        self._taken = tuple(
            positions.get(index) or functional.inputs[index].position or 0
            for index in functional.user_input_indices
        )

    def taken_inputs(self, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
        """The graph's user inputs; None where the call is eager's: see :func:`_flat_argument`."""
        bases = {base.input_index: _flat_argument(base, arguments) for base in self._bases}
        if None in bases.values():
            return None
        return tuple(
            bases[taken.input_index] if isinstance(taken, SharedBase) else arguments[taken]
            for taken in self._taken
        )


def _flat_argument(base: SharedBase, arguments: Sequence[Any]) -> torch.Tensor | None:
    """The flat view of the memory of a call's arguments; None if they do not lie as the examples did.

    None, too, where results have ways to some of them in autograd's graph.
    What autograd records of it is recorded of what all of them are views of.
    """
    values: list[torch.Tensor] = [arguments[member.position] for member in base.members]
    first, owner = values[0], view_base(values[0])
    storage = first.untyped_storage().data_ptr()
    recorded = base.records_gradients and any(value.requires_grad for value in values)
    if recorded and base.led_through:
        return None
    if recorded and (owner.dtype != first.dtype or any(view_base(v) is not owner for v in values)):
        return None
    for member, value in zip(base.members, values, strict=True):
        found = _member_of(member.position, value, base.records_gradients)
        if value.untyped_storage().data_ptr() != storage or found != member:
            return None
    if recorded and _extent(base.members)[0] < owner.storage_offset():
        return None  # it would begin before the tensor whose gradient autograd records
    with torch.set_grad_enabled(recorded):
        return flat_view(owner if recorded else first, base.members)


def _extent(members: Sequence[SharedMember]) -> tuple[int, int]:
    """Where the flat tensor of members begins in their storage, and its elements.

    It begins with the first member; with the storage where a member has gaps, since the view that gives such
    a member counts from there.
    """
    gaps = any(_dense_order(member) is None for member in members)
    start = 0 if gaps else min(member.offset for member in members)
    ends = (
        m.offset + sum((n - 1) * s for n, s in zip(m.size, m.stride, strict=True)) for m in members
    )
    return start, max(ends) + 1 - start
