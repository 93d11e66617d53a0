"""A call that was evaluated and may be played back: what it read, the nodes that it made, what it gave."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from ..._torch import HigherOrderOperator, storage_identity
from ..._torch.symbols import expression_of
from ..graph.purity import possibly_written, writes
from ..graph.storages import leaves, node_values, storages
from ..models.containers.sequences import TupleVariable
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator, Graph
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from .events import Event, Wrapped
from .operands import Form, is_plain_tensor, look

_META = frozenset({"example_value", "stack_trace"})


@dataclass(frozen=True, eq=False)
class Span:
    """``trace``: of the call in its caller, with which the nodes' own begin."""

    function: types.FunctionType
    form: Form
    operands: Sequence[Variable]
    looks: Sequence[Any]
    aliasing: Sequence[int]
    surroundings: Sequence[Any]
    events: Sequence[Event]
    nodes: Sequence[torch.fx.Node]
    result: Variable
    written: Sequence[TensorVariable]
    trace: str
    codes: dict[int, types.CodeType]
    met: set[int] = field(default_factory=set)
    """The identities of the objects that it read from, once :meth:`objects_met` was asked."""


def looks_of(operands: Sequence[Variable]) -> list[Any]:
    """How each of the tensors among a call's arguments looks."""
    return [look(value.fake) for value in operands if isinstance(value, TensorVariable)]


def nodes_behind(evaluator: Evaluator, last: torch.fx.Node | None) -> list[torch.fx.Node]:
    """The nodes of the graph behind ``last``, all where it is None."""
    graph = evaluator.graph.graph
    first = next(iter(graph.nodes), None) if last is None else last.next
    found: list[torch.fx.Node] = []
    node = first
    while node is not None and node.op != "root":
        found.append(node)
        node = node.next
    return found


def last_node(evaluator: Evaluator) -> torch.fx.Node | None:
    """The last node so far."""
    return next(iter(reversed(evaluator.graph.graph.nodes)), None)


def tensors_read(events: Sequence[Event]) -> Iterator[TensorVariable]:
    """The tensors from outside that were read."""
    for event in events:
        if isinstance(event, Wrapped) and isinstance(event.variable, TensorVariable):
            yield event.variable


def tensors_read_first(events: Sequence[Event]) -> list[TensorVariable]:
    """Those that nothing had read before the call."""
    known = set[TensorVariable]()
    first: dict[TensorVariable, None] = {}
    for event in events:
        if isinstance(event, Wrapped) and isinstance(event.variable, TensorVariable):
            if event.was_known and event.variable not in first:
                known.add(event.variable)
            else:
                first[event.variable] = None
    return [variable for variable in first if variable not in known]


def written_tensors(
    nodes: Sequence[torch.fx.Node], events: Sequence[Event]
) -> list[TensorVariable]:
    """The tensors from outside that the nodes may write to."""
    written = set[int]().union(*map(_written, nodes))
    return [v for v in tensors_read(events) if storage_identity(v.fake) in written]


def own_nodes(
    made: Sequence[torch.fx.Node],
    operands: Sequence[Variable],
    events: Sequence[Event],
    graph: Graph,
) -> list[torch.fx.Node] | None:
    """The nodes that a call made of its arguments and of what it read; None where one is of another kind.

    They may write to what the call read first, as to the statistics of a norm.
    """
    read = [*tensors_read(events)]
    if not all(map(is_plain_tensor, read)):
        return None
    taken = [*(v for v in operands if isinstance(v, TensorVariable)), *read]
    first = {storage_identity(v.fake) for v in tensors_read_first(events)}
    known = {variable.node for variable in taken}
    known.update(node for node in made if _is_number(node, graph))
    outside = {storage_identity(variable.fake) for variable in taken} - first
    outside |= {storage_identity(v.fake) for v in operands if isinstance(v, TensorVariable)}
    found = [node for node in made if node not in known]
    known.update(found)
    for node in found:
        if node.op not in ("call_function", "call_method") or node.meta.keys() != _META:
            return None
        if isinstance(node.target, HigherOrderOperator):
            return None
        if not all(n in known or _is_number(n, graph) for n in node.all_input_nodes):
            return None
        if outside & _written(node):
            return None
    return found


def _is_number(node: torch.fx.Node, graph: Graph) -> bool:
    """Whether a node is the one that gives a symbolic number, wherever it is read."""
    value = node.meta.get("example_value")
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return False
    return graph.number_node(expression_of(value)) is node


def _written(node: torch.fx.Node) -> set[int]:
    """The storages that a node may write to."""
    if not writes(node):
        return set()
    if node.target is torch.nn.functional.batch_norm:
        return storages(leaves(node_values(_updated_statistics(node))))
    return storages(leaves(node_values(possibly_written(node))))


def _updated_statistics(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics that a call of ``batch_norm`` writes to, of those that it is given."""
    names = ("running_mean", "running_var", "weight", "bias", "training")
    given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    if given.get("training", False) is False:
        return []
    return [s for s in map(given.get, names[:2]) if isinstance(s, torch.fx.Node)]


def is_result(variable: Variable, nodes: set[torch.fx.Node], known: Sequence[Variable]) -> bool:
    """Whether what a call gave can be made again of nodes, constants and what it was given or read."""
    if isinstance(variable, TupleVariable):
        plain = type(variable) is TupleVariable and variable.source is None and variable.is_read
        return plain and all(is_result(item, nodes, known) for item in variable._items)
    if isinstance(variable, ConstantVariable):
        return type(variable) is ConstantVariable
    if any(variable is other for other in known):
        return True
    return (
        is_plain_tensor(variable)
        and variable.source is None
        and variable.node in nodes
        and variable.node.meta["example_value"] is variable.fake  # type: ignore[attr-defined]
    )
