"""Programs' descriptions as JSON: numbers, texts, containers, the stages' dataclasses by name.

A value that JSON has not is ``[kind, ...]``.  Types are named, and only those of plain data
(:mod:`.allowed_values`): reading makes their values field by field and calls nothing that a file names.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import sympy
import torch

from ._torch import HigherOrderOperator, OpOverload
from .allowed_values import allowed, expression_of_parts, expression_parts

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
    if isinstance(value, torch.Tensor):
        return ["tensor", tensor(value)]
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


def _name_of(kind: type) -> tuple[str, str]:
    name = kind.__module__, kind.__qualname__
    try:
        allowed(*name)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise NotPlain(f"a {kind.__qualname__}") from error
    return name


def decode(encoded: Encoded, tensor: Callable[[Any], torch.Tensor]) -> Any:
    """The value again; ``tensor`` gives the tensor that something stands for.

    :raises NotPlain: it is nothing that :func:`encode` gives.
    """
    try:
        return _decode(encoded, tensor)
    except NotPlain:
        raise
    except (
        pickle.UnpicklingError, AttributeError, ImportError, LookupError, TypeError, ValueError,
        RuntimeError,
    ) as error:  # fmt: skip
        raise NotPlain(f"{type(error).__name__}: {error}") from error


def _decode(encoded: Encoded, tensor: Callable[[Any], torch.Tensor]) -> Any:
    if not isinstance(encoded, list):
        if isinstance(encoded, dict):
            raise NotPlain("a mapping by itself")
        return encoded
    kind, *parts = encoded

    def inner(part: Encoded) -> Any:
        return _decode(part, tensor)

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
    raise NotPlain(f"no such kind: {kind!r}")


_CONTAINERS: dict[str, Callable[..., Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "Size": torch.Size,
}
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
