"""Type parameters of functions that the frame makes (``def f[T](x: T)``, since CPython 3.12)."""

from __future__ import annotations

import typing

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable

KINDS = {7: typing.TypeVar, 8: typing.ParamSpec, 9: typing.TypeVarTuple}
"""What each of the compiler's functions of a name makes."""


class TypeParameterVariable(Variable):
    """A parameter without a bound; each call of the frame makes one of its own."""

    def __init__(self, number: int, name: Variable) -> None:
        self.kind = KINDS[number]
        self.name = name

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        return self is other

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__name__":
            return self.name
        if self.kind is typing.TypeVar and name == "__bound__":
            return ConstantVariable(None)
        return super().get_attribute(evaluator, name)

    def reconstruct(self, emitter: Emitter) -> None:
        raise Unsupported("value cannot be rebuilt after a graph", repr(self))

    def __repr__(self) -> str:
        return f"type parameter {self.name!r}"
