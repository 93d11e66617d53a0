"""What the code generator returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class CppProgram:
    """A compiled schedule: call it with the inputs that are not constants, in order.

    Safe to call from several threads at once.  ``source`` is the C++ that was compiled.  ``entry`` is the
    builtin that a call goes to: calling it directly saves a Python frame.  It must not outlive the program.
    """

    def __init__(
        self,
        entry: Callable[..., tuple[Any, ...]],
        objects: Sequence[Any],
        source: str,
        kernel_count: int,
        extern_count: int,
    ) -> None:
        self.entry = entry
        self._objects = tuple(objects)  # the native program borrows them
        self.source = source
        self.kernel_count = kernel_count
        self.extern_count = extern_count

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self.entry(*inputs)
