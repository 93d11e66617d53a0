"""What a user can do so that a guard does not fail again: one rule a kind of predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .computations import IsComputable, IsFinite, NumbersCompare
from .guard import Guard
from .overlap import StoragesApart, StorageShared
from .predicates import (
    DictContains,
    DictKeysAre,
    EqualsConstant,
    GlobalStateIs,
    HasAttribute,
    IsObject,
    LengthIs,
    NotAliased,
    Predicate,
    SameObject,
    TensorMatches,
    TypeIs,
)
from .relations import ShapeRelation
from .sources import InstanceDictSource

_MISSING = object()

_TENSOR_HINTS: dict[str, str] = {
    "number of dimensions": "give it the same number of dimensions in every call",
    "size": (
        "mark the dimension with weft.mark_dynamic(tensor, dim) before the first call; without a mark a size "
        "is taken as it comes from its first change on"
    ),
    "stride": "make it contiguous, or lay it out alike, before the call",
    "dtype": "convert it to one dtype before the call",
    "device": "keep it on one device, or compile a function for each",
    "requires_grad": "call with requires_grad set alike, or detach it before the call",
    "is_inference()": "make it always inside, or always outside, torch.inference_mode()",
}


def _tensor_hint(guard: Guard, value: Any) -> str | None:
    assert isinstance(guard.predicate, TensorMatches)
    if not isinstance(value, torch.Tensor):
        return f"always pass a tensor as {guard.source.name()}"
    for what, _, _ in guard.predicate.expected.differences(value):
        if what in _TENSOR_HINTS:
            return _TENSOR_HINTS[what]
    return None


def _constant_hint(guard: Guard, value: Any) -> str | None:
    if type(value) in (int, float):
        kind = "integer" if type(value) is int else "finite float"
        return (
            f"nothing, mostly: once it has changed, code takes any {kind}, unless the program needs this "
            "very one or was compiled with dynamic=False"
        )
    if isinstance(guard.source, InstanceDictSource) and guard.source.key == "training":
        return "call train() and eval() rarely; each mode is compiled once"
    return "keep it the same between calls, or read it outside the compiled function"


def _identity_hint(guard: Guard, value: Any) -> str | None:
    if callable(value):
        return (
            "make the function, class or module once, outside the loop that calls the compiled one"
        )
    return "pass the same object in every call"


def _relation_hint(guard: Guard, value: Any) -> str:
    return "keep sizes and numbers in this relation, or change the line that needs it"


_HINTS: dict[type[Predicate], Callable[[Guard, Any], str | None]] = {
    TensorMatches: _tensor_hint,
    EqualsConstant: _constant_hint,
    IsObject: _identity_hint,
    TypeIs: lambda guard, value: "pass values of one type",
    LengthIs: lambda guard, value: "keep its length; each length is compiled for itself",
    DictKeysAre: lambda guard, value: "keep its keys and their order",
    DictContains: lambda guard, value: "set the key before the first call",
    HasAttribute: lambda guard, value: "set the attribute before the first call",
    GlobalStateIs: lambda guard, value: (
        "call with the same grad mode, autocast, default dtype and determinism"
    ),
    SameObject: lambda guard, value: "pass one object for both, as in the first call",
    **dict.fromkeys((ShapeRelation, NumbersCompare, IsComputable), _relation_hint),
    IsFinite: lambda guard, value: "pass a finite float; each other one is compiled for itself",
    StoragesApart: lambda guard, value: (
        "pass copies where an input that is written to shares memory with another one"
    ),
    StorageShared: lambda guard, value: (
        "pass parts of one tensor that lie alike in every call, or copies where one of them is written to"
    ),
    NotAliased: lambda guard, value: "pass two objects, as in the first call",
}


def hint_for(guard: Guard, value: Any = _MISSING) -> str | None:
    """What would keep ``guard`` from failing on ``value``; None when nothing general can be said.

    ``value`` is what is at the guard's source now; leave it out when nothing is there.
    """
    make = _HINTS.get(type(guard.predicate))
    if make is None or value is _MISSING:
        return None
    return make(guard, value)
