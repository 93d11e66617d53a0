"""Regular expressions: patterns and matches are constants, and what they do is pure."""

from __future__ import annotations

import re
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_constant_types
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import pure_call
from ..containers.sequences import ListVariable
from ..functions.python_functions import FunctionVariable
from ..table import method_model, method_models, model

register_constant_types(re.Pattern, re.Match)


@model(vars(re)["_compile"])  # what ``re.compile`` and the other functions of ``re`` call
def _compile(evaluator: Evaluator, pattern: Variable, flags: Variable) -> Variable:
    return pure_call(evaluator, re.compile, [pattern, flags], {})


@model(re.escape)
def _escape(evaluator: Evaluator, pattern: Variable) -> Variable:
    return pure_call(evaluator, re.escape, [pattern], {})


@method_model("finditer", re.Pattern)
def _find_each(evaluator: Evaluator, pattern: ConstantVariable, string: Variable) -> Variable:
    found = evaluator.pure(pattern.value.finditer, string.as_constant())
    return ListVariable([ConstantVariable(match) for match in found]).iterator(evaluator)


@method_models(("sub", "subn"), re.Pattern)
def _substituted(
    name: str,
    evaluator: Evaluator,
    pattern: ConstantVariable,
    repl: Variable,
    string: Variable,
    count: Variable | None = None,
) -> Variable:
    """The replacement may be a function of the program's."""

    def replaced(match: re.Match[Any]) -> Any:
        return evaluator.call_function(repl, [ConstantVariable(match)]).as_constant()

    if not repl.is_constant() and not isinstance(repl, FunctionVariable):
        raise Unsupported("call with values that are not constant", f"re.{name}(..., {repl!r})")
    given = repl.as_constant() if repl.is_constant() else replaced
    limit = 0 if count is None else count.as_constant()
    method = getattr(pattern.value, name)
    return evaluator.wrap_result(evaluator.pure(method, given, string.as_constant(), limit))
