"""Where the two branches of a conditional end, and the numbers in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from ...models.containers.sequences import TupleVariable
from ...models.numbers.tensor_number import (
    common_kind,
    like_both,
    number_of_kind,
)
from ...models.torch.calls_on_entry import is_movable
from ...models.torch.tensor import TensorVariable, on_device, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ..state.containers import Opens, opens_none, parts, shape, with_parts
from ..state.python_state import same_constant
from ..state.slots import Slot
from ..subgraph import Subgraph


@dataclass
class BranchEnd:
    """The state in which one branch ends; ``result`` if the frame has returned.

    ``elements`` are what was there before in objects from outside and cells; ``changed`` are copies of the
    frame's own containers that the branch has changed, by identity; ``appended`` are its entries in lists
    that loops around fill, and their flags.
    """

    subgraph: Subgraph
    stack: list[Variable | None]
    locals: dict[str, Variable]
    result: Variable | None
    elements: dict[Slot, Variable | None] = field(default_factory=dict)
    changed: dict[int, Variable] = field(default_factory=dict)
    appended: dict[int, Variable] = field(default_factory=dict)


def make_numbers_alike(
    evaluator: Frame, true: BranchEnd, false: BranchEnd, opens: Opens = opens_none
) -> set[TensorVariable]:
    """Put numbers in which the branches of a conditional differ into tensors, each in its branch's graph.

    A container that holds one gets a copy: the other branch may have it too, in another place.  What is given
    are the tensors.
    """
    made: set[TensorVariable] = set()
    copies: tuple[dict[int, Any], dict[int, Any]] = ({}, {})  # with the originals, by identity

    def copied(branch: int, container: Any, held: list[Any]) -> Any:
        copy = with_parts(container, held)
        return copies[branch].setdefault(id(container), (copy, container))[0]

    def alike(left: Any, right: Any) -> tuple[Any, Any]:
        if left is None or right is None or same_constant(left, right):
            return left, right
        if type(left) is TupleVariable and type(right) is TupleVariable:
            if len(left._items) != len(right._items):
                return left, right
            pairs = list(map(alike, left._items, right._items))
            return TupleVariable([a for a, _ in pairs]), TupleVariable([b for _, b in pairs])
        if opens(left) and opens(right) and shape(left) == shape(right):
            pairs = list(map(alike, parts(left), parts(right)))
            return copied(0, left, [a for a, _ in pairs]), copied(1, right, [b for _, b in pairs])
        kind = common_kind(evaluator, (left, right))
        if kind is None:
            return left, right
        numbers = []
        for branch, value in ((true, left), (false, right)):
            with branch.subgraph.active():
                numbers.append(number_of_kind(evaluator, value, kind))
        first, second = numbers
        first.tensor, second.tensor = on_one_device(
            evaluator, (true, false), (first.tensor, second.tensor)
        )
        made.update((first.tensor, second.tensor))
        return like_both(first, second, first.tensor), second

    true.result, false.result = alike(true.result, false.result)
    pairs = list(map(alike, true.stack, false.stack))
    if len(true.stack) == len(false.stack):
        true.stack, false.stack = [a for a, _ in pairs], [b for _, b in pairs]
    branches: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
        (true.locals, false.locals),
        (true.elements, false.elements),
        (true.changed, false.changed),
        (true.appended, false.appended),
    ]
    for mine, theirs in branches:
        for key in mine.keys() & theirs.keys():
            mine[key], theirs[key] = alike(mine[key], theirs[key])
    return made


def on_one_device(
    evaluator: Frame, ends: tuple[BranchEnd, BranchEnd], pair: tuple[TensorVariable, TensorVariable]
) -> tuple[TensorVariable, TensorVariable]:
    """Flags or numbers of two branches on the device of one of them, that of the program's tensors."""
    left, right = (tensor.fake.device for tensor in pair)
    device = right if left.type == "cpu" else left
    found = []
    for end, tensor in zip(ends, pair, strict=True):
        with end.subgraph.active():
            found.append(on_device(evaluator, tensor, device))
    return found[0], found[1]


def put_flags_on_one_device(
    evaluator: Frame, ends: tuple[BranchEnd, BranchEnd], names: Iterable[str]
) -> None:
    """The same of the flags in locals of these ``names``."""
    for name in names:
        left, right = (end.locals.get(name) for end in ends)
        if isinstance(left, TensorVariable) and isinstance(right, TensorVariable):
            pair = on_one_device(evaluator, ends, (left, right))
            for end, flag in zip(ends, pair, strict=True):
                end.locals[name] = flag


_MAX_CHOSEN = 32  # nodes of either branch that compute a number


def chosen_numbers(
    evaluator: Frame,
    predicate: TensorVariable,
    true: BranchEnd,
    false: BranchEnd,
    pairs: Sequence[tuple[TensorVariable, TensorVariable]],
) -> list[TensorVariable] | None:
    """The numbers in which two branches differ that do little but compute them: both are, and one is chosen.

    None where they do more.
    """
    graph = evaluator.graph.graph
    devices = {tensor.fake.device for pair in pairs for tensor in pair}
    if not pairs or devices != {predicate.fake.device}:
        return None
    branches = [branch.subgraph.graph.nodes for branch in (true, false)]
    if any(len(nodes) > _MAX_CHOSEN or not all(map(_gives_number, nodes)) for nodes in branches):
        return None
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in (node for nodes in branches for node in nodes):
        copies[node] = graph.node_copy(node, lambda given: copies.get(given, given))
    sides = [
        [TensorVariable(copies.get(t.node, t.node), t.fake, None) for t in pair] for pair in pairs
    ]
    for nodes in branches:
        for node in reversed(nodes):  # the graph's own nodes would keep them as users
            node.graph.erase_node(node)
    return [tensor_of(evaluator, torch.where, predicate, *pair) for pair in sides]


def _gives_number(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and not value.requires_grad
    return is_number and node.op.startswith("call_") and is_movable(node)
