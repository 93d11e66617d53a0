"""Classes."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft_guards import IsObject, Source

from ...unsupported import Unsupported
from ..builder import register_predicate, register_wrapper
from .base import Variable
from .class_attributes import bind_to_class
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator
    from .hashing import HashedKey

ClassCall = Callable[["Evaluator", list[Variable], dict[str, Variable]], Variable]

CLASS_CALLS: dict[type, ClassCall] = {}
"""What calling a builtin class does; filled by the modules of the builtin kinds."""

PLAIN_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta)


class ClassVariable(Variable):
    """A class, known by identity."""

    def __init__(self, value: type, source: Source) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        from .hashing import identity_key

        return identity_key(evaluator, self, self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        value = self.value
        if name in ("__name__", "__qualname__", "__module__"):
            return ConstantVariable(getattr(value, name))
        if name == "__class__":
            return evaluator.wrap_known(type(value))
        if isinstance(value, enum.EnumMeta) and name in value.__members__:
            return ConstantVariable(value.__members__[name])
        if type(value) not in PLAIN_METACLASSES:
            raise Unsupported(
                "attribute of a class with a metaclass", f"{value.__qualname__}.{name}"
            )
        found = evaluator.state.find_in_type(value, name)
        if found is None:
            if hasattr(type(value), name):
                raise Unsupported("attribute of a class", f"{value.__qualname__}.{name}")
            evaluator.raise_error(
                AttributeError,
                f"type object {value.__name__!r} has no attribute {name!r}",
                name=name,
            )
        return bind_to_class(evaluator, value, found[0], name, found[1])

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        implementation = CLASS_CALLS.get(self.value)
        if implementation is not None:
            return implementation(evaluator, arguments, keywords)
        if isinstance(self.value, enum.EnumMeta):
            positional, named = evaluator.snapshots(arguments, keywords, self.value.__qualname__)
            return evaluator.wrap_constant(evaluator.pure(self.value, *positional, **named))
        from .instances import new_instance

        return new_instance(evaluator, self.value, arguments, keywords)

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        arguments: list[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        if isinstance(self.value, enum.EnumMeta) and name in ("__getitem__", "__contains__"):
            positional, _ = evaluator.snapshots(arguments, keywords, self.value.__qualname__)
            function = getattr(type(self.value), name)
            return evaluator.wrap_constant(evaluator.pure(function, self.value, *positional))
        return super().call_method(evaluator, name, arguments, keywords)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if isinstance(self.value, enum.EnumMeta):
            members: list[enum.Enum] = list(self.value)
            return [ConstantVariable(member) for member in members]
        return super().iterate(evaluator)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"Class({self.value.__qualname__})"


@register_wrapper(type)
@register_predicate(lambda value: isinstance(value, type), -50)
def _wrap_class(evaluator: Evaluator, value: type, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return ClassVariable(value, source)
