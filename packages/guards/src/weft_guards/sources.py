"""Sources: where a Python value was read from, as a path that can be walked again at the next call.

A source is a frozen value; equal paths are equal sources, so that checks share them.  ``name()`` is the
path as a user would write it (``L['x'].weight``), used in explanations.  :meth:`Source.evaluate` walks it
in a :class:`Scope`; the native check walks the same path in C.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from .constants import is_constant, same_key
from .weak_keys import is_weak, known_key, weakly


@dataclass(frozen=True)
class Scope:
    """What a frame sees on entry: arguments by name, its globals, builtins and the closure's cells."""

    arguments: Mapping[str, Any]
    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    closure: Mapping[str, types.CellType]


@dataclass(frozen=True)
class Source:
    """Base class of all sources."""

    def name(self) -> str:
        raise NotImplementedError(type(self).__name__)

    def evaluate(self, scope: Scope) -> Any:
        """The value now; raises what the walk raises (AttributeError, KeyError, ...)."""
        raise NotImplementedError(type(self).__name__)

    def __getstate__(self) -> dict[str, Any]:
        """The fields; a kept hash is of this process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}


_S = TypeVar("_S", bound=Source)


@dataclass_transform(frozen_default=True)
def _path(kind: type[_S]) -> type[_S]:
    """A frozen dataclass that computes its hash once: paths are long, and keys of many tables."""
    made = dataclass(frozen=True)(kind)
    compute: Callable[[Source], int] = made.__hash__

    def kept_hash(source: Source) -> int:
        known: int | None = source.__dict__.get("_hash")
        if known is None:
            known = source.__dict__["_hash"] = compute(source)
        return known

    made.__hash__ = kept_hash  # type: ignore[method-assign,assignment]
    return made


@dataclass(frozen=True)
class ArgumentSource(Source):
    """An argument of the frame, by the name of its local variable."""

    argument: str

    def name(self) -> str:
        return f"L[{self.argument!r}]"

    def evaluate(self, scope: Scope) -> Any:
        return scope.arguments[self.argument]


@dataclass(frozen=True)
class ClosureSource(Source):
    """The contents of a free variable's cell."""

    variable: str

    def name(self) -> str:
        return f"C[{self.variable!r}]"

    def evaluate(self, scope: Scope) -> Any:
        return scope.closure[self.variable].cell_contents


@dataclass(frozen=True)
class GlobalSource(Source):
    """A global of the frame's module; a name missing there is looked up in the builtins."""

    variable: str

    def name(self) -> str:
        return f"G[{self.variable!r}]"

    def evaluate(self, scope: Scope) -> Any:
        if self.variable in scope.globals:
            return scope.globals[self.variable]
        return scope.builtins[self.variable]


@dataclass(frozen=True, eq=False, init=False)
class ConstantSource(Source):
    """An object that the guard set knows itself: the root of paths that no frame variable reaches.

    Used for the globals dictionary of an inlined function's module, for a class, for a function found
    through a descriptor.  Compared by identity.  ``weak``: what a container of the program's holds (a key, a
    member of a set); it is not kept alive where it is known by identity, and ``held`` stands for it.
    """

    label: str
    held: Any

    def __init__(self, label: str, value: Any, weak: bool = False) -> None:
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "held", weakly(value) if weak else value)

    @property
    def value(self) -> Any:
        """The object; KeyError once it has died."""
        return known_key(self.held)

    @property
    def is_weak(self) -> bool:
        return is_weak(self.held)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ConstantSource):
            return False
        if self.is_weak and other.is_weak:
            return bool(self.held == other.held)
        return self.is_weak == other.is_weak and other.held is self.held

    def __hash__(self) -> int:
        return hash((ConstantSource, self.held.address if self.is_weak else id(self.held)))

    def name(self) -> str:
        return self.label

    def evaluate(self, scope: Scope) -> Any:
        return self.value


@_path
class AttributeSource(Source):
    """``base.attribute`` through the ordinary protocol (``getattr``)."""

    base: Source
    attribute: str

    def name(self) -> str:
        return f"{self.base.name()}.{self.attribute}"

    def evaluate(self, scope: Scope) -> Any:
        return getattr(self.base.evaluate(scope), self.attribute)


@_path
class InstanceDictSource(Source):
    """``base.__dict__[key]``: the attribute in the instance itself, no descriptor run.

    ``key`` None stands for the dict itself.  The dict is the one that ``object.__getattribute__`` gives,
    whatever the class overrides.
    """

    base: Source
    key: str | None = None

    def name(self) -> str:
        dictionary = f"{self.base.name()}.__dict__"
        return dictionary if self.key is None else f"{dictionary}[{self.key!r}]"

    def evaluate(self, scope: Scope) -> Any:
        dictionary = object.__getattribute__(self.base.evaluate(scope), "__dict__")
        return dictionary if self.key is None else dictionary[self.key]


@_path
class ItemSource(Source):
    """``base[key]``; on exact dict, list and tuple read directly, else through ``__getitem__``.

    ``key`` is a hashable constant, or stands for an object that is its own key (a parameter, in an
    optimizer's state), which it does not keep alive.
    """

    base: Source
    key: Any

    def __post_init__(self) -> None:
        if type(self.key) is not str and type(self.key) is not int:
            object.__setattr__(self, "key", weakly(self.key))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ItemSource):
            return NotImplemented
        return same_key(self.key, other.key) and self.base == other.base

    def __hash__(self) -> int:
        return hash((self.base, self.key))

    def name(self) -> str:
        shown = is_constant(self.key) or is_weak(self.key)
        key = repr(self.key) if shown else f"<{type(self.key).__name__}>"
        return f"{self.base.name()}[{key}]"

    def evaluate(self, scope: Scope) -> Any:
        return self.base.evaluate(scope)[known_key(self.key)]


@_path
class DictKeySource(Source):
    """The key at position ``index`` (from 0) of ``base``, a dict, in order of insertion."""

    base: Source
    index: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"index is a position from 0, not {self.index}")

    def name(self) -> str:
        return f"list({self.base.name()})[{self.index}]"

    def evaluate(self, scope: Scope) -> Any:
        return list(self.base.evaluate(scope))[self.index]


@_path
class TypeSource(Source):
    """``type(base)``."""

    base: Source

    def name(self) -> str:
        return f"type({self.base.name()})"

    def evaluate(self, scope: Scope) -> Any:
        return type(self.base.evaluate(scope))


@_path
class CellContentsSource(Source):
    """``base.cell_contents`` of a cell object, such as one in a function's ``__closure__``."""

    base: Source

    def name(self) -> str:
        return f"{self.base.name()}.cell_contents"

    def evaluate(self, scope: Scope) -> Any:
        cell = self.base.evaluate(scope)
        if not isinstance(cell, types.CellType):
            raise TypeError(f"not a cell but {type(cell).__qualname__}")
        return cell.cell_contents


@dataclass(frozen=True)
class GlobalStateSource(Source):
    """Interpreter-wide state: the source of the one ``GlobalStateIs`` guard."""

    def name(self) -> str:
        return "torch's global state"

    def evaluate(self, scope: Scope) -> Any:
        return None
