"""Contexts that the frame copies: what is set in one while ``run`` lasts, and what is read from it."""

from __future__ import annotations

import contextvars

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Keywords, Variable
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinVariable
from ..exceptions.exception_objects import ExceptionVariable
from ..table import method_model, model
from .context_variables import ContextVarVariable


class ContextVariable(BuiltinVariable):
    """A copy of the context of the call; ``bindings`` are of what the frame has set in it, None: unset."""

    kind = contextvars.Context

    def __init__(self, bindings: dict[ContextVarVariable, Variable | None]) -> None:
        self.bindings = bindings
        self.is_entered = False

    def find(self, evaluator: Evaluator, variable: Variable) -> Variable | None:
        """What a variable is set to in it."""
        if not isinstance(variable, ContextVarVariable):
            raise Unsupported("method of a builtin type", f"{variable!r} in a context")
        if self.is_entered:
            return variable.binding(evaluator)
        if variable in self.bindings:
            return self.bindings[variable]
        variable.binding(evaluator)
        return variable.first


def _set_variables(evaluator: Evaluator) -> dict[ContextVarVariable, Variable | None]:
    """What the frame has set, in the context that is current now."""
    changed = evaluator.side_effects.mutated_variables()
    return {found: found.bound for found in changed if isinstance(found, ContextVarVariable)}


def _enter(
    bindings: dict[ContextVarVariable, Variable | None],
    known: dict[ContextVarVariable, Variable | None],
) -> None:
    """Let the variables be what they are in a context; those that it does not know are as on entry."""
    for variable in known:
        variable.bound = bindings.get(variable, variable.first)


@model(contextvars.copy_context)
def _copy_context(evaluator: Evaluator) -> Variable:
    return ContextVariable(_set_variables(evaluator))


@method_model("copy", contextvars.Context)
def _copy(evaluator: Evaluator, self: ContextVariable, /) -> Variable:
    if self.is_entered:
        raise Unsupported("method of a builtin type", "copy of a context that is entered")
    return ContextVariable(dict(self.bindings))


@method_model("run", contextvars.Context)
def _run(
    evaluator: Evaluator,
    self: ContextVariable,
    function: Variable,
    /,
    *arguments: Variable,
    **keywords: Variable,
) -> Variable:
    if self.is_entered:
        raise Unsupported("method of a builtin type", "run of a context that is entered")
    state = evaluator.state
    outer, outer_context = _set_variables(evaluator), state.context
    _enter(self.bindings, outer)
    self.is_entered, state.context = True, self
    named: Keywords = keywords
    try:
        return function.call(evaluator, list(arguments), named)
    finally:
        self.is_entered, state.context = False, outer_context
        self.bindings = _set_variables(evaluator)
        _enter(outer, self.bindings)


@method_model("get", contextvars.Context)
def _get(
    evaluator: Evaluator,
    self: ContextVariable,
    variable: Variable,
    default: Variable | None = None,
    /,
) -> Variable:
    found = self.find(evaluator, variable)
    return found if found is not None else default or ConstantVariable(None)


@method_model("__contains__", contextvars.Context)
def _contains(evaluator: Evaluator, self: ContextVariable, variable: Variable, /) -> Variable:
    return ConstantVariable(self.find(evaluator, variable) is not None)


@method_model("__getitem__", contextvars.Context)
def _item(evaluator: Evaluator, self: ContextVariable, variable: Variable, /) -> Variable:
    found = self.find(evaluator, variable)
    if found is None:
        evaluator.raise_exception(ExceptionVariable(KeyError, [variable]))
    return found
