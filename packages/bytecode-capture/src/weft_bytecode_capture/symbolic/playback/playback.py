"""Playing calls back: a layer is evaluated once, its nodes are made again for each layer that is like it."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...unsupported import Unsupported
from ..frame_ends import exit_runs_code
from ..graph.storages import leaves
from ..models.containers.sequences import TupleVariable
from ..models.functions.cells import CellVariable
from ..models.functions.python_functions import FunctionVariable, KnownFunctionVariable
from ..models.torch.nn_module import ModuleInstanceVariable
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator, Graph
from ..variables.base import Arguments, Keywords, Variable
from ..variables.constant import ConstantVariable
from .events import Guarded, Identified, IdentifiedAt, Wrapped
from .matching import Differs, Matching
from .operands import Form, aliasing, are_alike, flattened, is_untouched_module, look
from .span import (
    Span,
    is_result,
    last_node,
    looks_of,
    nodes_behind,
    own_nodes,
    written_tensors,
)
from .surroundings import Surroundings

_MAX_SPANS = 4  # of a function with the same constants
_MAX_DOUBTS, _MAX_ALIKE_DOUBTS = 48, 6
"""How often a function is recorded, with other constants or with these, that is never played back."""
_HASHED = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})
_REFUSED = 2  # what a call counts for which cannot be recorded
_MIN_NODES, _MIN_INSTRUCTIONS = 2, 12
"""What is less work is evaluated as fast."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A call that is being evaluated."""

    function: types.FunctionType
    form: Form
    operands: list[Variable]
    looks: list[Any]
    aliasing: list[int]
    surroundings: list[Any]
    first_event: int
    refusals: int
    effects: int
    generators: int
    instructions: int
    last_node: torch.fx.Node | None
    trace: str


class Playback:
    """The calls of one capture that may be played back."""

    def __init__(self) -> None:
        self._spans: dict[tuple[Any, ...], list[Span]] = {}
        self._surroundings = Surroundings()
        self._doubts: collections.Counter[Any] = collections.Counter()  # by function, and by key

    def begin(
        self,
        evaluator: Evaluator,
        function: FunctionVariable,
        arguments: Arguments,
        keywords: Keywords,
    ) -> Recording | Variable | None:
        """What the call gives, if it is like one before; else what :meth:`end` needs, or None."""
        if type(function) is not KnownFunctionVariable or not evaluator.state.options.playback:
            return None
        value = function.value
        if self._doubts[value] >= _MAX_DOUBTS or not _may_be_played(evaluator):
            return None
        flat = flattened(arguments, keywords)
        if flat is None:
            self._doubts[value] += _REFUSED
            return None
        form, operands = flat
        recording = Recording(
            value,
            form,
            operands,
            looks_of(operands),
            aliasing(operands),
            self._surroundings.now(evaluator),
            len(evaluator.state.recorder.events),
            evaluator.state.recorder.refusals,
            evaluator.side_effects.count,
            len(evaluator.state.generators),
            evaluator.state.instruction_count,
            last_node(evaluator),
            evaluator.stack_trace(),
        )
        key = _key(recording)
        if self._doubts[key] >= _MAX_ALIKE_DOUBTS:
            return None
        for span in self._spans.get(key, ()):
            if _looks_alike(span, recording):
                result = _played(evaluator, span, recording)
                if result is not None:
                    self._doubts[value] = self._doubts[key] = 0
                    return result
        self._doubts[value] += 1
        self._doubts[key] += 1
        evaluator.state.recorder.open += 1
        return recording

    def end(self, evaluator: Evaluator, recording: Recording, result: Variable | None) -> None:
        """The call has been evaluated; ``result`` is None if it raised."""
        recorder = evaluator.state.recorder
        recorder.open -= 1
        span = None
        if result is not None and self._surroundings.now(evaluator) == recording.surroundings:
            span = _recorded(evaluator, recording, result)
        if not recorder.open:
            recorder.events.clear()
        if span is None:
            self._doubts[_key(recording)] += _REFUSED - 1
            return
        spans = self._spans.setdefault(_key(recording), [])
        spans.insert(0, span)
        del spans[_MAX_SPANS:]


def _key(recording: Recording) -> tuple[Any, ...]:
    """By what calls are found that may be alike: how arguments nest and look, and constants."""
    constants = [v.value for v in recording.operands if isinstance(v, ConstantVariable)]
    constants = [value for value in constants if type(value) in _HASHED]
    return recording.function, *recording.form, *map(type, constants), *constants, *recording.looks


def _may_be_played(evaluator: Evaluator) -> bool:
    """Whether nothing is at hand that a call's evaluation could be told apart by."""
    state, graph = evaluator.state, evaluator.graph
    return not (
        graph.is_in_region
        or graph.shapes.data
        or graph.transforms.active
        or state.overrides.modes
        or state.class_writes
        or state.written_globals()
        or state.made
        or evaluator.handled_exception() is not None
        or any(isinstance(v, CellVariable) for v in evaluator.side_effects.mutated_variables())
    )


def _looks_alike(span: Span, recording: Recording) -> bool:
    """Whether two calls are alike as far as their arguments say."""
    return (
        span.form == recording.form
        and span.looks == recording.looks
        and span.aliasing == recording.aliasing
        and span.surroundings == recording.surroundings
        and all(map(are_alike, span.operands, recording.operands))
        and _identities(span.operands) == _identities(recording.operands)
    )


def _identities(variables: Sequence[Variable]) -> list[int]:
    first: dict[int, int] = {}
    return [
        first.setdefault(id(variable), place)
        for place, variable in enumerate(variables)
        if not isinstance(variable, ConstantVariable)
    ]


# Recording.


def _recorded(evaluator: Evaluator, recording: Recording, result: Variable) -> Span | None:
    """The call as it may be played back; None where it did or gave what no other call can do so."""
    recorder, graph = evaluator.state.recorder, evaluator.graph
    if recorder.refusals != recording.refusals or not _may_be_played(evaluator):
        return None
    if evaluator.side_effects.count != recording.effects:
        return None
    generators = evaluator.state.generators[recording.generators :]
    if any(made.is_suspended() and exit_runs_code(made.frame) for made in generators):
        return None
    if looks_of(recording.operands) != recording.looks:
        return None
    events = recorder.events[recording.first_event :]
    operands = recording.operands
    read = [e.variable for e in events if isinstance(e, Wrapped) and e.variable is not None]
    mutated = {id(variable) for variable in evaluator.side_effects.mutated_variables()}
    if any(id(variable) in mutated for variable in (*operands, *read)):
        return None
    if any(isinstance(v, ModuleInstanceVariable) and not is_untouched_module(v) for v in operands):
        return None
    made = nodes_behind(evaluator, recording.last_node)
    nodes = own_nodes(made, operands, events, graph)
    if nodes is None:
        return None
    instructions = evaluator.state.instruction_count - recording.instructions
    if len(nodes) < _MIN_NODES and instructions < _MIN_INSTRUCTIONS:
        return None
    if not all(node.meta["stack_trace"].startswith(recording.trace) for node in nodes):
        return None
    if not is_result(result, set(nodes), [*operands, *read]):
        return None
    root = evaluator.state.root
    assert root is not None
    codes = dict(graph.inlined_at.get(root.index, {}))
    return Span(
        recording.function,
        recording.form,
        operands,
        recording.looks,
        recording.aliasing,
        recording.surroundings,
        events,
        nodes,
        result,
        written_tensors(nodes, events),
        recording.trace,
        codes,
    )


# Playing back.


def _played(evaluator: Evaluator, span: Span, recording: Recording) -> Variable | None:
    """What the call gives, made as the other call made it; None where it has to be evaluated."""
    try:
        matching = Matching(evaluator, span, recording.operands)
        variables = _with_objects(evaluator, span, matching, recording.operands)
        return _Player(evaluator, span, recording, variables).result()
    except Differs:
        return None


def _with_objects(
    evaluator: Evaluator, span: Span, matching: Matching, operands: list[Variable]
) -> dict[Variable, Variable]:
    """Read and guard what the call reads; which variable stands for which of the other call's."""
    recorder = evaluator.state.recorder
    variables = dict(zip(span.operands, operands, strict=True))
    repeats = False
    for event in span.events:
        if isinstance(event, (Identified, IdentifiedAt)):
            if recorder.open:
                recorder.events.append(event)
            continue
        source = event.source if matching.is_same else matching.source(event.source)
        is_new = source is not event.source
        if not event.is_nested:
            repeats = is_new and not (isinstance(event, Guarded) and not event.is_guard)
        if repeats and not event.is_nested:
            recorder.reason = event.reason
            try:
                if isinstance(event, Wrapped):
                    evaluator.builder.wrap(matching.value(source), source)
                else:
                    evaluator.guard(source, matching.predicate(event.predicate))
            finally:
                recorder.reason = None
        elif not repeats and recorder.open:
            recorder.events.append(_moved(event, source, matching))
        if isinstance(event, Wrapped) and is_new and isinstance(event.variable, TensorVariable):
            variables[event.variable] = _tensor(evaluator, event.variable, matching.value(source))
    if any(variables.get(variable, variable) is variable for variable in span.written):
        raise Differs  # it is no more what it was
    return variables


def _moved(event: Wrapped | Guarded, source: Any, matching: Matching) -> Wrapped | Guarded:
    """An event of the call for one of the other's."""
    if source is event.source:
        return event
    assert isinstance(event, Guarded)
    predicate = matching.predicate(event.predicate)
    return Guarded(source, predicate, event.is_nested, event.is_guard, event.reason)


def _tensor(evaluator: Evaluator, old: TensorVariable, value: Any) -> Variable:
    """The variable of a tensor that was read; :raises Differs: it is not like the other call's."""
    new = evaluator.builder.known(value)
    if type(new) is not type(old) or new.node.op != old.node.op:
        raise Differs
    if (
        look(new.fake)[:-1] != look(old.fake)[:-1]
    ):  # but for the version: the old may have been written to
        raise Differs
    return new


class _Player:
    """Makes the nodes of a call."""

    def __init__(
        self,
        evaluator: Evaluator,
        span: Span,
        recording: Recording,
        variables: dict[Variable, Variable],
    ) -> None:
        self._evaluator = evaluator
        self._span = span
        self._trace = recording.trace
        self._variables = variables
        self._nodes: dict[torch.fx.Node, torch.fx.Node] = {
            old.node: new.node
            for old, new in variables.items()
            if isinstance(old, TensorVariable) and isinstance(new, TensorVariable)
        }

    def result(self) -> Variable:
        """What the call gives."""
        evaluator, graph = self._evaluator, self._evaluator.graph
        made: list[torch.fx.Node] = []
        if self._span.nodes:
            graph.modes.before_operator()
        try:
            for node in self._span.nodes:
                made.append(self._again(graph, node))
        except (Differs, Unsupported):
            for node in reversed(made):
                graph.graph.erase_node(node)
            raise
        root = evaluator.state.root
        assert root is not None
        graph.inlined_at.setdefault(root.index, {}).update(self._span.codes)
        evaluator.note_handlers()
        return self._variable(self._span.result)

    def _again(self, graph: Graph, old: torch.fx.Node) -> torch.fx.Node:
        """The node for one of the other call's."""
        arguments = torch.fx.map_arg(old.args, self._node)
        keywords = torch.fx.map_arg(old.kwargs, self._node)
        value = self._value(graph, old, arguments, keywords)
        _require_alike(value, old.meta["example_value"])
        node = graph.node(self._evaluator, old.op, old.target, arguments, keywords)
        node.meta["stack_trace"] = self._trace + old.meta["stack_trace"][len(self._span.trace) :]
        node.meta["example_value"] = value
        self._nodes[old] = node
        return node

    def _value(self, graph: Graph, old: torch.fx.Node, arguments: Any, keywords: Any) -> Any:
        """What the node gives during capture."""
        given = _fakes(arguments)
        if old.target is operator.getitem and isinstance(given[0], (tuple, list)):
            return given[0][given[1]]
        named = {name: _fakes(value) for name, value in keywords.items()}
        value = graph.fake_result(self._evaluator, old.op, old.target, given, named)
        return (
            tuple(value) if isinstance(value, tuple) else value
        )  # whatever class of tuples it has

    def _node(self, old: torch.fx.Node) -> torch.fx.Node:
        return self._nodes.get(old, old)

    def _variable(self, old: Variable) -> Variable:
        known = self._variables.get(old)
        if known is not None:
            return known
        if isinstance(old, TupleVariable):
            return TupleVariable([self._variable(item) for item in old._items])
        if isinstance(old, TensorVariable) and old.node in self._nodes:
            node = self._nodes[old.node]
            made = TensorVariable(node, node.meta["example_value"], None)
            self._variables[old] = made
            return made
        return old


def _fakes(value: Any) -> Any:
    """Arguments of a node as they are given to fakes."""
    if isinstance(value, torch.fx.Node):
        return value.meta["example_value"]
    if isinstance(value, tuple):
        return tuple(map(_fakes, value))
    if isinstance(value, list):
        return [*map(_fakes, value)]
    if isinstance(value, slice):
        return slice(_fakes(value.start), _fakes(value.stop), _fakes(value.step))
    return value


def _require_alike(new: Any, old: Any) -> None:
    """:raises Differs: a node gives something else than the other call's."""
    ours, theirs = [*leaves(new)], [*leaves(old)]
    if type(new) is not type(old) or len(ours) != len(theirs):
        raise Differs
    for value, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            if not isinstance(value, torch.Tensor) or value.shape != other.shape:
                raise Differs
            if value.dtype != other.dtype or value.requires_grad != other.requires_grad:
                raise Differs
