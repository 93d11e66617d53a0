"""What the code generator returns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft_codegen_cpp.translation_unit import TranslationUnit

_CLASSES = {kind.__name__: kind for kind in (IndexError, Exception)}


@dataclass(frozen=True, eq=False)
class GeneratedProgram:
    """What is generated for a schedule: enough to make its program, in another process too.

    ``objects`` are what the host program refers to by position: constants, operators, what calls give.
    ``may_fail``: one of its steps may raise.  ``early_errors``: as of a program, by name.
    ``checks_first``: checks of sizes and numbers that data decides come before all writes to inputs.
    """

    unit: TranslationUnit
    objects: tuple[Any, ...]
    kernel_count: int
    extern_count: int
    may_fail: bool = True
    early_errors: str = ""
    checks_first: bool = True


class CppProgram:
    """A compiled schedule: call it with the inputs that are not constants, in order.

    Safe to call from several threads at once.  ``source`` is the C++ that was compiled.  ``entry`` is the
    builtin that a call goes to: calling it directly saves a Python frame.  It must not outlive the program.
    Where ``may_fail`` is false a call raises nothing after its first kernel has begun.  One that raises an
    error of the class ``early_errors``, if there is one, has written to no input and drawn no numbers.
    ``failed_check``, if it is not None, tells whether this thread's last call raised at a check of what data
    decides, before it wrote to an input.
    """

    def __init__(
        self,
        entry: Callable[..., tuple[Any, ...]],
        generated: GeneratedProgram,
        source: str,
        library: ctypes.PyDLL,
    ) -> None:
        self.entry = entry
        self._library = library
        self.generated = generated  # holds the objects, which the native program borrows
        self.source = source
        self.kernel_count = generated.kernel_count
        self.extern_count = generated.extern_count
        self.may_fail = generated.may_fail
        self.early_errors = _CLASSES.get(generated.early_errors)

    @property
    def held_bytes(self) -> int:
        """Memory for intermediates that is kept from earlier calls for the next.

        It follows what calls need: 16 smaller ones after a large one have it given back, and some thousand
        calls of other programs have all of it.
        """
        function = self._library.weft_held_bytes
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.py_object]
        return int(function(self.entry.__self__))  # type: ignore[attr-defined]

    def timeline(self) -> tuple[tuple[str, float, float], ...]:
        """Name, beginning and seconds of each step of this thread's last call, from its first step on.

        :raises RuntimeError: the program was not compiled with ``CppOptions(timed=True)``.
        """
        if not hasattr(self._library, "weft_stamps"):
            raise RuntimeError("only programs of CppOptions(timed=True) have a timeline")
        self._library.weft_steps.restype = ctypes.c_char_p
        self._library.weft_stamps.restype = ctypes.POINTER(ctypes.c_int64)
        names = self._library.weft_steps().decode().split("\n")
        stamps = self._library.weft_stamps()[: len(names) + 1]
        seconds = [(stamp - stamps[0]) / 1e9 for stamp in stamps]
        return tuple(
            (name, begin, end - begin)
            for name, begin, end in zip(names, seconds, seconds[1:], strict=False)
        )

    def left_changes(self) -> bool:
        """Whether this thread's last call that raised had written to an input, or drawn a number."""
        function = self._library.weft_left_changes
        function.restype = ctypes.c_int64
        return bool(function())

    @property
    def failed_check(self) -> Callable[[], bool] | None:
        """Says whether this thread's last call raised at a check.  Held, it would keep the program itself."""
        return self._failed_check if self.generated.checks_first else None

    def _failed_check(self) -> bool:
        """Whether this thread's last call raised at a check, with no input written to."""
        function = self._library.weft_failed_check
        function.restype = ctypes.c_int64
        return bool(function())

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self.entry(*inputs)
