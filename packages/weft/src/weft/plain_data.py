"""Programs' descriptions as JSON: numbers, texts, containers, the stages' dataclasses by name.

A value that JSON has not is ``[kind, ...]``.  Types are named, and only those of plain data
(:mod:`.allowed_values`): reading makes their values field by field and calls nothing that a file names.
Graphs are their nodes (:mod:`.kept_values`); torch prints source code of these, so that only names are texts.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import pickle
import types
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.immutable_collections import immutable_list
from weft_bytecode_capture import GradientRule
from weft_functionalize import is_gradient_rule

from ._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    environment_of,
    expression_of,
    fake_tensor,
    symbolic_number,
)
from .allowed_values import allowed, expression_of_parts, expression_parts
from .kept_values import KeptGraph, NodeName, layout_of, parts_of_rule, rule_of_parts

Encoded = Any
"""What ``json`` writes as it is."""


class NotPlain(Exception):
    """A value that has no form as plain data, or a text that is none of it."""


def encode(value: Any, tensor: Callable[[torch.Tensor], Encoded]) -> Encoded:
    """``value`` for JSON; ``tensor`` gives what stands for a tensor.

    :raises NotPlain: something in it is not plain data.
    """

    def inner(part: Any) -> Encoded:
        return encode(part, tensor)

    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if abs(value) < 1 << 53 else ["int", str(value)]
    if type(value) is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, FakeTensor):
        return ["fake", *map(inner, layout_of(value))]
    if isinstance(value, torch.Tensor):
        return ["tensor", tensor(value)]
    if isinstance(value, SYMBOLIC_TYPES):
        return ["number", type(value).__name__, inner(expression_of(value))]
    if isinstance(value, torch.fx.GraphModule):
        return ["graph", inner(KeptGraph.of(value))]
    if is_gradient_rule(value):
        try:
            return ["rule", *map(inner, parts_of_rule(value))]
        except pickle.PicklingError as error:
            raise NotPlain(str(error)) from error
    if isinstance(value, types.BuiltinFunctionType | types.FunctionType):
        return ["function", *_name_of(value)]
    if isinstance(value, OpOverload):
        return ["operator", str(value)]
    if isinstance(value, HigherOrderOperator):
        return ["operator", f"higher_order.{value.name()}"]
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if isinstance(value, sympy.Basic):
        try:
            kind, *parts = expression_parts(value)
        except pickle.PicklingError as error:
            raise NotPlain(str(error)) from error
        return ["expression", kind, *map(inner, parts)]
    if isinstance(value, enum.Enum):
        return ["enum", *_name_of(type(value)), value.name]
    if isinstance(value, immutable_list):
        return ["list", *map(inner, value)]
    for kind in (torch.Size, list, tuple, frozenset, set):
        if type(value) is kind:
            return [kind.__name__, *map(inner, value)]
    if isinstance(value, dict):
        return ["dict", *([inner(key), inner(part)] for key, part in value.items())]
    if isinstance(value, slice):
        return ["slice", inner(value.start), inner(value.stop), inner(value.step)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ["named tuple", *_name_of(type(value)), *map(inner, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: inner(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return ["data", *_name_of(type(value)), fields]
    raise NotPlain(f"a {type(value).__qualname__}")


def _name_of(kind: Callable[..., Any]) -> tuple[str, str]:
    name = kind.__module__, kind.__qualname__
    try:
        allowed(*name)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise NotPlain(f"a {kind.__qualname__}") from error
    return name


def decode(
    encoded: Encoded,
    tensor: Callable[[Any], torch.Tensor],
    fake_mode: Callable[[], FakeTensorMode] | None = None,
) -> Any:
    """The value again; ``tensor`` gives the tensor that something stands for.

    ``fake_mode`` gives that of the fake tensors and symbolic numbers in it, if there are any.

    :raises NotPlain: it is nothing that :func:`encode` gives.
    """
    try:
        return _decode(encoded, tensor, fake_mode)
    except NotPlain:
        raise
    except (
        pickle.UnpicklingError, AttributeError, ImportError, LookupError, TypeError, ValueError,
        RuntimeError, AssertionError,
    ) as error:  # fmt: skip
        raise NotPlain(f"{type(error).__name__}: {error}") from error


def _decode(
    encoded: Encoded,
    tensor: Callable[[Any], torch.Tensor],
    fake_mode: Callable[[], FakeTensorMode] | None,
) -> Any:
    if not isinstance(encoded, list):
        if isinstance(encoded, dict):
            raise NotPlain("a mapping by itself")
        return encoded
    kind, *parts = encoded

    def inner(part: Encoded) -> Any:
        return _decode(part, tensor, fake_mode)

    if kind in _CONTAINERS:
        return _CONTAINERS[kind](map(inner, parts))
    if kind == "dict":
        return {inner(key): inner(value) for key, value in parts}
    if kind == "data":
        return _data(allowed(parts[0], parts[1]), {k: inner(v) for k, v in parts[2].items()})
    if kind == "tensor":
        return tensor(parts[0])
    if kind == "expression":
        return expression_of_parts(parts[0], *map(inner, parts[1:]))
    if kind == "enum":
        found = allowed(parts[0], parts[1])
        return found[parts[2]]
    if kind == "named tuple":
        return allowed(parts[0], parts[1])(*map(inner, parts[2:]))
    if kind == "operator":
        found = operator.attrgetter(parts[0])(torch.ops)
        if not isinstance(found, OpOverload | HigherOrderOperator):
            raise NotPlain(f"{parts[0]} is no operator")
        return found
    if kind == "torch":
        return allowed("torch", parts[0])
    if kind in _NUMBERS:
        return _NUMBERS[kind](parts[0])
    if kind == "device":
        return torch.device(str(parts[0]))
    if kind == "slice":
        return slice(*map(inner, parts))
    if kind == "graph":
        return _graph(inner(parts[0]))
    if kind == "rule":
        return rule_of_parts(*map(inner, parts))
    if kind == "function":
        return allowed(parts[0], parts[1])
    if kind in ("fake", "number") and fake_mode is not None:
        if kind == "fake":
            return fake_tensor(fake_mode(), *map(inner, parts))
        return symbolic_number(environment_of(fake_mode()), _SYMBOLIC[parts[0]], inner(parts[1]))
    raise NotPlain(f"no such kind: {kind!r}")


_CONTAINERS: dict[str, Callable[..., Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "Size": torch.Size,
}
_SYMBOLIC = {kind.__name__: kind for kind in SYMBOLIC_TYPES}
_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}


def _data(kind: Any, fields: dict[str, Any]) -> Any:
    """A dataclass's value with these fields; nothing of its own runs."""
    if not dataclasses.is_dataclass(kind) or {f.name for f in dataclasses.fields(kind)} != set(
        fields
    ):
        raise NotPlain(f"no {getattr(kind, '__qualname__', kind)} of this version")
    made = object.__new__(kind)  # type: ignore[arg-type]
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


_OPERANDS = (
    bool, int, float, complex, str, type(None), NodeName, torch.dtype, torch.device, torch.layout,
    torch.memory_format, *SYMBOLIC_TYPES,
)  # fmt: skip
_CONTAINERS_OF_OPERANDS = (list, tuple, dict, slice, torch.Size)


def _graph(kept: Any) -> torch.fx.GraphModule:
    """The graph of nodes whose names are names, and whose targets are operators."""
    if not isinstance(kept, KeptGraph) or not kept.class_name.isidentifier():
        raise NotPlain("a graph that is none")
    for op, name, target, *arguments, meta in kept.nodes:
        if op == "call_function":
            is_known = isinstance(target, OpOverload | HigherOrderOperator | types.FunctionType)
            is_known = is_known or isinstance(target, types.BuiltinFunctionType | GradientRule)
        else:
            is_known = op in ("placeholder", "get_attr", "output") and _is_path(target)
        if not is_known or not _is_path(name) or type(meta) is not dict:
            raise NotPlain(f"a node {op!r} of {target!r}")
        _require_operands(arguments)
    if not all(_is_path(name) for name in kept.attributes):
        raise NotPlain("a graph's attribute without a name")
    return kept.graph_module()


def _is_path(name: Any) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _require_operands(value: Any) -> None:
    if type(value) in _CONTAINERS_OF_OPERANDS:
        parts: Any = value
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
        for part in parts:
            _require_operands(part)
    elif type(value) not in _OPERANDS:
        raise NotPlain(f"a node with a {type(value).__name__}")
