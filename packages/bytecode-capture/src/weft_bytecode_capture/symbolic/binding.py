"""Binding a call's arguments to a Python function's parameters, with CPython's errors."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from .variables.base import Arguments, Keywords, Variable

if TYPE_CHECKING:
    from .evaluator import FrameEvaluator
    from .models.functions.python_functions import FunctionVariable


def bind_arguments(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    arguments: Arguments,
    keywords: Keywords,
) -> dict[str, Variable]:
    """Parameters by name, in slot order; TypeError in the captured program on a mismatch."""
    names = code.co_varnames
    positional_count = code.co_argcount
    has_star = bool(code.co_flags & inspect.CO_VARARGS)
    bound: dict[str, Variable] = dict(zip(names[:positional_count], arguments, strict=False))
    if len(arguments) > positional_count and not has_star:
        _raise_too_many(evaluator, function, code, arguments, keywords)
    all_count = positional_count + code.co_kwonlyargcount
    extra = _bind_keywords(evaluator, function, code, bound, keywords)
    if len(bound) < all_count:
        _fill_defaults(evaluator, function, code, bound)
    result = {name: bound[name] for name in names[:all_count]}
    slot = all_count
    if has_star:
        from .models.containers.sequences import TupleVariable

        result[names[slot]] = TupleVariable(arguments[positional_count:])
        slot += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        from .models.containers.mappings import new_keyword_dict

        result[names[slot]] = new_keyword_dict(extra)
    return result


def _bind_keywords(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    bound: dict[str, Variable],
    keywords: Keywords,
) -> dict[str, Variable]:
    """Bind keyword arguments in place; gives those for ``**kwargs``."""
    if not keywords:
        return {}
    all_count = code.co_argcount + code.co_kwonlyargcount
    accepted = code.co_varnames[code.co_posonlyargcount : all_count]
    extra: dict[str, Variable] = {}
    has_keywords = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    for name, value in keywords.items():
        if name in accepted:
            if name in bound:
                evaluator.raise_error(
                    TypeError,
                    f"{function.qualified_name()}() got multiple values for argument {name!r}",
                )
            bound[name] = value
        elif has_keywords:
            extra[name] = value
        else:
            _raise_unexpected_keyword(evaluator, function, code, keywords, name)
    return extra


def _raise_unexpected_keyword(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    keywords: Keywords,
    name: str,
) -> None:
    positional_only = code.co_varnames[: code.co_posonlyargcount]
    wrong = [parameter for parameter in positional_only if parameter in keywords]
    if wrong:
        evaluator.raise_error(
            TypeError,
            f"{function.qualified_name()}() got some positional-only arguments passed as keyword "
            f"arguments: {', '.join(wrong)!r}",
        )
    evaluator.raise_error(
        TypeError, f"{function.qualified_name()}() got an unexpected keyword argument {name!r}"
    )


def _fill_defaults(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    bound: dict[str, Variable],
) -> None:
    names = code.co_varnames
    positional_count = code.co_argcount
    default_count = function.default_count(evaluator)
    missing = []
    for position in range(positional_count):
        name = names[position]
        if name in bound:
            continue
        index = position - (positional_count - default_count)
        if index >= 0:
            bound[name] = function.default(evaluator, index)
        else:
            missing.append(name)
    if missing:
        _raise_missing(evaluator, function, "positional", missing)
    for name in names[positional_count : positional_count + code.co_kwonlyargcount]:
        if name in bound:
            continue
        default = function.keyword_default(evaluator, name)
        if default is None:
            missing.append(name)
        else:
            bound[name] = default
    if missing:
        _raise_missing(evaluator, function, "keyword-only", missing)


def _raise_missing(
    evaluator: FrameEvaluator, function: FunctionVariable, kind: str, missing: list[str]
) -> None:
    quoted = [repr(name) for name in missing]
    if len(quoted) == 1:
        listed = quoted[0]
    elif len(quoted) == 2:
        listed = " and ".join(quoted)
    else:
        listed = ", ".join(quoted[:-1]) + ", and " + quoted[-1]
    plural = "s" if len(missing) > 1 else ""
    evaluator.raise_error(
        TypeError,
        f"{function.qualified_name()}() missing {len(missing)} required {kind} argument{plural}: {listed}",
    )


def _raise_too_many(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    arguments: Arguments,
    keywords: Keywords,
) -> None:
    count = code.co_argcount
    defaults = function.default_count(evaluator)
    if defaults:
        takes = f"from {count - defaults} to {count}"
        plural = True
    else:
        takes = str(count)
        plural = count != 1
    keyword_only = code.co_varnames[count : count + code.co_kwonlyargcount]
    given_keyword_only = sum(name in keywords for name in keyword_only)
    given = str(len(arguments))
    if given_keyword_only:
        positional = "s" if len(arguments) != 1 else ""
        also = "s" if given_keyword_only != 1 else ""
        given += f" positional argument{positional} (and {given_keyword_only} keyword-only argument{also})"
    verb = "was" if len(arguments) == 1 and not given_keyword_only else "were"
    evaluator.raise_error(
        TypeError,
        f"{function.qualified_name()}() takes {takes} positional argument{'s' if plural else ''} but "
        f"{given} {verb} given",
    )
