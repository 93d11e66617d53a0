"""Emission of the bytecode that runs after capture: loading sources, calling graphs, rebuilding objects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from weft_guards import Source

from ..symbolic.variables.base import Variable


class Emitter:
    """What ``Variable.reconstruct`` and side effects may emit; each method says what it does to the stack.

    This one emits nothing.
    """

    def load_variable(self, variable: Variable) -> None:
        """Push the variable's object; the same variable always gives the same object."""

    def load_source(self, source: Source) -> None:
        """Push what the source holds (as read on entry of the frame)."""

    def load_given(self, source: Source) -> None:
        """As :meth:`load_source`; of a tensor whose layout the program changes, a view as it was on entry."""
        self.load_source(source)

    def load_constant(self, value: Any) -> None:
        """Push an immutable constant that a code object can hold."""

    def load_object(self, value: Any) -> None:
        """Push any object; the cache entry keeps it alive."""

    def load_graph_output(self, index: int) -> None:
        """Push the captured graph's output number ``index``."""

    def load_attribute(self, name: str) -> None:
        """Pop an object, push its attribute."""

    def store_attribute(self, name: str) -> None:
        """Pop the object (top), then the value; set the attribute."""

    def load_subscript(self) -> None:
        """Pop key (top) and container, push ``container[key]``."""

    def store_subscript(self) -> None:
        """Pop key (top), container, value; ``container[key] = value``."""

    def build(self, kind: str, count: int) -> None:
        """Pop ``count`` elements (``2 * count`` for "map"), push a new "tuple", "list", "set", "map",
        "slice" or "string"."""

    def load_elements(self, kind: str, elements: Collection[Variable]) -> None:
        """Push a new "tuple" or "list" of these."""
        for element in elements:
            self.load_variable(element)
        self.build(kind, len(elements))

    def load_map(self, entries: Mapping[str, Variable]) -> None:
        """Push a new dict."""
        for name, value in entries.items():
            self.load_constant(name)
            self.load_variable(value)
        self.build("map", len(entries))

    def load_callable(self, value: Any) -> None:
        """Push what a later :meth:`call` calls: any Python object, held by the entry."""

    def prepare_call(self) -> None:
        """Turn the object on top of the stack into the callee of a later :meth:`call`."""

    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None:
        """Pop ``count`` arguments (the last ``len(keywords)`` by keyword) and the callee, push the result."""

    def load_call(self, function: Any, *arguments: Any) -> None:
        """Push ``function(*arguments)``: of the objects of variables, and of any others as they are."""
        self.load_callable(function)
        for argument in arguments:
            if isinstance(argument, Variable):
                self.load_variable(argument)
            else:
                self.load_constant(argument)
        self.call(len(arguments))

    def run_call(self, function: Any, *arguments: Any) -> None:
        """As :meth:`load_call`, for what the call does: its result is dropped."""
        self.load_call(function, *arguments)
        self.pop()

    def store_temporary(self) -> str:
        """Pop the top into a fresh local variable and give its name."""
        raise NotImplementedError

    def load_cell(self, name: str) -> None:
        """Push the cell object of one of the frame's own cell or free variables."""

    def duplicate(self) -> None:
        """Push the top again."""

    def pop(self) -> None:
        """Pop the top."""
