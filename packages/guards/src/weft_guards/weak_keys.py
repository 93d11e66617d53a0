"""Keys that compiled code knows without keeping them alive: objects that are compared by identity.

A dict keyed by tensors, modules or functions lets go of them when the program does, and so must what has been
compiled for it: :class:`WeakKey` stands for such an object, :class:`KeyOfParts` for a tuple or frozenset that
holds some.  When one dies, no dict can have the key any more, and what is guarded by it never holds again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, final

import torch

_AT_HAND = (str, int)  # the types of nearly all keys
_HASHES_BY_IDENTITY: tuple[Any, ...] = (object.__hash__, torch.Tensor.__hash__)


class WeakKey(weakref.ref[Any]):
    """A weak reference that compares by the identity of what it refers to; called, it gives that or None."""

    __slots__ = ("address",)

    address: int

    def __init__(self, value: Any) -> None:
        super().__init__(value)  # type: ignore[call-arg]  # typeshed has no ref.__init__
        self.address = id(value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, WeakKey) and self() is other() is not None

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return self.address

    def __repr__(self) -> str:
        value = self()
        return "<a key that has died>" if value is None else f"<{type(value).__name__}>"


@final
class KeyOfParts:
    """A tuple or frozenset with parts known by identity; called, it gives an equal one, or None."""

    __slots__ = ("_kind", "_parts", "address")

    def __init__(self, value: Any, parts: Any) -> None:
        self._kind: type = type(value)
        self._parts = parts  # a tuple, or a frozenset where that order is unknown
        self.address = hash((self._kind, parts))

    def __call__(self) -> Any:
        parts = [part() if is_weak(part) else part for part in self._parts]
        if any(
            value is None and is_weak(part) for value, part in zip(parts, self._parts, strict=True)
        ):
            return None
        base = tuple if issubclass(self._kind, tuple) else frozenset
        return base.__new__(self._kind, parts)

    def same(self, key: Any) -> bool:
        """Whether ``key`` is of the same type, with the same parts."""
        if type(key) is not self._kind:
            return False
        known = self()
        return known is not None and bool(known == key)

    def references(self) -> Iterator[WeakKey]:
        for part in self._parts:
            yield from weak_references(part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyOfParts):
            return False
        return self._kind is other._kind and bool(self._parts == other._parts)

    def __hash__(self) -> int:
        return self.address

    def __repr__(self) -> str:
        return f"{self._kind.__name__}({list(self._parts)!r})"


def is_weak(key: Any) -> bool:
    """Whether it stands for a key, known by identity."""
    return type(key) is WeakKey or type(key) is KeyOfParts


def weakly(key: Any) -> Any:
    """What stands for a key without holding it; the key itself where it is compared by value."""
    kind = type(key)
    if kind in _AT_HAND:
        return key
    if kind is tuple or (issubclass(kind, tuple) and "_fields" in vars(kind)):
        parts = tuple(map(weakly, tuple.__iter__(key)))
        return KeyOfParts(key, parts) if any(map(is_weak, parts)) else key
    if kind is frozenset:
        members = frozenset(map(weakly, key))
        return KeyOfParts(key, members) if any(map(is_weak, members)) else key
    by_identity = kind.__hash__ in _HASHES_BY_IDENTITY
    if by_identity and kind.__weakrefoffset__ != 0 and not isinstance(key, weakref.ref):
        return WeakKey(key)
    return key


def known_key(key: Any) -> Any:
    """The key itself, of what :func:`weakly` gave.

    :raises KeyError: it has died, so that nothing has it.
    """
    if not is_weak(key):
        return key
    found = key()
    if found is None:
        raise KeyError(key)
    return found


def weak_references(key: Any) -> Iterator[WeakKey]:
    """The references in what :func:`weakly` gave: the objects without which the key is nowhere."""
    if type(key) is WeakKey:
        yield key
    elif type(key) is KeyOfParts:
        yield from key.references()
