"""The journal of what the captured program did to objects that existed before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from weft_guards import Source

from .._torch.layouts import AsGiven, change_layout
from ..frame.emitter import Emitter
from ..sources import ConvertedSource
from .variables.base import Variable


class Mutated(Protocol):
    """A pre-existing object's variable that can bring the object to the state it stands for."""

    def emit_mutation(self, emitter: Emitter) -> None:
        """Emit code that brings the real object to this variable's state."""


class JournaledCall:
    """A call whose only effect is outside the program (a print, a warning), with constant arguments."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.function = function
        self.arguments = arguments
        self.keywords = keywords

    def __repr__(self) -> str:
        return f"{getattr(self.function, '__qualname__', self.function)}()"

    def emit_mutation(self, emitter: Emitter) -> None:
        emitter.load_callable(self.function)
        for value in (*self.arguments, *self.keywords.values()):
            emitter.load_object(value)
        emitter.call(len(self.arguments) + len(self.keywords), tuple(self.keywords))
        emitter.pop()


class EmittedEffect:
    """An effect given by the function that emits it."""

    def __init__(self, emit: Callable[[Emitter], None]) -> None:
        self.emit_mutation = emit

    def __repr__(self) -> str:
        return "a write"


class LayoutChange:
    """A change of a tensor of the caller, made behind the graph; ``arguments`` are numbers and tuples."""

    def __init__(
        self, tensor: Variable, name: str, arguments: Sequence[Variable], moves_version: bool
    ) -> None:
        self.tensor = tensor
        self.moves_version = moves_version  # whether eager counts it as a write
        self._name = name
        self._arguments = tuple(arguments)

    def __repr__(self) -> str:
        return f"{self._name}()"

    def emit_mutation(self, emitter: Emitter) -> None:
        assert self.tensor.source is not None
        emitter.load_given(self.tensor.source)  # counts the change, with or without a graph
        emitter.pop()
        emitter.run_call(change_layout, self.tensor, self._name, *self._arguments)


class SideEffects:
    """Effects in the order in which each was first recorded.

    An object mutated more than once is brought to its last state at its first place in the order: no code
    of the program runs in between, so nobody can tell.  Calls are replayed each in its place.
    """

    def __init__(self) -> None:
        self._effects: list[Mutated] = []
        self._seen: set[int] = set()
        self._layouts: list[LayoutChange] = []

    def __bool__(self) -> bool:
        return bool(self._effects)

    def __len__(self) -> int:
        return len(self._effects)

    @property
    def names(self) -> tuple[str, ...]:
        """What changes that was there before the call, by where it is read, and what is called."""
        found = []
        for effect in self._effects:
            source = getattr(effect, "source", effect)
            if source is not None:
                found.append(source.name() if isinstance(source, Source) else repr(effect))
        return tuple(found)

    def mutated(self, variable: Mutated) -> None:
        """Record that a pre-existing object's variable no longer equals the object."""
        if id(variable) not in self._seen:
            self._seen.add(id(variable))
            self._effects.append(variable)

    def call(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record a call to make after the graph."""
        self._effects.append(JournaledCall(function, arguments, keywords))

    def record(self, emit: Callable[[Emitter], None]) -> None:
        """Record an effect of another kind."""
        self._effects.append(EmittedEffect(emit))

    def change_layout(self, change: LayoutChange) -> None:
        """Record a change of the layout of a tensor of the caller."""
        self._effects.append(change)
        self._layouts.append(change)

    def as_given(self, source: Source) -> Source:
        """Where a tensor is found as it is on entry, if its layout changes."""
        changes = [change for change in self._layouts if change.tensor.source == source]
        if not changes:
            return source
        return ConvertedSource(source, AsGiven(sum(change.moves_version for change in changes)))

    def mutated_variables(self) -> list[Variable]:
        found = [effect for effect in self._effects if isinstance(effect, Variable)]
        return [*found, *(change.tensor for change in self._layouts)]

    def emit(self, emitter: Emitter) -> None:
        for effect in self._effects:
            effect.emit_mutation(emitter)
