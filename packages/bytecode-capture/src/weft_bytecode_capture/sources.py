"""Sources and predicates of capture's own: what compiled code makes of the program's values on entry."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from weft_guards import Predicate, Scope, Source, SymbolSource

from ._torch import without_overrides
from .drawn_numbers import Draws


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its class: a ``torch.Tensor`` with the same memory and history."""
    with without_overrides():
        return value.as_subclass(torch.Tensor)


@dataclass(frozen=True)
class ConvertedSource(Source):
    """What ``convert`` makes of the object at ``base``: a tensor with the same memory, its elements."""

    base: Source
    convert: Callable[[Any], Any]

    def name(self) -> str:
        return f"{self.convert.__name__}({self.base.name()})"

    def evaluate(self, scope: Scope) -> Any:
        return self.convert(self.base.evaluate(scope))


@dataclass(frozen=True)
class ComputedSource(Source):
    """What ``compute`` makes of numbers of the call: a new object in each call."""

    compute: Callable[..., Any]
    numbers: tuple[SymbolSource, ...]

    def name(self) -> str:
        function = getattr(self.compute, "__name__", "new")
        return f"{function}({', '.join(number.name() for number in self.numbers)})"

    def evaluate(self, scope: Scope) -> Any:
        return self.compute(*(number.read(scope) for number in self.numbers))


@dataclass(frozen=True)
class CalledSource(Source):
    """What ``call`` gives for the objects at ``bases``: a new tensor in each call."""

    call: Callable[..., Any]
    bases: tuple[Source, ...]

    def name(self) -> str:
        return f"call({', '.join(base.name() for base in self.bases)})"

    def evaluate(self, scope: Scope) -> Any:
        return self.call(*(base.evaluate(scope) for base in self.bases))


@dataclass(frozen=True, eq=False)
class DrawnSource(Source):
    """The random numbers of a frame, a tuple of tensors: ``call`` draws them, new ones in each call."""

    draws: Draws
    call: Callable[..., Any]

    def name(self) -> str:
        return f"drawn({', '.join(base.name() for base in self.draws.bases)})"

    def evaluate(self, scope: Scope) -> Any:
        return self.call(*(base.evaluate(scope) for base in self.draws.bases))


@dataclass(frozen=True)
class SelectedSource(Source):
    """The element of a list, tuple or dict at ``base`` that the number at ``index`` and ``offset`` select.

    ``by_name``: its key is the number as text, as a ModuleList has its members.
    """

    base: Source
    index: Source
    offset: int = 0
    by_name: bool = False

    def name(self) -> str:
        index = self.index.name() + (f" + {self.offset}" if self.offset else "")
        return f"{self.base.name()}[{index}]"

    def evaluate(self, scope: Scope) -> Any:
        """Asked for before any guard on the base or the index may have been."""
        elements, index = self.base.evaluate(scope), self.index.evaluate(scope)
        if type(elements) not in (list, tuple, dict) or type(index) is not int:
            raise TypeError(f"no element of a {type(elements).__name__} is selected")
        index += self.offset
        if not 0 <= index < len(elements):
            raise IndexError(f"{index} is not within {len(elements)}")
        return elements[str(index) if self.by_name else index]


@dataclass(frozen=True)
class SubclassIs(Predicate):
    """``issubclass(value, wanted) is outcome``, of a class whose metaclass lets others be registered."""

    wanted: type
    outcome: bool

    def holds(self, value: Any, scope: Scope) -> bool:
        return issubclass(value, self.wanted) is self.outcome

    def expected_text(self) -> str:
        return f"{'a' if self.outcome else 'no'} subclass of {self.wanted.__qualname__}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"{'no' if self.outcome else 'a'} subclass"


@dataclass(frozen=True)
class SubclassesAre(Predicate):
    """``value.__subclasses__()`` of a class are these, in order; the guard keeps none of them alive."""

    expected: tuple[weakref.ref[type], ...]

    def holds(self, value: Any, scope: Scope) -> bool:
        found = type.__subclasses__(value)
        return found == [reference() for reference in self.expected]

    def expected_text(self) -> str:
        return f"subclasses {[reference() for reference in self.expected]}"

    def found_text(self, value: Any, scope: Scope) -> str:
        return f"subclasses {type.__subclasses__(value)}"


@dataclass(frozen=True)
class StorageOffsetIs(Predicate):
    """The tensor begins ``expected`` elements behind the beginning of its storage."""

    expected: int

    def holds(self, value: Any, scope: Scope) -> bool:
        with without_overrides():
            offset: int = value.storage_offset()
        return offset == self.expected

    def expected_text(self) -> str:
        return f"storage offset {self.expected}"

    def found_text(self, value: Any, scope: Scope) -> str:
        with without_overrides():
            return f"storage offset {value.storage_offset()}"


def fills_storage(value: torch.Tensor) -> bool:
    """Whether a tensor's elements are all that its storage holds."""
    with without_overrides():
        filled = value.untyped_storage().nbytes() == value.nbytes
        return filled and value.storage_offset() == 0


@dataclass(frozen=True)
class FillsStorage(Predicate):
    """The tensor's elements are all that its storage holds."""

    def holds(self, value: Any, scope: Scope) -> bool:
        return fills_storage(value)

    def expected_text(self) -> str:
        return "a storage of its own"

    def found_text(self, value: Any, scope: Scope) -> str:
        return "a part of a storage"


@dataclass(frozen=True)
class EqualsScalar(Predicate):
    """The value is a NumPy scalar of the same type and bits as ``expected``."""

    expected: Any

    def holds(self, value: Any, scope: Scope) -> bool:
        return type(value) is type(self.expected) and value.tobytes() == self.expected.tobytes()

    def expected_text(self) -> str:
        return repr(self.expected)

    def found_text(self, value: Any, scope: Scope) -> str:
        return repr(value)
