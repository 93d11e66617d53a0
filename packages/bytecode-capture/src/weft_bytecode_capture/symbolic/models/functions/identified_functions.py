"""Functions known by identity: a call does what the evaluator says, not what their code does."""

from __future__ import annotations

import sys
import types
from typing import Any

from weft_guards import IsObject, Source

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_object, register_predicate
from ...variables.hashing import identity_key, is_silent
from ...variables.keys import HashedKey
from ...variables.python_protocols import no_attribute
from ..table import model_of, when_function_is_modelled

_REPRESENTATIONS: tuple[Any, ...] = (
    types.BuiltinFunctionType.__repr__,
    types.FunctionType.__repr__,
    types.MethodDescriptorType.__repr__,
)
_DESCRIPTIONS = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})


class IdentifiedFunctionVariable(Variable):
    """A function of a library's; subclasses evaluate its calls."""

    def __init__(self, value: Any, source: Source | None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return identity_key(self, self.value)

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Methods of one object are equal, however often they were bound."""
        if not is_silent(self.python_type()):
            return None
        if isinstance(other, IdentifiedFunctionVariable):
            return bool(self.value == other.value)
        is_other = issubclass(other.python_type(), types.FunctionType | types.NoneType)
        return False if is_other else None

    def printable(self, evaluator: Evaluator) -> Any:
        if type(self.value).__repr__ not in _REPRESENTATIONS:
            return super().printable(evaluator)
        return self.value

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _DESCRIPTIONS and hasattr(self.value, name):
            return evaluator.wrap_constant(getattr(self.value, name))
        if not hasattr(self.value, name):
            no_attribute(evaluator, self.python_type().__name__, name)
        return super().get_attribute(evaluator, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"Function({getattr(self.value, '__qualname__', self.value)})"


# Functions with a model, and functions written in C that have none.


@held_by_identity(
    register_predicate(lambda value: type(value) is types.BuiltinFunctionType, -100), weak=True
)
class BuiltinFunctionVariable(IdentifiedFunctionVariable):
    """A function whose calls its model evaluates."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        model = model_of(self.value) or model_of(function_imported_first(self.value))
        if model is None:
            raise Unsupported(
                "call of a builtin function",
                f"{self.value.__name__}({', '.join(map(repr, arguments))})",
                "the evaluator does not know what it does",
            )
        return model.call(evaluator, arguments, keywords)

    def __repr__(self) -> str:
        return f"Builtin({self.value.__name__})"


def function_imported_first(function: types.BuiltinFunctionType) -> Any:
    """The function of the same C code where a module of Python's was imported a second time, or None."""
    module = function.__self__
    if type(module) is not types.ModuleType or module.__name__ not in sys.stdlib_module_names:
        return None
    known = sys.modules.get(module.__name__)
    origin = getattr(module.__spec__, "origin", None)
    if type(known) is not types.ModuleType or getattr(known.__spec__, "origin", "") != origin:
        return None
    found = vars(known).get(function.__name__)
    is_first = type(found) is types.BuiltinFunctionType and found.__self__ is known
    return found if is_first else None


def _wrap_modelled(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return BuiltinFunctionVariable(value, source)


@when_function_is_modelled
def _note(function: Any) -> None:
    register_object(function)(_wrap_modelled)
