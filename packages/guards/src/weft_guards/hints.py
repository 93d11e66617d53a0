"""What a user can do so that a guard does not fail again: one rule a kind of predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .guard import Guard
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
from .sources import ArgumentSource, InstanceDictSource, ItemSource, Source

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
    if type(value) is int:
        return (
            "nothing, mostly: once it has changed, code takes any integer, unless the program needs this "
            "very one or was compiled with dynamic=False"
        )
    if type(value) is float and _is_passed(guard.source):
        return "pass it as a tensor of no dimensions (torch.tensor(value)) if it changes often"
    if isinstance(guard.source, InstanceDictSource) and guard.source.key == "training":
        return "call train() and eval() rarely; each mode is compiled once"
    if type(value) is float:
        return "keep a number that changes between calls in a tensor, and update it in place"
    return "keep it the same between calls, or read it outside the compiled function"


def _identity_hint(guard: Guard, value: Any) -> str | None:
    if callable(value):
        return (
            "make the function, class or module once, outside the loop that calls the compiled one"
        )
    return "pass the same object in every call"


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
    ShapeRelation: lambda guard, value: (
        "keep sizes and numbers in this relation, or change the line that needs it"
    ),
    NotAliased: lambda guard, value: "pass two objects, as in the first call",
}


def _is_passed(source: Source) -> bool:
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, ArgumentSource)


def hint_for(guard: Guard, value: Any = _MISSING) -> str | None:
    """What would keep ``guard`` from failing on ``value``; None when nothing general can be said.

    ``value`` is what is at the guard's source now; leave it out when nothing is there.
    """
    make = _HINTS.get(type(guard.predicate))
    if make is None or value is _MISSING:
        return None
    return make(guard, value)
