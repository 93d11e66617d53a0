"""Methods: a function, or what a class in C has, bound to an object."""

from __future__ import annotations

import types
from typing import Any

from weft_guards import AttributeSource, Source, TypeIs

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.operations import is_same_object, values_equal


class BoundMethodVariable(Variable):
    """A function bound to a variable."""

    def __init__(
        self, function: Variable, receiver: Variable, source: Source | None = None
    ) -> None:
        self.function = function
        self.receiver = receiver
        self.source = source

    def python_type(self) -> type:
        return types.MethodType

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__self__":
            return self.receiver
        if name == "__func__":
            return self.function
        return self.function.get_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return self.function.call(evaluator, [self.receiver, *arguments], keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Methods are equal if they bind equal functions to one object."""
        if operator not in ("eq", "ne") or not isinstance(other, BoundMethodVariable):
            return None
        equal = is_same_object(evaluator, self.receiver, other.receiver) and values_equal(
            evaluator, self.function, other.function
        )
        return ConstantVariable(equal is (operator == "eq"))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(types.MethodType)
        emitter.load_variable(self.function)
        emitter.load_variable(self.receiver)
        emitter.call(2)

    def __repr__(self) -> str:
        return f"BoundMethod({self.function!r} of {self.receiver!r})"


class BoundDescriptorVariable(BoundMethodVariable):
    """A method in C of an instance, as its class gives it: ``object().__init__``."""

    def __init__(self, function: Variable, raw: Any, receiver: Variable) -> None:
        super().__init__(function, receiver)
        wrapped = type(raw) is types.WrapperDescriptorType
        self._kind: type = types.MethodWrapperType if wrapped else types.BuiltinMethodType

    def python_type(self) -> type:
        return self._kind

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_bound)
        emitter.load_variable(self.function)
        emitter.load_variable(self.receiver)
        emitter.call(2)


def _bound(descriptor: Any, receiver: object) -> object:
    return descriptor.__get__(receiver)


@register_wrapper(types.MethodType)
def _wrap_method(evaluator: Evaluator, value: types.MethodType, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(types.MethodType))
    function = evaluator.builder.wrap(value.__func__, AttributeSource(source, "__func__"))
    receiver = evaluator.builder.wrap(value.__self__, AttributeSource(source, "__self__"))
    return BoundMethodVariable(function, receiver, source)
