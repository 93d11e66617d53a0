"""Nodes of the captured graph that look like nodes before, as in layers alike: what these became is repeated.

Running a node takes torch's own decomposition and all that is asked of each operator on its way.  Where
nothing is differentiated, what comes of that depends on how the node's arguments look and on torch's
settings.  So the operators that the first such node was recorded as are recorded for the next one too, on its
arguments, and only their results on fake tensors are made anew.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ._torch import FakeTensor, FakeTensorMode, OpOverload, is_innermost, without_innermost_mode
from .tensor_ssa.functional_counterparts import written_arguments

if TYPE_CHECKING:
    from .aten_recorder import AtenRecorder

aten = torch.ops.aten


@dataclass(frozen=True)
class _Slot:
    """In place of a tensor: one of the arguments' and, behind them, of those that were computed."""

    number: int


@dataclass(frozen=True)
class _Step:
    """One recorded call, with slots in place of tensors; its result has the next slot."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class _Recording:
    """What a node became: ``result`` has slots in place of tensors."""

    steps: tuple[_Step, ...]
    result: Any


class RepeatedNodes:
    """What the nodes of one captured graph became in ``recorder``, by how they look."""

    def __init__(self, recorder: AtenRecorder) -> None:
        self._recorder = recorder
        self._known: dict[tuple[Any, ...], _Recording | None] = {}

    def result(
        self,
        node: torch.fx.Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """What ``node`` gives for values of the recorder, by ``run`` if none like it came before."""
        if node.op != "call_method" and not _only_computes(node.target):
            self._known.clear()  # it may change torch's settings
            return run()
        looks = _Looks(self._recorder)
        if not self._records_plainly() or not looks.add_call(node, args, kwargs):
            return run()
        key = tuple(looks.parts)
        if key in self._known:
            recording = self._known[key]
            return run() if recording is None else self._again(recording, looks.tensors)
        before = _Extent.of(self._recorder)
        result = run()
        if not isinstance(result, (torch.Tensor, tuple, list)):
            self._known.clear()  # as for a setting that is written in C++
            return result
        self._known[key] = _recording(before, self._recorder, looks.tensors, result)
        return result

    def _records_plainly(self) -> bool:
        """Whether operators are recorded by what they are alone."""
        return not (
            self._recorder.with_gradients
            or torch.is_grad_enabled()
            or torch.is_inference_mode_enabled()
            or any(map(torch.is_autocast_enabled, _AUTOCAST_DEVICES))
            or not is_innermost(self._recorder)
        )

    def _again(self, recording: _Recording, tensors: Sequence[torch.Tensor]) -> Any:
        """Record ``recording`` on other ``tensors``."""
        recorder = self._recorder
        values: list[Any] = list(tensors)
        nodes: list[Any] = [recorder.node_of(tensor) for tensor in tensors]
        with without_innermost_mode():
            for step in recording.steps:
                args, at = _filled(step.args, values), _filled(step.args, nodes)
                kwargs = named = step.kwargs
                if kwargs:
                    kwargs, named = _filled(kwargs, values), _filled(named, nodes)
                if step.target is operator.getitem:
                    value = args[0][args[1]]
                else:
                    value = step.target(*args, **kwargs)
                values.append(value)
                nodes.append(recorder.append_call(step.target, at, named, value))
        return _filled(recording.result, values)


class _Looks:
    """All of a call that its recording depends on: ``parts``, and the ``tensors`` in it, each once."""

    def __init__(self, recorder: AtenRecorder) -> None:
        self._recorder = recorder
        self.parts: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self._slots: dict[int, int] = {}

    def add_call(
        self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Add a node's call; False where more than can be compared is of influence."""
        self.parts += (node.op, node.target)
        return self._add(args) and self._add(kwargs)

    def _add(self, value: Any) -> bool:
        kind = type(value)
        if kind is FakeTensor:
            return self._add_tensor(value)
        if kind in _PLAIN:
            self.parts += (kind, value)
        elif kind is float:
            self.parts += (kind, repr(value))  # 0.0 and -0.0 are equal
        elif kind in (tuple, list, torch.Size):
            self.parts += (kind, len(value))
            return all(map(self._add, value))
        elif kind is dict:
            self.parts += (kind, *value)
            return all(map(self._add, value.values()))
        elif kind is slice:
            self.parts.append(kind)
            return all(map(self._add, (value.start, value.stop, value.step)))
        else:
            return False
        return True

    def _add_tensor(self, tensor: FakeTensor) -> bool:
        slot = self._slots.get(id(tensor))
        if slot is None:
            if not self._recorder.has_recorded(tensor):
                return False
            look = _look(tensor, self._recorder.fake_mode)
            if look is None or not tensor.dim():  # which may be a number that torch has wrapped
                return False
            slot = self._slots[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.parts += look
        self.parts += (FakeTensor, slot)
        return True


def _look(tensor: Any, mode: FakeTensorMode) -> tuple[Any, ...] | None:
    """All that tells one tensor from others; None for one that is more than a part of a storage."""
    if type(tensor) is not FakeTensor or tensor.fake_mode is not mode:
        return None
    if tensor.layout is not torch.strided or tensor.constant is not None or tensor.requires_grad:
        return None
    if tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return None
    numbers = *tensor.shape, *tensor.stride(), tensor.storage_offset()
    if any(type(number) is not int for number in numbers):
        return None
    return tensor.dtype, tensor.fake_device, tensor.dim(), *numbers


@dataclass(frozen=True)
class _Extent:
    """How far ``recorder`` has got."""

    last: torch.fx.Node | None
    nodes: int
    inputs: int

    @classmethod
    def of(cls, recorder: AtenRecorder) -> _Extent:
        nodes = recorder.graph.nodes
        last = next(iter(reversed(nodes)), None)
        return cls(last, len(nodes), len(recorder.inputs))

    def since(self, recorder: AtenRecorder) -> list[torch.fx.Node] | None:
        """The nodes that have come behind; None if something else has changed too."""
        if self.last is None or self.inputs != len(recorder.inputs):
            return None
        count = len(recorder.graph.nodes) - self.nodes
        added: list[torch.fx.Node] = []
        for _ in range(count):
            added.append((added[-1] if added else self.last).next)
        return added if _ends(recorder.graph, added, self.last) else None


def _ends(graph: torch.fx.Graph, added: Sequence[torch.fx.Node], last: torch.fx.Node) -> bool:
    """Whether the graph ends with ``added``, or else with the node that was its last."""
    return next(iter(reversed(graph.nodes))) is (added[-1] if added else last)


def _recording(
    before: _Extent, recorder: AtenRecorder, tensors: Sequence[torch.Tensor], result: Any
) -> _Recording | None:
    """What has been recorded since, of ``tensors``; None if repeating that takes more."""
    added = before.since(recorder)
    if added is None:
        return None
    slots = {recorder.node_of(tensor): _Slot(k) for k, tensor in enumerate(tensors)}
    of_values = {id(tensor): _Slot(k) for k, tensor in enumerate(tensors)}
    steps = []
    for node in added:
        if not _is_repeatable(node, recorder.fake_mode) or not slots.keys() >= {
            *node.all_input_nodes
        }:
            return None
        args, kwargs = _mapped((node.args, dict(node.kwargs)), torch.fx.Node, slots.__getitem__)
        steps.append(_Step(node.target, args, kwargs))  # type: ignore[arg-type]
        slots[node] = _Slot(len(slots))
        of_values[id(node.meta["val"])] = slots[node]
    found = list(_leaves(result))
    if len(slots) < len(tensors) + len(added) or not all(id(value) in of_values for value in found):
        return None
    if type(result) in (tuple, list):
        return _Recording(tuple(steps), type(result)(of_values[id(value)] for value in result))
    return _Recording(tuple(steps), of_values[id(result)])


def _leaves(result: Any) -> Iterator[Any]:
    return iter(result if type(result) in (tuple, list) else (result,))


def _is_repeatable(node: torch.fx.Node, mode: FakeTensorMode) -> bool:
    """Whether a recorded node is a call that gives new tensors, or views, by its arguments alone."""
    if not node.meta.keys() <= _REPEATED_META:
        return False
    value = node.meta["val"]
    if node.target is operator.getitem:
        return _look(value, mode) is not None
    if not isinstance(node.target, OpOverload) or node.target.namespace not in _NAMESPACES:
        return False
    if node.target is aten.detach.default or written_arguments(node.target):
        return False
    return all(_look(item, mode) is not None for item in _leaves(value))


def _only_computes(function: Any) -> bool:
    """Whether a call of it does no more than give a result, by its arguments and torch's settings."""
    if isinstance(function, OpOverload):
        return function.namespace in _NAMESPACES
    return isinstance(function, _NATIVE) or getattr(function, "__module__", None) in _FUNCTIONS


def _filled(value: Any, by_slot: Sequence[Any]) -> Any:
    """``value`` with what ``by_slot`` has in the places of slots."""
    return _mapped(value, _Slot, lambda slot: by_slot[slot.number])


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """``value`` with ``function`` applied to what is of ``kind`` in it, in plain lists, tuples and dicts."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        plain = list if isinstance(value, list) else tuple
        return plain(_mapped(item, kind, function) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, kind, function) for key, item in value.items()}
    return value


_AUTOCAST_DEVICES = ("cpu", "cuda")

_NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
"""Functions without Python of their own, which could do more than give a result."""

_FUNCTIONS = frozenset({"torch.functional", "torch.nn.functional"})
"""Modules whose functions in Python do no more either."""

_NAMESPACES = frozenset({"aten", "prims"})

_PLAIN = frozenset(
    {int, bool, str, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of values that are compared by their value."""

_REPEATED_META = frozenset({"val", "stack_trace", "nn_module_stack"})
"""What every recorded node has, or has from the node that it comes from."""
