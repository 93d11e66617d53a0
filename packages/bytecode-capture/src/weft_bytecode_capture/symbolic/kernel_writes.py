"""Python state that operators' kernels may change: behind their calls nothing is known of it.

A graph calls a kernel when it runs; the evaluator knows what there was at the capture.
"""

from __future__ import annotations

from typing import Any

from ..unsupported import Unsupported


class KernelWrites:
    """What kernels of calls in the graph may write to: objects, globals, cells, attributes by their names."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}  # containers, by id
        self.globals: set[tuple[int, str]] = set()  # with the id of their dict
        self.cells: set[int] = set()
        self.attributes: set[str] = set()
        self.by_function: dict[Any, KernelWrites] = {}  # of each that the graph calls

    def update(self, other: KernelWrites) -> None:
        self.objects.update(other.objects)
        self.globals |= other.globals
        self.cells |= other.cells
        self.attributes |= other.attributes

    def check_object(self, value: Any) -> None:
        """
        :raises Unsupported: a kernel that the graph calls may change it.
        """
        if self.objects and id(value) in self.objects:
            raise Unsupported(_CHANGED, type(value).__name__)

    def check_global(self, dictionary: dict[str, Any], name: str) -> None:
        """
        :raises Unsupported: a kernel that the graph calls may bind it.
        """
        if self.globals and (id(dictionary), name) in self.globals:
            raise Unsupported(_CHANGED, f"global {name}")

    def check_cell(self, cell: Any) -> None:
        """
        :raises Unsupported: a kernel that the graph calls may bind it.
        """
        if self.cells and id(cell) in self.cells:
            raise Unsupported(_CHANGED, "variable of an enclosing function")

    def check_attribute(self, name: str) -> None:
        """
        :raises Unsupported: a kernel that the graph calls may write to an attribute of that name.
        """
        if self.attributes and name in self.attributes:
            raise Unsupported(_CHANGED, f"attribute {name}")


_CHANGED = "state that a kernel changes"
