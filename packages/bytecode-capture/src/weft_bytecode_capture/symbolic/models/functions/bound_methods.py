"""Methods: a function, or what a class in C has, bound to an object."""

from __future__ import annotations

import types
from typing import Any

from weft_guards import AttributeSource, Source, TypeIs

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.operations import is_same_object, values_equal


class BoundMethodVariable(Variable):
    """A function bound to a variable."""

    kind: Any = types.MethodType

    def __init__(
        self, function: Variable, receiver: Variable, source: Source | None = None
    ) -> None:
        self.function = function
        self.receiver = receiver
        self.source = source

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__self__":
            return self.receiver
        if name == "__func__":
            return self.function
        if name == "__class__":
            return evaluator.wrap_known(self.python_type())
        return self.function.get_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return self.function.call(evaluator, [self.receiver, *arguments], keywords)

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Methods are equal if they bind equal functions to one object."""
        if not isinstance(other, BoundMethodVariable):
            return None
        same = is_same_object(evaluator, self.receiver, other.receiver)
        return same and values_equal(evaluator, self.function, other.function)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(types.MethodType, self.function, self.receiver)

    def __repr__(self) -> str:
        return f"BoundMethod({self.function!r} of {self.receiver!r})"


class BoundDescriptorVariable(BoundMethodVariable):
    """A method in C of an instance, as its class gives it: ``object().__init__``."""

    def __init__(self, function: Variable, raw: Any, receiver: Variable) -> None:
        super().__init__(function, receiver)
        wrapped = type(raw) is types.WrapperDescriptorType
        self.kind = types.MethodWrapperType if wrapped else types.BuiltinMethodType

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_bound, self.function, self.receiver)


def _bound(descriptor: Any, receiver: object) -> object:
    return descriptor.__get__(receiver)


@register_wrapper(types.MethodType)
def _wrap_method(evaluator: Evaluator, value: types.MethodType, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(types.MethodType))
    function = evaluator.builder.wrap(value.__func__, AttributeSource(source, "__func__"))
    receiver = evaluator.builder.wrap(value.__self__, AttributeSource(source, "__self__"))
    return BoundMethodVariable(function, receiver, source)
