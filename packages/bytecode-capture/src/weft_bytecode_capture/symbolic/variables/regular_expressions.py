"""Regular expressions: patterns and matches are constants, and what they do is pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from ..builder import register_constant_types
from ..models import method_model, model
from ..protocol import Evaluator
from .constant import ConstantVariable
from .functions import FunctionVariable
from .sequences import ListVariable

if TYPE_CHECKING:
    from .base import Variable

register_constant_types(re.Pattern, re.Match)


def _pattern(evaluator: Evaluator, pattern: Variable, flags: Variable | None) -> re.Pattern[Any]:
    flag_values = () if flags is None else (flags.as_constant(),)
    compiled: re.Pattern[Any] = evaluator.pure(re.compile, pattern.as_constant(), *flag_values)
    return compiled


def _register(name: str) -> None:
    @model(getattr(re, name))
    def _call(
        evaluator: Evaluator, pattern: Variable, text: Variable, flags: Variable | None = None
    ) -> Variable:
        compiled = ConstantVariable(_pattern(evaluator, pattern, flags))
        return compiled.call_method(evaluator, name, [text], {})


for _name in ("match", "fullmatch", "search", "findall"):
    _register(_name)


@model(re.compile)
def _compile(evaluator: Evaluator, pattern: Variable, flags: Variable | None = None) -> Variable:
    return ConstantVariable(_pattern(evaluator, pattern, flags))


@model(re.escape)
def _escape(evaluator: Evaluator, pattern: Variable) -> Variable:
    return ConstantVariable(evaluator.pure(re.escape, pattern.as_constant()))


@model(re.finditer)
def _finditer(
    evaluator: Evaluator, pattern: Variable, text: Variable, flags: Variable | None = None
) -> Variable:
    compiled = _pattern(evaluator, pattern, flags)
    return _matches(evaluator, compiled, text.as_constant()).iterator(evaluator)


def _matches(evaluator: Evaluator, pattern: re.Pattern[Any], text: Any) -> ListVariable:
    found = evaluator.pure(pattern.finditer, text)
    return ListVariable([ConstantVariable(match) for match in found])


@model(re.split)
def _split(
    evaluator: Evaluator,
    pattern: Variable,
    string: Variable,
    maxsplit: Variable | None = None,
    flags: Variable | None = None,
) -> Variable:
    compiled = ConstantVariable(_pattern(evaluator, pattern, flags))
    limits = [] if maxsplit is None else [maxsplit]
    return compiled.call_method(evaluator, "split", [string, *limits], {})


@model(re.sub)
def _sub(
    evaluator: Evaluator,
    pattern: Variable,
    repl: Variable,
    string: Variable,
    count: Variable | None = None,
    flags: Variable | None = None,
) -> Variable:
    compiled = _pattern(evaluator, pattern, flags)
    limit = 0 if count is None else count.as_constant()
    return substitute(evaluator, compiled, repl, string.as_constant(), limit)


def substitute(
    evaluator: Evaluator, pattern: re.Pattern[Any], replacement: Variable, text: Any, count: int = 0
) -> Variable:
    """``pattern.sub(replacement, text, count)``, where the replacement may be a function."""
    if replacement.is_constant():
        made = evaluator.pure(pattern.sub, replacement.as_constant(), text, count)
        return ConstantVariable(made)
    if not isinstance(replacement, FunctionVariable):
        raise Unsupported("call with values that are not constant", f"re.sub(..., {replacement!r})")

    def replaced(match: re.Match[Any]) -> Any:
        return replacement.call(evaluator, [ConstantVariable(match)], {}).as_constant()

    return ConstantVariable(evaluator.pure(pattern.sub, replaced, text, count))


@method_model("sub", re.Pattern)
def _substituted(
    evaluator: Evaluator, pattern: ConstantVariable, repl: Variable, string: Variable
) -> Variable:
    return substitute(evaluator, pattern.value, repl, string.as_constant())


@method_model("finditer", re.Pattern)
def _find_each(evaluator: Evaluator, pattern: ConstantVariable, string: Variable) -> Variable:
    return _matches(evaluator, pattern.value, string.as_constant()).iterator(evaluator)
