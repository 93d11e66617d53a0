"""Emission of the bytecode that runs after capture: loading sources, calling graphs, rebuilding objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from weft_guards import Source

if TYPE_CHECKING:
    from ..symbolic.variables.base import Variable


class Emitter(Protocol):
    """What ``Variable.reconstruct`` and side effects may emit; each method says what it does to the stack."""

    def load_variable(self, variable: Variable) -> None:
        """Push the variable's object; the same variable always gives the same object."""

    def load_source(self, source: Source) -> None:
        """Push what the source holds (as read on entry of the frame)."""

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

    def delete_subscript(self) -> None:
        """Pop key (top) and container; ``del container[key]``."""

    def build(self, kind: str, count: int) -> None:
        """Pop ``count`` elements (``2 * count`` for "map"), push a new "tuple", "list", "set", "map",
        "slice" or "string"."""

    def load_callable(self, value: Any) -> None:
        """Push what a later :meth:`call` calls: any Python object, held by the entry."""

    def prepare_call(self) -> None:
        """Turn the object on top of the stack into the callee of a later :meth:`call`."""

    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None:
        """Pop ``count`` arguments (the last ``len(keywords)`` by keyword) and the callee, push the result."""

    def call_unpacked(self, with_keywords: bool) -> None:
        """Pop a dict (if ``with_keywords``), a tuple and the callee; push ``callee(*tuple, **dict)``."""

    def store_temporary(self) -> str:
        """Pop the top into a fresh local variable and give its name."""

    def load_temporary(self, name: str) -> None: ...

    def store_global(self, name: str) -> None:
        """Pop the top into a global of the frame's own module."""

    def load_cell(self, name: str) -> None:
        """Push the cell object of one of the frame's own cell or free variables."""

    def duplicate(self) -> None: ...

    def pop(self) -> None: ...
