"""Objects that the evaluator knows nothing about, and weft's own wrappers of functions."""

from __future__ import annotations

from typing import Any

from weft_guards import AttributeSource, Source, TypeIs

from .... import _frame_hook
from ....compiling import is_compiling
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_predicate, register_wrapper
from ...variables.constant import ConstantVariable
from ..table import model


class OpaqueVariable(Variable):
    """An object that can be held, passed on and returned; any other use is unsupported.

    Nothing about it is guarded: code that only moves it around is right for every object.
    """

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """An object of another kind is another object, as long as this one's type stays."""
        if other.is_constant():
            assert self.source is not None
            evaluator.guard(self.source, TypeIs(type(self.value)))
            return other.as_constant() is self.value
        return None

    def __repr__(self) -> str:
        where = self.source.name() if self.source is not None else ""
        return f"{type(self.value).__qualname__} object at {where}"


@register_predicate(lambda value: True, priority=-1000)
def _wrap_any(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return OpaqueVariable(value, source)


class RefusedVariable(OpaqueVariable):
    """An object of a kind that is known not to be captured: any use is the break given."""

    def __init__(self, value: Any, source: Source, kind: str, context: str, why: str = "") -> None:
        super().__init__(value, source)
        self._kind = kind
        self._context = context
        self._why = why

    def _refuse(self, *arguments: Any, **keywords: Any) -> Any:
        raise Unsupported(self._kind, self._context, self._why)

    python_type: Any = _refuse
    get_attribute: Any = _refuse
    set_attribute: Any = _refuse
    delete_attribute: Any = _refuse
    call: Any = _refuse
    call_method: Any = _refuse
    binary_operation: Any = _refuse
    iterate: Any = _refuse
    iterator: Any = _refuse
    next_or_none: Any = _refuse
    truth: Any = _refuse
    length: Any = _refuse
    hashed_key: Any = _refuse


@model(is_compiling)
def _is_compiling(evaluator: Evaluator) -> Variable:
    """``weft.is_compiling``: True in captured code."""
    return ConstantVariable(True)


class DisabledVariable(OpaqueVariable):
    """A function that ``disable`` was applied to."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        raise Unsupported(
            "call of a disabled function",
            repr(self.value),
            "weft.disable keeps the function out of captured code",
        )


@register_wrapper(_frame_hook.Wrapper)
def _wrap_wrapper(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """A compiled function called in captured code is captured with it."""
    if value.context is None:
        return DisabledVariable(value, source)
    evaluator.guard(source, TypeIs(_frame_hook.Wrapper))
    return evaluator.builder.wrap(value.callable, AttributeSource(source, "callable"))
