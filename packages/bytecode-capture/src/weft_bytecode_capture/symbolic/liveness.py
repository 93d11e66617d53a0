"""Which graph outputs a frame's ending needs: those that rebuilding its objects would load."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from weft_guards import Source

from ..frame.emitter import Emitter
from ..unsupported import BreakEarlier, Unsupported
from .variables.base import Variable
from .variables.builder import root_object


def is_kept(variable: Variable, stack: Sequence[Variable | None]) -> bool:
    """Whether a local is there at a breaking instruction although no instruction reads it again.

    Constants are for who looks at the frame's locals, through a traceback for one.
    """
    return is_lasting(variable, stack) or (variable.node is None and variable.is_constant())


def is_lasting(variable: Variable, stack: Sequence[Variable | None]) -> bool:
    """Whether a local is kept behind a break although no instruction reads it again.

    In CPython it keeps its object alive as long as the frame, which a finalizer or a weak reference shows:
    that of an object from outside, or of one on the stack, which the breaking instruction is given, itself
    or in another: ``weakref.WeakMethod(x.method)``, ``WeakSet([x])``.
    Not constants and tensors: nothing happens when they go, and the guards on what is handed to a resume
    function would ask for compilation again when they differ.
    """
    if variable.node is not None or variable.is_constant():
        return False
    if variable.source is not None:
        return True
    has_weak_references = variable.kind is None or variable.kind.__weakrefoffset__ != 0
    return has_weak_references and _is_in(variable, stack)


def _is_in(variable: Variable, stack: Sequence[Variable | None]) -> bool:
    collector = OutputCollector({})
    for item in stack:
        if item is variable:
            return True
        if item is not None:
            with contextlib.suppress(Unsupported):  # what cannot be rebuilt is not handed over
                collector.load_variable(item)
    return collector.has_met(variable)


class OutputCollector(Emitter):
    """An emitter that emits nothing and notes the graph's values that are asked for.

    It walks objects as the frame's emitter does: what has a source is loaded from there, each other object
    is rebuilt once.
    """

    def __init__(self, made: Mapping[int, tuple[Any, int]]) -> None:
        self.outputs: list[Variable] = []
        self._made = made  # what is there for the capture alone
        self._seen: dict[int, Variable] = {}
        self._temporaries = 0

    def load_variable(self, variable: Variable) -> None:
        variable = variable.loaded_instead or variable
        if id(variable) in self._seen:
            return
        self._seen[id(variable)] = variable
        if variable.is_constant() and not variable.is_made_of_numbers():
            return
        if variable.source is not None:
            self.load_source(variable.source)
            return
        if variable.node is not None:
            self.outputs.append(variable)
            return
        try:
            variable.reconstruct(self)
        except Unsupported as error:
            position = getattr(variable, "created_at", None)
            if position is None or isinstance(error, BreakEarlier):
                raise
            raise BreakEarlier(position, error) from error

    def has_met(self, variable: Variable) -> bool:
        """Whether it is, or is in, what was loaded."""
        return id(variable) in self._seen

    def bind(self, variable: Variable) -> None:
        """An object that the frame holds already."""
        self._seen[id(variable)] = variable

    def load_object(self, value: Any) -> None:
        """A class of the captured code's own has been made for the capture: CPython makes the one to keep."""
        if id(value) in self._made:
            error = Unsupported("class definition", repr(value))
            raise BreakEarlier(self._made[id(value)][1], error)

    def load_callable(self, value: Any) -> None:
        self.load_object(value)

    def load_source(self, source: Source) -> None:
        self.load_object(root_object(source))

    def load_graph_output(self, index: int) -> None:
        raise Unsupported("graph output by number", str(index))

    def store_temporary(self) -> str:
        self._temporaries += 1
        return f"temporary {self._temporaries}"
