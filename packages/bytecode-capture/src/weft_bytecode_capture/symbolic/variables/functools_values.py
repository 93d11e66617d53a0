"""Values of ``functools`` and ``inspect``: partial functions, cached functions, signatures."""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

from weft_guards import AttributeSource, ConstantSource, IsObject, Source, TypeIs

from ...unsupported import Unsupported
from ..builder import register_wrapper
from ..inlining import CALLS_BY_CODE
from ..policy import is_library_module
from .base import Variable
from .bound_methods import BoundMethodVariable
from .builtins import builtin
from .classes import CLASS_CALLS, ClassVariable
from .constant import ConstantVariable
from .functions import FunctionVariable, KnownFunctionVariable
from .identified_functions import IdentifiedFunctionVariable
from .mappings import DictVariable, keyword_arguments, new_keyword_dict
from .sequences import TupleVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


class PartialVariable(Variable):
    """``functools.partial(function, *arguments, **keywords)``."""

    def __init__(
        self, function: Variable, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.keywords = keywords

    def python_type(self) -> type:
        return functools.partial

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "func":
            return self.function
        if name == "args":
            return TupleVariable(self.arguments)
        if name == "keywords":
            return new_keyword_dict(self.keywords)
        if not hasattr(functools.partial, name):
            evaluator.raise_error(
                AttributeError, f"'functools.partial' object has no attribute {name!r}"
            )
        return super().get_attribute(evaluator, name)

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        return self.function.call(
            evaluator, [*self.arguments, *arguments], {**self.keywords, **keywords}
        )

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(functools.partial)
        emitter.load_variable(self.function)
        for value in (*self.arguments, *self.keywords.values()):
            emitter.load_variable(value)
        emitter.call(1 + len(self.arguments) + len(self.keywords), tuple(self.keywords))

    def __repr__(self) -> str:
        return f"Partial({self.function!r})"


def _new_partial(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    if not arguments:
        evaluator.raise_error(TypeError, "type 'partial' takes at least one argument")
    function, *rest = arguments
    if isinstance(function, PartialVariable):
        return PartialVariable(
            function.function, [*function.arguments, *rest], {**function.keywords, **keywords}
        )
    return PartialVariable(function, rest, keywords)


CLASS_CALLS[functools.partial] = _new_partial


@register_wrapper(functools.partial)
def _wrap_partial(evaluator: Evaluator, value: functools.partial[Any], source: Source) -> Variable:
    evaluator.guard(source, TypeIs(functools.partial))
    wrap = evaluator.builder.wrap
    variable = PartialVariable(
        wrap(value.func, AttributeSource(source, "func")),
        wrap(value.args, AttributeSource(source, "args")).iterate(evaluator),
        keyword_arguments(evaluator, wrap(value.keywords, AttributeSource(source, "keywords"))),
    )
    variable.source = source
    return variable


class CachedFunctionVariable(IdentifiedFunctionVariable):
    """What ``functools.lru_cache`` gives."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__wrapped__":
            assert self.source is not None
            return evaluator.builder.wrap(
                self.value.__wrapped__, AttributeSource(self.source, name)
            )
        return super().get_attribute(evaluator, name)

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        """A library's cached function is asked during capture: it answers the same each time."""
        if not is_library_module(self.value.__module__):
            raise Unsupported(
                "call of a cached function",
                self.value.__qualname__,
                "whether it runs or answers from its cache is decided at run time",
                ("call the function without functools.lru_cache in compiled code",),
            )
        plain = [_class_or_constant(argument) for argument in arguments]
        positional, named = evaluator.snapshots(plain, keywords, self.value.__qualname__)
        result = evaluator.pure(self.value, *positional, **named)
        known = (type, types.ModuleType, types.FunctionType)
        if isinstance(result, known) or type(result).__module__ == "typing":
            return evaluator.wrap_known(result)
        return evaluator.wrap_result(result)


def _class_or_constant(argument: Variable) -> Variable:
    """A class stands for itself: ``typing`` caches what subscripts with classes give."""
    return ConstantVariable(argument.value) if isinstance(argument, ClassVariable) else argument


@register_wrapper(functools._lru_cache_wrapper)
def _wrap_cached_function(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value, weak=True))
    return CachedFunctionVariable(value, source)


# The function ``dispatch`` that every generic function has: a closure over its registry and a cache.
_DISPATCH = vars(functools.singledispatch(len))["dispatch"].__code__


def _dispatch(
    evaluator: Evaluator,
    function: FunctionVariable,
    arguments: list[Variable],
    keywords: dict[str, Variable],
) -> Variable:
    """The implementation for a class: the cache that holds it by weak references says nothing more."""
    names = _DISPATCH.co_freevars
    cell = function.closure_cells(evaluator)[names.index("registry")]
    registry = cell.read(evaluator)
    wanted = arguments[0] if len(arguments) == 1 and not keywords else None
    if not isinstance(registry, DictVariable) or not isinstance(wanted, ClassVariable):
        raise Unsupported("arguments of a builtin function", f"{function!r}, singledispatch")
    original = registry.original
    unchanged = not registry.written and not registry.deleted
    if original is None or not unchanged or not isinstance(function, KnownFunctionVariable):
        raise Unsupported("call of a cached function", f"{function!r}, singledispatch")
    function.identify(evaluator)
    chosen = evaluator.pure(function.value, wanted.value)
    rows = registry.all_entries(evaluator).items()
    return next(
        implementation
        for key, implementation in rows
        if key.python_key is not None and original[key.python_key[0]] is chosen
    )


CALLS_BY_CODE[id(_DISPATCH)] = (_DISPATCH, _dispatch)


@builtin(inspect.signature)
def _signature(evaluator: Evaluator, function: Variable) -> Variable:
    """The signature of a function that the guards hold."""
    bound = isinstance(function, BoundMethodVariable)
    plain = function.function if isinstance(function, BoundMethodVariable) else function
    if not isinstance(plain, KnownFunctionVariable):
        raise Unsupported("call of a builtin function", f"inspect.signature({function!r})")
    plain.identify(evaluator)
    plain.guard_signature(evaluator)
    target: Any = plain.value
    if bound:
        target = types.MethodType(target, object())
    signature = evaluator.pure(inspect.signature, target)
    label = f"inspect.signature({plain.qualified_name()})"
    return evaluator.builder.wrap(signature, ConstantSource(label, signature))


@builtin(inspect.isclass)
def _is_class(evaluator: Evaluator, value: Variable) -> Variable:
    return ConstantVariable(issubclass(value.python_type(), type))
