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
from .operations import guard_distinct
from .python_protocols import find_raw, full_name


class HashedKey:
    """A variable with the Python value that it hashes and compares as.

    ``python_key`` is a 1-tuple of the real key object, None where the object is made during evaluation
    and hashed by identity.
    """

    __slots__ = ("_hash", "_token", "python_key", "variable")

    def __init__(
        self,
        variable: Variable,
        python_key: tuple[Any] | None,
        token: InstanceKey | _Identity | tuple[HashedKey, ...] | None = None,
    ) -> None:
        self.variable = variable
        self.python_key = python_key
        if token is not None:
            self._token: Any = token
        else:
            self._token = python_key[0] if python_key is not None else _Identity(variable)
        self._hash = hash(self._token)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashedKey):
            return NotImplemented
        if self._token is other._token:
            return True
        for token in (self._token, other._token):
            if isinstance(token, InstanceKey):
                return token.equal(self.variable, other.variable)
        return bool(self._token == other._token)

    def __repr__(self) -> str:
        return repr(self.variable)


class InstanceKey:
    """An instance whose methods the dataclasses module wrote; the evaluator answers for both."""

    __slots__ = ("_evaluator", "_hash", "variable")

    def __init__(self, evaluator: Evaluator, variable: Variable, value: int) -> None:
        self._evaluator = evaluator
        self.variable = variable
        self._hash = value

    def __hash__(self) -> int:
        return hash(self._hash)

    def equal(self, left: Variable, right: Variable) -> bool:
        from .operations import values_equal

        return values_equal(self._evaluator, left, right)


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


class _Identity:
    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def __hash__(self) -> int:
        return id(self.variable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.variable is self.variable


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


def identity_key(evaluator: Evaluator, variable: Variable, value: Any) -> HashedKey:
    """The key of an object that is hashed by identity: ``value`` is it, None if it is new."""
    return HashedKey(variable, None if value is None else (value,))


def outside_key(evaluator: Evaluator, variable: Variable) -> HashedKey:
    """The key of a tensor, which is hashed by identity; one from outside may be another in a later call.

    It is guarded to be the very one, or, where it has changed before, to be none of the others hashed.
    """
    state, source = evaluator.state, variable.source
    if source is None:
        return identity_key(evaluator, variable, None)
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
    return HashedKey(variable, known, _Identity(variable))


_MAX_APART = 64
