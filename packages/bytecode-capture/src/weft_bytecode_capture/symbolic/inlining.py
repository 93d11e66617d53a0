"""Evaluation of calls of Python functions inside the evaluation of their caller."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from ..unsupported import Unsupported
from .binding import bind_arguments
from .evaluator import FrameEvaluator
from .models.table import model_of
from .policy import is_other_compiler
from .variables.base import Arguments, Keywords, Variable
from .variables.builder import is_registered

if TYPE_CHECKING:
    from .models.functions.python_functions import FunctionVariable

_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def inline_call(
    caller: FrameEvaluator, function: FunctionVariable, arguments: Arguments, keywords: Keywords
) -> Variable:
    """The result of the call; a generator's for a generator function."""
    code = function.code(caller)
    model = model_of(code)
    if model is not None:
        return model.call(caller, arguments, keywords, function)
    module = function.globals_dictionary(caller).get("__name__")
    if is_other_compiler(module, function.qualified_name()):
        original = getattr(getattr(function, "value", None), "__wrapped__", None)
        if is_registered(original):  # torch's compiler puts wrappers around functions of torch
            return caller.wrap_known(original).call(caller, arguments, keywords)
        raise Unsupported("call of a disabled function", function.qualified_name())
    caller.state.note_repetition()
    if caller.depth >= caller.state.options.inline_depth:
        raise Unsupported("calls nested too deep", function.qualified_name())
    if code.co_flags & _ASYNCHRONOUS:
        raise Unsupported("coroutine", function.qualified_name(), "coroutines are not captured")
    child = FrameEvaluator(
        caller.state, code, function.globals_dictionary(caller), function, caller
    )
    child.locals = bind_arguments(caller, function, code, arguments, keywords)
    if code.co_flags & inspect.CO_GENERATOR:
        from .models.iterators.generators import GeneratorVariable

        root = caller
        while root.parent is not None:
            root = root.parent
        generator = GeneratorVariable(child, root.index)
        caller.state.generators.append(generator)
        return generator
    return child.run()
