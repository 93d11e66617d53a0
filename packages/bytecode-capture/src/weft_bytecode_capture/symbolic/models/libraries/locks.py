"""Locks that the frame makes: no other thread has them, so taking one that is free changes the lock alone."""

from __future__ import annotations

import threading
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import find_raw, name_in_errors, no_attribute
from ..builtins.methods import BuiltinMethodVariable
from ..table import models

_LOCK: Any = type(threading.Lock())
_REENTRANT: Any = type(threading.RLock())
_METHODS = frozenset({"_is_owned", "acquire", "release", "locked", "__enter__", "__exit__"})
_OF_CONDITIONS = frozenset({"_acquire_restore", "_release_save"})
"""What conditions take from a lock, and call where they wait."""


class NewLockVariable(Variable):
    """A lock of class ``kind``, which the frame has taken ``held`` times."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.held = 0

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return self is other

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _METHODS and hasattr(self.kind, name):
            return BuiltinMethodVariable(self, name)
        if find_raw(self.kind, name) is None:
            no_attribute(evaluator, name_in_errors(self.kind), name)
        if name in _OF_CONDITIONS:
            return BuiltinMethodVariable(self, name)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "acquire" and (arguments or keywords):
            return self._acquire_if_free(evaluator, arguments, keywords)
        plain = name == "__exit__" or not (arguments or keywords)
        if name not in _METHODS or not hasattr(self.kind, name) or not plain:
            raise Unsupported("method of a builtin type", f"{name} of {self!r}")
        if name == "_is_owned":
            return ConstantVariable(self.held > 0)
        if name == "locked":
            return ConstantVariable(self.held > 0)
        if evaluator.graph.is_in_region:
            raise Unsupported("effect inside a region", f"{name} of {self!r}")
        if name in ("acquire", "__enter__"):
            if self.held and self.kind is _LOCK:
                raise Unsupported("method of a builtin type", f"{name} of {self!r}, which is taken")
            self.held += 1
            return ConstantVariable(True)
        if not self.held:
            again = self.kind is _REENTRANT
            message = "cannot release un-acquired lock" if again else "release unlocked lock"
            evaluator.raise_error(RuntimeError, message)
        self.held -= 1
        return ConstantVariable(None)

    def _acquire_if_free(
        self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        """``acquire(blocking)``: no other thread lets go of a lock that it does not know."""
        given = dict(zip(("blocking",), arguments, strict=False)) | keywords
        if given.keys() != {"blocking"} or len(arguments) > 1:
            raise Unsupported("method of a builtin type", f"acquire of {self!r}, with a limit")
        if self.held and self.kind is _LOCK and not given["blocking"].truth(evaluator):
            return ConstantVariable(False)
        return self.call_method(evaluator, "acquire", [], {})

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_rebuilt, self.kind is _REENTRANT, self.held)

    def __repr__(self) -> str:
        return f"new {self.kind.__qualname__}"


def _rebuilt(reentrant: bool, held: int) -> Any:
    made = threading.RLock() if reentrant else threading.Lock()
    for _ in range(held):
        made.acquire()
    return made


@models(*dict.fromkeys((threading.Lock, threading.RLock, _REENTRANT)))
def _new(function: Any, evaluator: Evaluator) -> Variable:
    return NewLockVariable(_LOCK if function is threading.Lock else _REENTRANT)
