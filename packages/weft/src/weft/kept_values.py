"""What entries of the program cache hold that pickle alone cannot say.

Operators and the captured module's tensors are kept by name.  Graphs are kept as their nodes; fake tensors as
their layouts and symbolic numbers as their expressions, both made anew in the capture that loads them.
"""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from weft_bytecode_capture import GradientRule
from weft_functionalize import FunctionalBackward, is_gradient_rule, storage_identity

from ._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    LazyGraphModule,
    OpOverload,
    expression_of,
    fake_tensor,
    symbolic_number,
)
from .allowed_values import allowed, check_named, expression_of_parts, expression_parts

MAX_CONSTANT = 1 << 20
"""Bytes of a tensor that belongs to the program, up to which it is kept in an entry."""

PLAIN_TYPES = frozenset(
    {str, int, float, bool, bytes, type(None), tuple, list, dict, torch.Size, torch.dtype}
)
"""Types that pickle writes as they are: most of what an entry is made of."""

_NAMED: tuple[type, ...] = (
    OpOverload,
    HigherOrderOperator,
    *SYMBOLIC_TYPES,
    FakeTensor,
    torch.Tensor,
    torch.memory_format,
    torch.layout,
    sympy.Basic,
    torch.fx.GraphModule,
)
"""Types of values that are written by their names or parts."""

KEPT_META = ("val", "gradients_disabled", "own_formula")
"""What nodes carry that is read when a program is made or run; the rest is for the stages before."""


def find_tensor(source: torch.fx.GraphModule, path: str) -> torch.Tensor:
    """The attribute ``path`` of ``source``; AttributeError where there is none."""
    found = _attribute(source, path)
    if not isinstance(found, torch.Tensor):
        raise AttributeError(f"{path} is no tensor")
    return found


class ValuePickler(pickle.Pickler):
    """Writes values of a program whose tensors ``lifted`` are attributes of ``source``, by their paths."""

    def __init__(
        self, file: io.BytesIO, source: torch.fx.GraphModule, lifted: Iterable[str]
    ) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        tensors = {path: find_tensor(source, path) for path in lifted}
        self._names = {id(tensor): path for path, tensor in tensors.items()}
        self._storages = {storage_identity(tensor) for tensor in tensors.values()}
        self._written: dict[Any, tuple[Any, ...]] = {}  # pickle writes the same object once
        self._families: dict[type, type | None] = {}

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """What stands for ``value``; raises PicklingError for a tensor that is not the program's own."""
        kind = type(value)
        if kind in PLAIN_TYPES or kind is NodeName:
            return None
        if kind not in self._families:
            self._families[kind] = next((f for f in _NAMED if issubclass(kind, f)), None)
        family = self._families[kind]
        if family is None:
            return ("rule", *parts_of_rule(value)) if is_gradient_rule(value) else None
        if family is OpOverload:
            return self._written.get(value) or self._again(value, ("operator", str(value)))
        if family is HigherOrderOperator:
            return "operator", f"higher_order.{value.name()}"
        if family in SYMBOLIC_TYPES:
            return "number", kind, expression_of(value)
        if family is FakeTensor:
            described = "fake tensor", *layout_of(value)
            if {*map(type, (*described[1], *described[2], described[3]))} <= {int}:
                return self._written.get(described) or self._again(described, described)
            return described
        if family is torch.Tensor:
            return self._tensor(value)
        if family is sympy.Basic:
            return "expression", *expression_parts(value)
        if family is torch.fx.GraphModule:
            return "graph", KeptGraph.of(value)
        return "format", str(value)  # which does not say where it is found

    def reducer_override(self, value: Any) -> Any:
        """Raises PicklingError where a reader would not take what ``value`` names.

        Members of enumerations are written by their values: CPython before 3.11.4 names ``getattr``.
        """
        if isinstance(value, enum.Enum):
            return type(value), (value.value,)
        check_named(value)
        return NotImplemented

    def _again(self, key: Any, described: tuple[Any, ...]) -> tuple[Any, ...]:
        """``described``, to be found by ``key`` where an equal value follows, as in layers alike."""
        self._written[key] = described
        return described

    def _tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        if id(value) in self._names:
            return "tensor", self._names[id(value)]
        if type(value) is not torch.Tensor or storage_identity(value) in self._storages:
            raise pickle.PicklingError(f"a {type(value).__name__} beside the lifted ones")
        if value.untyped_storage().nbytes() > MAX_CONSTANT:
            raise pickle.PicklingError("a large constant")
        if value.requires_grad:
            raise pickle.PicklingError("a constant with a gradient")
        return "constant", _bytes_of(value), *layout_of(value)


class ValueUnpickler(pickle.Unpickler):
    """Reads them for the captured graph ``source``; ``fake_mode`` is that of its fake tensors."""

    def __init__(
        self, file: io.BytesIO, source: torch.fx.GraphModule, fake_mode: FakeTensorMode | None
    ) -> None:
        super().__init__(file)
        self._source = source
        self._fake_mode = fake_mode

    def find_class(self, module: str, name: str) -> Any:
        """What an entry names; raises UnpicklingError for what it may not name."""
        return allowed(module, name)

    def persistent_load(self, name: tuple[Any, ...]) -> Any:
        """What ``name`` stands for here."""
        kind, *parts = name
        if kind == "tensor":
            return find_tensor(self._source, parts[0])
        if kind == "operator":
            return _attribute(torch.ops, parts[0])
        if kind == "graph":
            return parts[0].graph_module()
        if kind == "rule":
            return rule_of_parts(*parts)
        if kind == "format":
            return allowed(*parts[0].split("."))
        if kind == "expression":
            return expression_of_parts(*parts)
        if kind == "constant":
            return _constant(*parts)
        if self._fake_mode is None:
            raise pickle.UnpicklingError(f"a {kind} for a graph that has none")
        if kind == "number":
            return symbolic_number(self._fake_mode.shape_env, *parts)
        return fake_tensor(self._fake_mode, *parts)


def parts_of_rule(rule: Any) -> tuple[str, bool, FunctionalBackward]:
    """Name, whether once, and backward; raises PicklingError for one that :func:`rule_of_parts` refuses."""
    parts = rule.__name__, rule.once, rule.backward
    try:
        rule_of_parts(*parts)
    except pickle.UnpicklingError as error:
        raise pickle.PicklingError(str(error)) from error
    return parts


def rule_of_parts(name: Any, once: Any, backward: Any) -> GradientRule:
    """The rule again; its name has to be one, since torch prints graphs as source code."""
    is_name = isinstance(name, str) and name.isidentifier()
    is_backward = isinstance(backward, FunctionalBackward)
    if (
        not is_name
        or not is_backward
        or not isinstance(backward.graph_module, torch.fx.GraphModule)
    ):
        raise pickle.UnpicklingError(f"the gradients of {name!r}")
    return GradientRule(name, backward, once=bool(once))


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Size, stride, offset, dtype and device."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise pickle.PicklingError("a value that is not a plain strided tensor")
    size, stride = tuple(tensor.shape), tensor.stride()
    return size, stride, tensor.storage_offset(), tensor.dtype, tensor.device


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """A tensor's storage."""
    storage = tensor.untyped_storage()
    return bytes(
        torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().numpy()
    )


def _constant(
    content: bytes, size: Any, stride: Any, offset: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    storage = torch.tensor(bytearray(content), dtype=torch.uint8, device=device).untyped_storage()
    return torch.empty(0, dtype=dtype, device=device).set_(storage, offset, size, stride)


def _attribute(root: Any, path: str) -> Any:
    found = root
    for name in path.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True)
class NodeName:
    """A node as an argument of another."""

    name: str


@dataclass(frozen=True)
class KeptGraph:
    """The nodes of a graph module, in order, and what its ``get_attr`` nodes name."""

    class_name: str
    nodes: tuple[tuple[Any, ...], ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, graph_module: torch.fx.GraphModule) -> KeptGraph:
        graph = graph_module.graph
        names = {node: NodeName(node.name) for node in graph.nodes}
        targets = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        return cls(
            type(graph_module).__name__,
            tuple(_kept_node(node, names) for node in graph.nodes),
            {target: _attribute(graph_module, target) for target in sorted(targets)},
        )

    def graph_module(self) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        nodes: dict[str, torch.fx.Node] = {}

        def node_of(argument: Any) -> Any:
            return nodes[argument.name] if isinstance(argument, NodeName) else argument

        for op, name, target, args, kwargs, meta in self.nodes:
            args, kwargs = torch.fx.node.map_aggregate((args, kwargs), node_of)
            node = nodes[name] = graph.create_node(op, target, args, kwargs, name)
            node.meta.update(meta)
            if op == "get_attr":
                node.meta["val"] = self.attributes[target]
        return LazyGraphModule(self.attributes, graph, self.class_name)


def _kept_node(node: torch.fx.Node, names: Mapping[torch.fx.Node, Any]) -> tuple[Any, ...]:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), names.__getitem__)
    meta = {key: node.meta[key] for key in KEPT_META if key in node.meta and node.op != "get_attr"}
    return node.op, node.name, node.target, args, kwargs, meta
