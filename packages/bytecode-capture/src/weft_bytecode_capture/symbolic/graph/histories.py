"""Where the graph has to end so that a tensor gets a place of its own in autograd's graph.

To autograd all that a compiled graph gives comes from one function.  A hook of one result does not see the
gradients of others that are computed from it, ``torch.autograd.grad`` finds no way from one to another, and
the hook of a result that gets no gradient is called with None where another gets one.  So the operation that
makes such a tensor runs in eager.  Where that is a call, the function called is a frame of its own, of which
the same holds for all that it gives (``FrameInput.separate_histories``).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import torch
import torch.fx
from weft_guards import AttributeSource, Predicate, Scope, Source

from ..._torch import pytree, storage_identity
from ..._torch.symbols import has_symbolic_layout
from ...unsupported import OPERATOR_REJECTS, BreakEarlier, BreakForHistory, Unsupported
from ..protocol import Evaluator, Graph
from .answers import Given, guard_offset
from .purity import possibly_written, writes
from .storages import Tensor, leaves, node_values, storages, version_of


def with_history(
    evaluator: Evaluator, tensors: Iterable[tuple[torch.fx.Node, torch.Tensor]], error: Unsupported
) -> Unsupported:
    """What to raise in the stead of ``error``, so that each of ``tensors`` has its history in eager.

    It is to be raised at once: a frame that keeps an error it raises lives on, and the program's objects
    with it.
    """
    position = first_history(evaluator, tensors)
    return error if position is None else BreakForHistory(position, error)


def first_history(
    evaluator: Evaluator, tensors: Iterable[tuple[torch.fx.Node, torch.Tensor]]
) -> int | None:
    """The root frame's instruction with the first operation that gives one of ``tensors`` its history.

    A graph that ends there leaves that operation to eager; what comes after it is captured again, and ends
    at the next one.
    """
    made_at = evaluator.graph.made_at
    wanted = {node: fake for node, fake in tensors if fake.requires_grad}
    wanted_storages = storages(wanted.values())
    nodes = list(evaluator.graph.outermost.nodes)
    last: dict[Any, torch.fx.Node] = {}
    for node in nodes:
        last.update(dict.fromkeys(_histories(node, wanted, wanted_storages), node))
    order = {node: number for number, node in enumerate(nodes)}
    for node in sorted(last.values(), key=order.__getitem__):
        made = node.args[0] if node.target is operator.getitem and node not in made_at else node
        if made in made_at:
            return made_at[made]
    return None


def _histories(
    node: torch.fx.Node, wanted: dict[torch.fx.Node, torch.Tensor], wanted_storages: set[int]
) -> set[int]:
    """The storages, of ``wanted_storages``, of those tensors to which ``node`` gives their history."""
    found = {storage_identity(wanted[node])} if node in wanted else set()
    return found | _written(node) & wanted_storages


def _written(node: torch.fx.Node) -> set[int]:
    """The storages that ``node`` may write to."""
    return storages(node_values(possibly_written(node))) if writes(node) else set()


_REFUSALS = (
    "is being modified inplace",
    "has been modified inplace",
    "is being used in an in-place operation",
    "Can't detach views in-place",
)
"""What autograd says of a write to a view, of the history of one that was written to, or of ``detach_``."""


def raise_for_view(evaluator: Evaluator, error: Exception, values: Any) -> None:
    """
    :raises BreakEarlier: autograd refused something of a tensor among ``values`` for being a view.  What a
        graph gives is another view, or none: it ends before the first is made, so that the error is eager's.
    """
    if not any(text in str(error) for text in _REFUSALS):
        return
    tensors = [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
    _break_before_view(evaluator, tensors, str(error))


def _break_before_view(evaluator: Evaluator, tensors: Iterable[torch.Tensor], reason: str) -> None:
    """End the graph before the first view in the memory of one of ``tensors`` that is a view."""
    viewed = storages(tensor for tensor in tensors if tensor._is_view())
    owned = set[int]()
    for node in evaluator.graph.outermost.nodes:
        found = storages(_tensors(node)) & viewed
        if node.op.startswith("call_") and found & owned:
            _break_before(evaluator, node, OPERATOR_REJECTS, reason)
        owned |= found


def _break_before(evaluator: Evaluator, node: torch.fx.Node, kind: str, context: str) -> None:
    """End the graph before the instruction that made ``node``, if one of the program's did."""
    position = evaluator.graph.made_at.get(node)
    if position is not None:
        raise BreakEarlier(position, Unsupported(kind, context))


def check_views(
    evaluator: Evaluator, tensors: Sequence[torch.Tensor], code: types.CodeType | None
) -> None:
    """
    :raises BreakEarlier: autograd refuses to say how one of ``tensors``, which leave the graph, was made: a
        view made in another mode, or one of several, whose memory was written to since.  Or one of them is a
        view and ``code``, which goes on behind a break, may detach it in place: what a graph gives is none.
        Or it is a view of an expanded argument, whose elements get gradients each of its own in eager.
    """
    for _, given, fake in evaluator.graph.given:
        if given.requires_grad and 0 in given.stride():
            storage = storage_identity(fake)
            views = [v for v in tensors if storage_identity(v) == storage and v is not fake]
            _break_before_view(evaluator, views, "a view of an expanded argument")
    if code is not None and "detach_" in code.co_names:
        _break_before_view(evaluator, tensors, "detach_")
    for tensor in tensors:
        try:
            tensor.grad_fn  # noqa: B018
        except (IndexError, RuntimeError, ValueError) as error:
            # One that says so, or one of a view that is made anew of a base with other dims since.
            _break_before_view(evaluator, [tensor], str(error))


def as_given(given: Iterable[Given], examples: Iterable[Any]) -> tuple[Any, ...]:
    """The examples of a graph's inputs as they came: what the graph writes may have given them gradients."""
    plain = {id(fake) for _, tensor, fake in given if not tensor.requires_grad}
    return tuple(
        example.detach() if id(example) in plain and example.requires_grad else example
        for example in examples
    )


def check_hooks(evaluator: Evaluator) -> None:
    """
    :raises BreakEarlier: the graph writes to a tensor from outside that has hooks and is no leaf.  What they
        are called with is the gradient of what was there before.
    """
    graph = evaluator.graph
    given = [row for row in graph.given if row[1].requires_grad and not row[1].is_leaf]
    hooked = storages(fake for _, tensor, fake in given if tensor._backward_hooks)
    written = set[int]()
    for node in graph.outermost.nodes if given else ():
        own = _written(node)
        written |= own
        if own and written & hooked:
            _break_before(evaluator, node, "hook of a tensor", "that is written to")
    for source, _, fake in given:
        if storage_identity(fake) in written - hooked:
            evaluator.guard(AttributeSource(source, "_backward_hooks"), _IsEmpty())


def guard_without_hooks(
    evaluator: Evaluator, source: Source, tensor: torch.Tensor, kind: str = "_backward_hooks"
) -> None:
    """
    :raises Unsupported: a tensor from outside has hooks, which its gradient is given to.
    """
    if getattr(tensor, kind):
        raise Unsupported("hook of a tensor", f"of {source.name()}")
    evaluator.guard(AttributeSource(source, kind), _IsEmpty())


def computed_from(
    evaluator: Evaluator,
    nodes: Iterable[torch.fx.Node],
    among: Container[torch.fx.Node] | None = None,
) -> set[torch.fx.Node]:
    """The nodes that ``nodes`` were computed from, by way of writes too, and these themselves.

    ``among``: the nodes to follow; of others their values alone count.
    """
    found = set(nodes)
    wanted = storages(leaves(node_values(found)))
    for node in reversed(evaluator.graph.outermost.nodes):
        if among is not None and node not in among:
            continue
        if node in found or (writes(node) and not _written(node).isdisjoint(wanted)):
            found.update((node, *node.all_input_nodes))
            wanted |= storages(leaves(node_values(node.all_input_nodes)))
    return found


def has_history_outside(
    tensor: torch.Tensor, fake: torch.Tensor, results: Iterable[torch.Tensor]
) -> bool:
    """Whether some of ``results`` may be computed from what a tensor from outside was computed from."""
    if not tensor.requires_grad or tensor.is_leaf:
        return False
    try:
        own = fake.grad_fn
        starts = [result.grad_fn for result in results]
    except RuntimeError:  # views whose history autograd refuses to tell
        return True
    pending = [start for start in starts if start is not None]
    seen = set(pending)
    while pending:
        found = {behind for behind, _ in pending.pop().next_functions if behind is not None}
        pending += found - seen
        seen |= found
    return own in seen or version_of(fake) > 0


@dataclass(frozen=True)
class _IsEmpty(Predicate):
    """The value is None, or has no elements."""

    def holds(self, value: Any, scope: Scope) -> bool:
        return not value


_SCATTERS = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"})
"""Operators that copy the whole memory of their operand, and leave the result where that lay in it."""


def check_places(evaluator: Evaluator, tensors: Iterable[torch.Tensor]) -> None:
    """
    :raises BreakEarlier: one of ``tensors``, which leave the graph, lies in its memory as no graph's result
        does: behind the beginning, or with gaps that a write keeps.
    """
    left = storages(tensors)
    for node in evaluator.graph.made_at:
        fake = node.meta.get("example_value")
        name = getattr(node.target, "__name__", node.target)
        if name not in _SCATTERS or not isinstance(fake, torch.Tensor):
            continue
        if storage_identity(fake) not in left:
            continue
        if _begins_late(evaluator, node.all_input_nodes[0]) or not _lies_as_a_result(fake):
            _break_before(evaluator, node, "storage of a tensor", f"{name} of a part of a tensor")


def _begins_late(evaluator: Evaluator, operand: torch.fx.Node) -> bool:
    """Whether what ``operand`` may be a view of, outside the graph, begins behind its memory's beginning."""
    fake = operand.meta["example_value"]
    given = [
        tensor
        for _, tensor, other in evaluator.graph.given
        if storage_identity(other) == storage_identity(fake)
    ]
    if any(tensor.storage_offset() for tensor in given):
        return True
    guard_offset(evaluator, fake)
    return False


def _lies_as_a_result(fake: torch.Tensor) -> bool:
    if has_symbolic_layout(fake) or not fake.numel():
        return True
    last = sum((n - 1) * s for n, s in zip(fake.shape, fake.stride(), strict=True))
    return fake.storage_offset() == 0 and (version_of(fake) == 0 or last + 1 == fake.numel())


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """The tensors that a node gives; none where it gives one of those that another node gave."""
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, torch.fx.Node) and _is_sequence(source.meta.get("example_value")):
        return []
    value = node.meta.get("example_value")
    return [v for v in (value if _is_sequence(value) else (value,)) if isinstance(v, torch.Tensor)]


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


_ASKING = frozenset(
    {"register_hook", "retain_grad", "grad_fn", "register_multi_grad_hook", "get_gradient_edge"}
)


def asks_for_histories(code: types.CodeType) -> bool:
    """Whether code mentions what asks for a tensor's place in autograd's graph: maybe behind a break."""
    names = code.co_names
    return not _ASKING.isdisjoint(names) or ("autograd" in names and "grad" in names)


# What must stay true of results that a program's own rule gives gradients, for the graph to be right.
#
# Later stages take such a result for a tensor of its own.  One that shares memory with another tensor of the
# graph must therefore not be written to, nor leave the graph.


@dataclass(frozen=True)
class _SharedResult:
    """A result that shares memory: its node, and its version counter when it came into being."""

    item: torch.fx.Node
    version: int
    position: int  # of the root frame's instruction

    def refuse(self, reason: str) -> NoReturn:
        raise BreakEarlier(self.position, Unsupported(_KIND, reason))


class GradientRules:
    """The results of one graph's gradient rules.

    ``in_backward``: a backward is being evaluated that ``create_graph`` may differentiate, though
    gradients are disabled.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._shared: list[_SharedResult] = []
        self.in_backward = False

    def storages_so_far(self) -> frozenset[int]:
        """The storages of all tensors of the graph."""
        return frozenset(_storage(node) for node in self._graph.outermost.nodes) - {0}

    def note(self, evaluator: Evaluator, results: Sequence[Tensor], before: frozenset[int]) -> None:
        """Results of a rule are in the graph; ``before``: the storages there were before its forward.

        :raises Unsupported: two of them share memory.
        """
        own = [_storage(variable.node) for variable in results]
        if len(set(own)) != len(own):
            raise Unsupported(_KIND, "results that share memory")
        root = evaluator.state.root
        for variable, storage in zip(results, own, strict=True):
            if storage in before and root is not None:
                version = version_of(variable.fake)
                self._shared.append(_SharedResult(variable.node, version, root.index))

    def check(self, outputs: Iterable[Any]) -> None:
        """
        :raises BreakEarlier: a result that shares memory was written to, or is among ``outputs``.
        """
        returned = [output.node for output in outputs if isinstance(output.node, torch.fx.Node)]
        for row in self._shared:
            if version_of(row.item.meta["example_value"]) != row.version:
                row.refuse("a view among its results is written to")
            if any(_comes_from(node, row.item) for node in returned):
                row.refuse("a view among its results leaves the graph")


_KIND = "autograd function that needs gradients"


def _storage(node: torch.fx.Node) -> int:
    """What the values of nodes that share memory have in common; 0 for what is no tensor."""
    value = node.meta.get("example_value")
    return storage_identity(value) if isinstance(value, torch.Tensor) else 0


def _comes_from(node: torch.fx.Node, origin: torch.fx.Node) -> bool:
    """Whether a node's value is that of ``origin`` or a view of it."""
    pending, storage = [node], _storage(origin)
    seen = set(pending)
    while pending:
        current = pending.pop()
        if current is origin:
            return True
        fresh = [n for n in current.all_input_nodes if n not in seen and _storage(n) == storage]
        seen.update(fresh)
        pending += fresh
    return False
