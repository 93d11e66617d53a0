"""What the state of a variable is: everything that its class keeps, however deep, as tuples that compare.

A variable's class has nothing to say.  Its attributes are walked: lists, dicts and sets, closures of its
steps, helper objects, the frame of a suspended generator.  What is left are references to other variables,
which have states of their own, and objects that evaluation does not change: nodes, sources, the user's own.
"""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Iterator
from types import NoneType
from typing import Any

import torch
import torch.fx

from ...._torch.fakes import FakeTensor
from ...graph.storages import Layout
from ...models.containers.list_forms import ListForm
from ...models.iterators.generators import GeneratorVariable
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.keys import HashedKey

_NOTES = frozenset({"version", "_has_no_finalizers", "_made", "loaded_instead", "created_at"})
"""Attributes that are notes of the evaluator about an object, beside what the object is."""

_REAL = frozenset({"original", "_dictionary", "value", "unread", "_unread"})
"""Attributes that are the program's own objects, which no evaluation changes: known by identity."""

_WHOLE = frozenset({NoneType, bool, int, float, str, torch.fx.Node, FakeTensor})
"""Classes of most of what is met that has no parts, which is asked nothing else."""

_BUFFERS = (bytearray, memoryview, array.array)
_OWN = f"{__name__.split('.')[0]}."
_HELPERS = (f"{_OWN}symbolic.models.", f"{_OWN}symbolic.variables.")

FRAME_STATE = (
    "next_index", "finished", "suspended", "result", "handled", "function", "stack", "locals", "cells",
)  # fmt: skip
"""What a suspended frame goes on with."""


def owned_attributes(variable: Variable) -> list[tuple[Any, dict[str, Any]]]:
    """The objects that a variable's state is kept in, each with its attributes by name, as they are."""
    found = {name: value for name, value in vars(variable).items() if name not in _NOTES}
    if not isinstance(variable, GeneratorVariable):
        return [(variable, found)]
    frame = found.pop("frame")
    return [(variable, found), (frame, {name: getattr(frame, name) for name in FRAME_STATE})]


def attributes(variable: Variable) -> dict[str, Any]:
    """What a variable's state is made of, by name, as it is."""
    (_, found), *frames = owned_attributes(variable)
    return {**found, **{f"frame.{name}": value for _, f in frames for name, value in f.items()}}


def frozen_state(variable: Variable) -> dict[str, Any]:
    """A copy of what the object is, for :func:`is_same`."""
    found = {
        name: value if name in _REAL or type(value) in _WHOLE else _frozen(value, ())
        for name, value in attributes(variable).items()
    }
    fake, element = found.get("fake"), found.get("element")
    if isinstance(fake, torch.Tensor):
        found["layout"] = Layout(fake)
        found["element"] = element is not None and element.is_put_back
    return found


def held_variables(variable: Variable) -> Iterator[Variable]:
    """The variables to which an object leads directly."""
    for name, value in attributes(variable).items():
        if name not in _REAL and type(value) not in _WHOLE:
            yield from variables_in(value)


def variables_in(value: Any) -> Iterator[Variable]:
    """The variables in lists, dicts, closures and helper objects."""
    pending, seen = [value], set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, Variable):
            yield value
        elif isinstance(value, HashedKey):
            pending.append(value.variable)
        elif id(value) not in seen:
            seen.add(id(value))
            pending += inner_parts(value) or ()
            if isinstance(value, dict):
                pending += value


def inner_parts(value: Any) -> tuple[Any, ...] | None:
    """What an object of the evaluator's is made of; None for one that it does not change."""
    kind = type(value)
    if kind in _WHOLE:
        return None
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return tuple(value)
    if isinstance(value, ListForm):
        return value.state()
    if isinstance(value, _BUFFERS):
        return (bytes(value),)
    if kind is functools.partial:
        return value.func, *value.args, *value.keywords.values()
    if kind in (types.MethodType, types.BuiltinMethodType):
        return (value.__self__,)
    if kind is types.FunctionType:
        is_own = value.__module__.startswith(_OWN)
        return tuple(map(_contents, value.__closure__ or ())) if is_own else None
    if kind.__module__.startswith(_HELPERS) and kind is not HashedKey:
        slots = (getattr(value, name, None) for name in getattr(kind, "__slots__", ()))
        return *getattr(value, "__dict__", {}).values(), *slots
    return None


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _frozen(value: Any, around: tuple[int, ...]) -> Any:
    """A copy of an object of the evaluator's, of tuples; ``around`` are those that it is inside."""
    if isinstance(value, Variable) or id(value) in around:
        return value
    inner = inner_parts(value)
    if inner is None:
        return value
    around = (*around, id(value))
    copies = tuple(_frozen(part, around) for part in inner)
    return (*value, *copies) if isinstance(value, dict) else copies


def is_same(left: Any, right: Any) -> bool:
    """Whether two copies are of one state."""
    if left is right:
        return True
    if isinstance(left, (int, str, bytes, Layout)):
        return type(left) is type(right) and bool(left == right)
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = ((value, right.get(name)) for name, value in left.items())
        return left.keys() == right.keys() and all(x is y or is_same(x, y) for x, y in pairs)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable):
        first, second = left.value, right.value
        return isinstance(first, (int, str, bytes)) and is_same(first, second)
    return False
