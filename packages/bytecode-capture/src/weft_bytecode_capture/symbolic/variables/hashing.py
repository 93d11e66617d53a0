"""Keys of dicts and members of sets: variables that compare as Python's keys do."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Collection
from typing import Any

from weft_guards import IsObject

from ...code_objects.dialects import DIALECT
from ..captured_exception import CapturedException
from ..policy import is_of_library
from ..protocol import Evaluator
from .base import Variable
from .keys import HashedKey, Identity
from .operations import guard_distinct
from .python_protocols import find_raw, full_name


def is_silent(kind: type) -> bool:
    """Whether hashing and comparing instances of a class runs no code that a user wrote.

    Methods written in C, those of a library's classes, and those that the dataclasses module writes.
    """
    return all(_method_is_silent(find_raw(kind, name)) for name in ("__hash__", "__eq__"))


def _method_is_silent(method: Any) -> bool:
    if isinstance(method, types.FunctionType):
        written = is_of_library(method.__module__)
        return written or method.__code__.co_filename == "<string>"
    return type(method).__module__ == "builtins"


def are_silent(values: Collection[Any]) -> bool:
    """Whether hashing and comparing these objects as keys runs no code that a user wrote."""
    kinds = set(map(type, values))
    if not all(map(is_silent, kinds)):
        return False
    if kinds.isdisjoint(_NESTED):
        return True
    nested = (value for value in values if type(value) in _NESTED)
    return are_silent(list(itertools.chain.from_iterable(nested)))


_NESTED = (tuple, frozenset)


def hashed_key(evaluator: Evaluator, variable: Variable) -> HashedKey:
    """The key that a variable is; TypeError in the captured program if it has no hash.

    A container is built again after the graph, which hashes and compares its keys: only methods that
    nobody can see running may do that.
    """
    if variable.is_constant():
        value = variable.as_constant()
        evaluator.pure(hash, value)
        return HashedKey(variable, (value,))
    return variable.hashed_key(evaluator)


def element_key(evaluator: Evaluator, variable: Variable) -> HashedKey:
    """The key that a variable is in a set."""
    return _key_of(evaluator, variable, "a set element")


def entry_key(evaluator: Evaluator, variable: Variable) -> HashedKey:
    """The key that a variable is in a dict."""
    return _key_of(evaluator, variable, "a dict key")


def _key_of(evaluator: Evaluator, variable: Variable, role: str) -> HashedKey:
    if not DIALECT.key_errors_say_where:
        return hashed_key(evaluator, variable)
    try:
        return hashed_key(evaluator, variable)
    except CapturedException as error:
        raised = error.exception
        if raised.kind is not TypeError:
            raise
        kind = full_name(variable.python_type())
        text = raised.builtin_text(evaluator, "__str__")
        evaluator.raise_error(TypeError, f"cannot use {kind!r} as {role} ({text})")


KeyOf = Callable[["Evaluator", Variable], HashedKey]
"""Gives the key that a variable is, as ``hashed_key`` does."""


def identity_key(variable: Variable, value: Any) -> HashedKey:
    """The key of an object that is hashed by identity: ``value`` is it, None if it is new."""
    return HashedKey(variable, None if value is None else (value,))


def outside_key(evaluator: Evaluator, variable: Variable) -> HashedKey:
    """The key of a tensor, which is hashed by identity; one from outside may be another in a later call.

    It is guarded to be the very one, or, where it has changed before, to be none of the others hashed.
    """
    state, source = evaluator.state, variable.source
    if source is None:
        return identity_key(variable, None)
    value = evaluator.builder.value_of(variable)
    if not state.is_identified(source) and variable not in state.hashed:
        others = [other for other in state.hashed if other.source is not None]
        if len(others) > _MAX_APART or not state.frame.history.object_changed(source, value):
            evaluator.guard(source, IsObject(value, weak=True))
        else:
            for other in others:
                guard_distinct(evaluator, variable, other)
    elif variable not in state.hashed:
        for other in state.hashed:
            guard_distinct(evaluator, variable, other)
    state.hashed[variable] = None
    known = (value,) if state.is_identified(source) else None
    return HashedKey(variable, known, Identity(variable))


_MAX_APART = 64
