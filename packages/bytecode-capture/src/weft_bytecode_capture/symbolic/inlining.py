"""Evaluation of calls of Python functions inside the evaluation of their caller."""

from __future__ import annotations

import inspect
import types
from collections.abc import MutableMapping
from typing import Any, NoReturn

from .._torch import is_nonstrict
from ..code_objects.dialects import DIALECT
from ..frame.skip_files import has_two_cells_of_a_name
from ..unsupported import Unsupported
from .evaluator import FrameEvaluator
from .key_methods import KIND, changes_nothing
from .models.containers.mappings import new_keyword_dict
from .models.containers.sequences import TupleVariable
from .models.functions.python_functions import FunctionVariable
from .models.iterators.generators import GeneratorVariable
from .models.table import model_of
from .policy import (
    is_break_for_torch,
    is_kept_apart_needlessly,
    is_left_to_cpython,
    is_other_compiler,
    untagged,
)
from .variables.base import Arguments, Keywords, Variable
from .variables.builder import is_registered
from .variables.constant import ConstantVariable

_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def inline_call(
    caller: FrameEvaluator, function: FunctionVariable, arguments: Arguments, keywords: Keywords
) -> Variable:
    """The result of the call; a generator's for a generator function."""
    code = function.code(caller)
    model = model_of(code)
    if model is not None:
        return model.call(caller, arguments, keywords, function)
    dictionary = function.globals_dictionary(caller)
    if type(dictionary) is not dict:
        # Names are looked up by its own methods, as by those of annotationlib's.
        raise Unsupported("globals of another class", function.qualified_name())
    module = dictionary.get("__name__")
    value = getattr(function, "value", None)
    if is_other_compiler(module, function.qualified_name()) and not is_nonstrict(value):
        return _call_of_other_compiler(caller, function, arguments, keywords)
    if is_left_to_cpython(module, function.qualified_name()):
        raise Unsupported("function that is left to CPython", function.qualified_name())
    caller.state.note_repetition()
    if caller.depth >= caller.state.options.inline_depth:
        raise Unsupported("calls nested too deep", function.qualified_name())
    if caller.state.key_methods and not changes_nothing(code):
        raise Unsupported(KIND, function.qualified_name(), "it may have effects")
    if code.co_flags & _ASYNCHRONOUS:
        raise Unsupported("coroutine", function.qualified_name(), "coroutines are not captured")
    if has_two_cells_of_a_name(code):
        raise Unsupported("two variables of a name", function.qualified_name())
    child = FrameEvaluator(caller.state, code, dictionary, function, caller)
    child.locals = bind_arguments(caller, function, code, arguments, keywords)
    if code.co_flags & inspect.CO_GENERATOR:
        if DIALECT.early_iterators:
            child.run()
        *_, root = caller.frames()
        generator = GeneratorVariable(child, root.index)
        caller.state.generators.append(generator)
        return generator
    return child.run()


def _call_of_other_compiler(
    caller: FrameEvaluator, function: FunctionVariable, arguments: Arguments, keywords: Keywords
) -> Variable:
    """A call of a function of torch's own compiler, where it stands for one that is captured.

    :raises Unsupported: it stands for none.
    """
    value, name = getattr(function, "value", None), function.qualified_name()
    module = function.globals_dictionary(caller).get("__name__")
    if is_break_for_torch(module, name, caller.globals.dictionary.get("__name__")):
        return ConstantVariable(None)
    captured = untagged(value)
    if captured is value:  # torch's compiler puts wrappers around other functions of torch
        captured = getattr(value, "__wrapped__", None)
        if not (is_kept_apart_needlessly(captured) or is_registered(captured)):
            raise Unsupported("call of a disabled function", name)
    return caller.wrap_known(captured).call(caller, arguments, keywords)


def class_namespace(
    caller: FrameEvaluator, body: FunctionVariable
) -> tuple[Variable, dict[str, Variable]]:
    """What the function that is a class's body returns, a cell or None, and the namespace that it leaves."""
    dictionary = body.globals_dictionary(caller)
    if type(dictionary) is not dict:
        raise Unsupported("globals of another class", body.qualified_name())
    caller.state.note_repetition()
    child = FrameEvaluator(caller.state, body.code(caller), dictionary, body, caller)
    namespace: dict[str, Variable] = {}
    child.namespace = namespace
    return child.run(), namespace


def evaluated_text(
    caller: FrameEvaluator,
    code: types.CodeType,
    names: MutableMapping[str, Variable],
    dictionary: dict[str, Any],
) -> Variable:
    """What a text's code gives, in which ``names`` are looked up before the globals in ``dictionary``."""
    caller.state.note_repetition()
    if caller.depth >= caller.state.options.inline_depth:
        raise Unsupported("calls nested too deep", code.co_name)
    child = FrameEvaluator(caller.state, code, dictionary, None, caller)
    child.namespace = names
    return child.run()


# Binding a call's arguments to a Python function's parameters, with CPython's errors.


def bind_arguments(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    arguments: Arguments,
    keywords: Keywords,
) -> dict[str, Variable]:
    """Parameters by name, in slot order; TypeError in the captured program on a mismatch."""
    names, positional_count = code.co_varnames, code.co_argcount
    all_count = positional_count + code.co_kwonlyargcount
    has_star = bool(code.co_flags & inspect.CO_VARARGS)
    has_keywords = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    bound: dict[str, Variable] = dict(zip(names[:positional_count], arguments, strict=False))
    is_plain = not (keywords or has_star or has_keywords)
    if is_plain and len(arguments) == all_count == positional_count:
        return bound  # of most calls
    accepted = names[code.co_posonlyargcount : all_count]
    extra = {name: value for name, value in keywords.items() if name not in accepted}
    if (
        (len(arguments) > positional_count and not has_star)
        or (extra and not has_keywords)
        or any(name in bound for name in keywords if name in accepted)
    ):
        _refuse(evaluator, function, code, arguments, keywords)
    bound.update((name, value) for name, value in keywords.items() if name in accepted)
    if len(bound) < all_count:
        first = positional_count - function.default_count(evaluator)
        for position, name in enumerate(names[:all_count]):
            default = bound.get(name)
            if default is None and position >= positional_count:
                default = function.keyword_default(evaluator, name)
            elif default is None and position >= first:
                default = function.default(evaluator, position - first)
            if default is None:
                _refuse(evaluator, function, code, arguments, keywords)
            bound[name] = default
    result = {name: bound[name] for name in names[:all_count]}
    if has_star:
        result[names[all_count]] = TupleVariable(arguments[positional_count:])
    if has_keywords:
        result[names[all_count + has_star]] = new_keyword_dict(extra)
    return result


def _refuse(
    evaluator: FrameEvaluator,
    function: FunctionVariable,
    code: types.CodeType,
    arguments: Arguments,
    keywords: Keywords,
) -> NoReturn:
    """Raise what CPython says of these arguments: to a function of the same code, which does not run."""
    only_keyword = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    defaults = (None,) * function.default_count(evaluator)
    cells = tuple(types.CellType() for _ in code.co_freevars)
    twin = types.FunctionType(code, {}, None, defaults, cells)
    twin.__qualname__ = function.qualified_name()
    twin.__kwdefaults__ = {
        name: None for name in only_keyword if function.keyword_default(evaluator, name) is not None
    }
    evaluator.pure(twin, *[None] * len(arguments), **dict.fromkeys(keywords))
    raise RuntimeError(f"{twin.__qualname__}() takes the arguments")
