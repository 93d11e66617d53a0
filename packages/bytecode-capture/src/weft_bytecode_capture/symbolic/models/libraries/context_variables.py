"""Context variables: what is set in the context of the call is read with guards, and set after the graph."""

from __future__ import annotations

import contextvars
from typing import Any

from weft_guards import EqualsConstant, Source

from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_wrapper
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable, BuiltinVariable
from ..exceptions.exception_objects import ExceptionVariable
from ..table import method_model


@held_by_identity(register_wrapper(contextvars.ContextVar))
class ContextVarVariable(BuiltinVariable):
    """A context variable, known by identity; ``bound`` is what it is set to, None where it is not set."""

    kind = contextvars.ContextVar

    def __init__(self, value: contextvars.ContextVar[Any], source: Source) -> None:
        self.value = value
        self.source: Source = source
        self.is_read = False
        self.bound: Variable | None = None
        self.first: Variable | None = None

    def binding(self, evaluator: Evaluator) -> Variable | None:
        """What it is set to now."""
        if not self.is_read:
            self.is_read = True
            evaluator.guard(
                ConvertedSource(self.source, is_bound), EqualsConstant(is_bound(self.value))
            )
            if is_bound(self.value):
                place = ConvertedSource(self.source, bound_value)
                self.first = evaluator.builder.wrap(bound_value(self.value), place)
            self.bound = self.first
        return self.bound

    def bind(self, evaluator: Evaluator, value: Variable | None) -> None:
        """Set it, or let it be unset as it was on entry."""
        if evaluator.graph.is_in_region:
            raise Unsupported("method of a builtin type", f"set of {self!r} inside a region")
        self.bound = value
        evaluator.side_effects.mutated(self)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "name":
            return evaluator.wrap_constant(self.value.name)
        return super().get_attribute(evaluator, name)

    def emit_mutation(self, emitter: Emitter) -> None:
        if self.bound is not None and self.bound is not self.first:
            emitter.run_call(contextvars.ContextVar.set, self, self.bound)


class TokenVariable(Variable):
    """What ``set`` gives: it resets the variable once, in the frame and the context that have set it."""

    kind = contextvars.Token

    def __init__(
        self, variable: ContextVarVariable, before: Variable | None, context: Variable | None
    ) -> None:
        self.variable = variable
        self.context = context
        self.before = before
        self.is_used = False

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "var":
            return self.variable
        if name == "old_value" and self.before is not None:
            return self.before
        if name in ("__enter__", "__exit__") and hasattr(contextvars.Token, name):
            return BuiltinMethodVariable(self, name)  # from CPython 3.14 on
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__enter__":
            return self
        if name == "__exit__":
            _reset(evaluator, self.variable, self)
            return ConstantVariable(None)
        return super().call_method(evaluator, name, arguments, keywords)


def is_bound(variable: contextvars.ContextVar[Any]) -> bool:
    """Whether the variable is set in the current context."""
    return variable in contextvars.copy_context()


def bound_value(variable: contextvars.ContextVar[Any]) -> Any:
    """What the variable is set to in the current context, None where it is not."""
    return variable.get(None)


def default_value(variable: contextvars.ContextVar[Any]) -> Any:
    """What the variable is where nothing has set it."""
    return contextvars.Context().run(variable.get)


@method_model("get", contextvars.ContextVar)
def _get(
    evaluator: Evaluator, self: ContextVarVariable, default: Variable | None = None, /
) -> Variable:
    bound = self.binding(evaluator)
    if bound is None:
        bound = default
    if bound is not None:
        return bound
    try:
        value = default_value(self.value)
    except LookupError:
        evaluator.raise_exception(ExceptionVariable(LookupError, [self]))
    return evaluator.builder.wrap(value, ConvertedSource(self.source, default_value))


@method_model("set", contextvars.ContextVar)
def _set(evaluator: Evaluator, self: ContextVarVariable, value: Variable, /) -> Variable:
    token = TokenVariable(self, self.binding(evaluator), evaluator.state.context)
    self.bind(evaluator, value)
    return token


@method_model("reset", contextvars.ContextVar)
def _reset(evaluator: Evaluator, self: ContextVarVariable, token: Variable, /) -> None:
    what = f"reset of {self!r} by {token!r}"
    if not isinstance(token, TokenVariable) or token.variable is not self or token.is_used:
        raise Unsupported("method of a builtin type", what)
    if token.context is not evaluator.state.context:
        raise Unsupported("method of a builtin type", what)
    token.is_used = True
    self.bind(evaluator, token.before)
