"""Which graph outputs a frame's ending needs: those that rebuilding its objects would load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft_guards import Source

from ..unsupported import BreakEarlier, Unsupported
from .variables.base import Variable


def is_kept(variable: Variable, stack: Sequence[Variable | None]) -> bool:
    """Whether a local is there at a breaking instruction although no instruction reads it again.

    Constants are for who looks at the frame's locals, through a traceback for one.
    """
    return is_lasting(variable, stack) or (variable.node is None and variable.is_constant())


def is_lasting(variable: Variable, stack: Sequence[Variable | None]) -> bool:
    """Whether a local is kept behind a break although no instruction reads it again.

    In CPython it keeps its object alive as long as the frame, which a finalizer or a weak reference shows:
    that of an object from outside, or of one on the stack, which the breaking instruction is given.
    Not constants and tensors: nothing happens when they go, and the guards on what is handed to a resume
    function would ask for compilation again when they differ.
    """
    if variable.node is not None or variable.is_constant():
        return False
    if variable.source is not None:
        return True
    return any(variable is item for item in stack) and variable.python_type().__weakrefoffset__ != 0


class OutputCollector:
    """An emitter that emits nothing and notes the graph's values that are asked for.

    It walks objects as the frame's emitter does: what has a source is loaded from there, each other object
    is rebuilt once.
    """

    def __init__(self) -> None:
        self.outputs: list[Variable] = []
        self._seen: dict[int, Variable] = {}
        self._temporaries = 0

    def load_variable(self, variable: Variable) -> None:
        variable = variable.loaded_instead or variable
        if id(variable) in self._seen:
            return
        self._seen[id(variable)] = variable
        if variable.source is not None or variable.is_constant():
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

    def bind(self, variable: Variable) -> None:
        """An object that the frame holds already."""
        self._seen[id(variable)] = variable

    def load_graph_output(self, index: int) -> None:
        raise Unsupported("graph output by number", str(index))

    def store_temporary(self) -> str:
        self._temporaries += 1
        return f"temporary {self._temporaries}"

    def load_source(self, source: Source) -> None: ...
    def load_constant(self, value: Any) -> None: ...
    def load_object(self, value: Any) -> None: ...
    def load_attribute(self, name: str) -> None: ...
    def store_attribute(self, name: str) -> None: ...
    def load_subscript(self) -> None: ...
    def store_subscript(self) -> None: ...
    def delete_subscript(self) -> None: ...
    def build(self, kind: str, count: int) -> None: ...
    def load_callable(self, value: Any) -> None: ...
    def prepare_call(self) -> None: ...
    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None: ...
    def call_unpacked(self, with_keywords: bool) -> None: ...
    def load_temporary(self, name: str) -> None: ...
    def store_global(self, name: str) -> None: ...
    def load_cell(self, name: str) -> None: ...
    def duplicate(self) -> None: ...
    def pop(self) -> None: ...
