"""What variables are as keys of dicts and members of sets."""

from __future__ import annotations

from typing import Any

from ...unsupported import Unsupported
from ..key_methods import KIND, key_method
from ..protocol import Evaluator
from .base import Variable


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
        token: InstanceKey | Identity | tuple[HashedKey, ...] | None = None,
    ) -> None:
        self.variable = variable
        self.python_key = python_key
        if token is not None:
            self._token: Any = token
        else:
            self._token = python_key[0] if python_key is not None else Identity(variable)
        self._hash = hash(self._token)

    def of_owner(self, owner: Variable) -> HashedKey:
        """The key of an instance that hashes and compares as its storage, whose key this is."""
        return HashedKey(owner, self.python_key, self._token)

    def emitted(self) -> Variable:
        """The key for code that puts it into a container after the graph.

        :raises Unsupported: it may have another hash by then.
        """
        if getattr(self.variable, "is_changed_key", False):
            raise Unsupported(KIND, f"{self!r}, which has changed")
        for part in self._token if isinstance(self._token, tuple) else ():
            if isinstance(part, HashedKey):
                part.emitted()
        return self.variable

    def has_known_hash(self) -> bool:
        """Whether its hash is the program's: of no address."""
        return self.python_key is not None or isinstance(self._token, InstanceKey)

    def has_address(self) -> bool:
        """Whether the address of an object of this call is in it: what was kept before may be stale."""
        if isinstance(self._token, Address):
            return True
        parts = self._token if isinstance(self._token, tuple) else ()
        return any(isinstance(part, HashedKey) and part.has_address() for part in parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashedKey):  # an element of a tuple that is a constant
            if isinstance(self._token, InstanceKey):
                return self._token.equals_constant(other)
            return bool(self._token == other)
        if self._token is other._token:
            return True
        for token in (self._token, other._token):
            if isinstance(token, InstanceKey):
                return token.equal(self.variable, other.variable)
        return bool(self._token == other._token)

    def __repr__(self) -> str:
        return repr(self.variable)


class InstanceKey:
    """An instance whose methods are in Python; the evaluator answers for both.

    ``is_seen``: a user wrote them, not the dataclasses module.
    """

    __slots__ = ("_evaluator", "_hash", "_is_seen", "variable")

    def __init__(self, evaluator: Evaluator, variable: Variable, value: int, is_seen: bool) -> None:
        self._evaluator = evaluator
        self.variable = variable
        self._hash = value
        self._is_seen = is_seen

    def __hash__(self) -> int:
        return self._hash

    def equal(self, left: Variable, right: Variable) -> bool:
        evaluator = self._evaluator
        if left is right:
            return True
        if not self._is_seen:
            return evaluator.binary_operation("eq", left, right).truth(evaluator)
        with key_method(evaluator, repr(self.variable)):
            return evaluator.binary_operation("eq", left, right).truth(evaluator)

    def equals_constant(self, value: object) -> bool:
        return self.equal(self.variable, self._evaluator.wrap_constant(value))


class Identity:
    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def __hash__(self) -> int:
        return id(self.variable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or type(other) is not type(self):
            return False
        return other.variable is self.variable


class Address(Identity):
    """The address of the object that a variable stands for: another key than the object."""

    __slots__ = ()
