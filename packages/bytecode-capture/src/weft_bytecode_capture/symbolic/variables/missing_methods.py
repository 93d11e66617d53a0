"""Operations on objects whose class has no method for them: CPython, given a stand-in, says what it raises.

It raises a TypeError, where a call of the method by its name raises an AttributeError.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ...unsupported import Unsupported
from ..protocol import Evaluator
from .base import Variable
from .class_guards import guard_absent
from .python_protocols import is_made_by_statement, module_of

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "__getitem__": lambda value: value[0],
    "__setitem__": lambda value: operator.setitem(value, 0, 0),
    "__delitem__": lambda value: operator.delitem(value, 0),
    "__contains__": lambda value: 0 in value,
    "__iter__": iter,
    "__len__": len,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
    "__abs__": abs,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "keys": lambda value: {**value},
}
_FUNCTIONS["__next__"] = next  # which no tensor has, as it has the others
_ALTERNATIVES = {
    "__contains__": ("__iter__", "__getitem__"),
    "__iter__": ("__getitem__",),
    "__int__": ("__index__", "__trunc__"),
    "__float__": ("__index__",),
    "__complex__": ("__float__", "__index__"),
}
_OF_TEXTS = ("__int__", "__float__", "__complex__")
_BUFFERS = (str, bytes, bytearray, memoryview)


def require_method(evaluator: Evaluator, value: Variable, name: str) -> None:
    """Raise what the operation of the method ``name`` does for a class that does not have it."""
    try:
        kind = value.python_type()
    except Unsupported:  # nothing is known of it: so is the operation
        return
    names = (name, *_ALTERNATIVES.get(name, ()))
    if any(evaluator.state.find_in_type(kind, one) is not None for one in names):
        return
    if issubclass(kind, _BUFFERS) and name in _OF_TEXTS:
        return
    for one in names:
        guard_absent(evaluator, kind, one)
    if issubclass(kind, type) and name == "__getitem__":
        _require_generic(evaluator, getattr(value, "value", None))
    elif name == "__delitem__" and not (is_made_by_statement(kind) or hasattr(kind, "__len__")):
        evaluator.pure(operator.delitem, _stand_in(kind), None)  # C words it in two ways
    else:
        evaluator.pure(_FUNCTIONS[name], _stand_in(kind))


def _require_generic(evaluator: Evaluator, kind: Any) -> None:
    if not isinstance(kind, type) or kind is type:
        return
    if evaluator.state.find_in_type(kind, "__class_getitem__") is None:
        guard_absent(evaluator, kind, "__class_getitem__")
        evaluator.raise_error(TypeError, f"type {kind.__name__!r} is not subscriptable")


def _stand_in(kind: type) -> Any:
    """An object of a class that has the names, the full one too (3.14), and no method."""
    name = name_in_c(kind)
    if is_made_by_statement(kind):
        names = {"__module__": module_of(kind), "__qualname__": kind.__qualname__}
    else:
        names = {"__module__": "builtins", "__qualname__": name}
    return type(name, (), names)()


def name_in_c(kind: type) -> str:
    """A class's name as C has it in errors."""
    if is_made_by_statement(kind) or kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"
