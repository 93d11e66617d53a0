"""Callables that C makes of others: ``operator``'s getters and ``functools.cmp_to_key``."""

from __future__ import annotations

import functools
import operator
from typing import Any

from weft_guards import IsObject, Source

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.operations import COMPARISONS
from ..containers.sequences import TupleVariable
from ..table import model


class GetterVariable(Variable):
    """``itemgetter(*keys)``, ``attrgetter(*names)`` or ``methodcaller(name, *arguments, **keywords)``."""

    def __init__(self, kind: type, arguments: Arguments, keywords: Keywords) -> None:
        self.kind = kind
        self.arguments = arguments
        self.keywords = keywords

    def python_type(self) -> type:
        return self.kind

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if len(arguments) != 1 or keywords:
            count = len(arguments) + len(keywords)
            raise Unsupported("arguments of a builtin function", f"{self!r} of {count} arguments")
        target = arguments[0]
        if self.kind is operator.methodcaller:
            name, *rest = self.arguments
            method = target.get_attribute(evaluator, name.as_constant())
            return method.call(evaluator, rest, self.keywords)
        read = self._item if self.kind is operator.itemgetter else self._path
        found = [read(evaluator, target, part) for part in self.arguments]
        return found[0] if len(found) == 1 else TupleVariable(found)

    def _item(self, evaluator: Evaluator, target: Variable, key: Variable) -> Variable:
        return target.call_method(evaluator, "__getitem__", [key], {})

    def _path(self, evaluator: Evaluator, target: Variable, path: Variable) -> Variable:
        for name in path.as_constant().split("."):
            target = target.get_attribute(evaluator, name)
        return target

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self.kind)
        for value in (*self.arguments, *self.keywords.values()):
            emitter.load_variable(value)
        emitter.call(len(self.arguments) + len(self.keywords), tuple(self.keywords))

    def __repr__(self) -> str:
        return f"{self.kind.__name__}{self.arguments!r}"


class ComparedVariable(Variable):
    """What a key function of ``functools.cmp_to_key`` gives: it compares by the function."""

    def __init__(self, function: Variable, value: Variable) -> None:
        self.function = function
        self.value = value

    def python_type(self) -> type:
        return _COMPARED

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return self.value if name == "obj" else super().get_attribute(evaluator, name)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator not in COMPARISONS or not isinstance(other, ComparedVariable) or reflected:
            return None
        result = self.function.call(evaluator, [self.value, other.value], {})
        return evaluator.binary_operation(operator, result, ConstantVariable(0))


class KeyFunctionVariable(Variable):
    """``functools.cmp_to_key(function)``."""

    def __init__(self, function: Variable) -> None:
        self.function = function

    def python_type(self) -> type:
        return _COMPARED

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if len(arguments) != 1 or keywords:
            raise Unsupported("arguments of a builtin function", "a key function")
        return ComparedVariable(self.function, arguments[0])

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(functools.cmp_to_key)
        emitter.load_variable(self.function)
        emitter.call(1)


_COMPARED: type = type(functools.cmp_to_key(lambda left, right: 0))


@model(functools.cmp_to_key)
def _cmp_to_key(evaluator: Evaluator, mycmp: Variable) -> Variable:
    return KeyFunctionVariable(mycmp)


def _register(kind: Any, named: bool) -> None:
    @model(kind)
    def _make(
        evaluator: Evaluator, first: Variable, /, *others: Variable, **keywords: Variable
    ) -> Variable:
        arguments = [first, *others]
        names = arguments[:1] if kind is operator.methodcaller else arguments
        texts = kind is operator.itemgetter or all(
            name.is_constant() and type(name.as_constant()) is str for name in names
        )
        if (keywords and not named) or not texts:
            raise Unsupported("arguments of a builtin class", kind.__name__)
        return GetterVariable(kind, arguments, keywords)

    @register_wrapper(kind)
    def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
        """One from outside, held by identity; constants are all that it may hold."""
        evaluator.guard(source, IsObject(value))
        _, parts, *state = value.__reduce__()
        if state or named:
            raise Unsupported("value of unknown type", f"{kind.__name__} with keywords")
        variable = GetterVariable(kind, [evaluator.wrap_result(part) for part in parts], {})
        variable.source = source
        return variable


_register(operator.itemgetter, False)
_register(operator.attrgetter, False)
_register(operator.methodcaller, True)
