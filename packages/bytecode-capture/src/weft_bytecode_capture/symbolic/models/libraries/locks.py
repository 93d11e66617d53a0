"""Locks that the frame makes: no other thread has them, so taking one that is free changes the lock alone."""

from __future__ import annotations

import threading
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..table import models

_LOCK: Any = type(threading.Lock())
_REENTRANT: Any = type(threading.RLock())
_METHODS = frozenset({"acquire", "release", "locked", "__enter__", "__exit__"})


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
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        plain = name == "__exit__" or not (arguments or keywords)
        if name not in _METHODS or not hasattr(self.kind, name) or not plain:
            return super().call_method(evaluator, name, arguments, keywords)
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
