"""Callables that ``functools`` and ``operator`` make of others, and signatures."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import types
from collections.abc import Iterable
from typing import Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    HasAttribute,
    IsObject,
    LengthIs,
    Source,
    TypeIs,
)

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_constant_types, register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import COMPARISONS, no_attribute
from ..containers.mappings import DictVariable, keyword_arguments, new_keyword_dict
from ..containers.sequences import TupleVariable
from ..functions.bound_methods import BoundMethodVariable
from ..functions.python_functions import FunctionVariable, KnownFunctionVariable
from ..iterators.rebuilding import partial_function
from ..objects.classes import ClassVariable
from ..table import model, models

_OF_PARTIALS = frozenset(dir(functools.partial))

_PLACEHOLDER = vars(functools).get("Placeholder")
"""What keeps the place of a positional argument of a partial function; None before CPython 3.14."""

if _PLACEHOLDER is not None:
    register_constant_types(type(_PLACEHOLDER))


def _is_free(argument: Variable) -> bool:
    """Whether a call of the partial function gives the argument."""
    known = _PLACEHOLDER is not None and argument.is_constant()
    return known and argument.as_constant() is _PLACEHOLDER


def _merged(kept: Iterable[Variable], given: Iterable[Variable]) -> list[Variable]:
    """Arguments kept, with those given in free places first, and then behind."""
    rest = iter(given)
    filled = [next(rest, argument) if _is_free(argument) else argument for argument in kept]
    return [*filled, *rest]


def _only_reads(evaluator: Evaluator) -> bool:
    """Whether the running code only copies the attributes that it asks for."""
    return evaluator.frame.code is functools.update_wrapper.__code__


class PartialVariable(Variable):
    """``functools.partial(function, *arguments, **keywords)``, or one from outside, which is ``value``."""

    kind = functools.partial

    def __init__(
        self,
        function: Variable,
        arguments: Variable,
        keywords: DictVariable,
        value: functools.partial[Any] | None = None,
        source: Source | None = None,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.value = value
        self.source = source
        self.attributes: dict[str, Variable] = {}  # given to one made here

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "func":
            return self.function
        if name == "args":
            return self.arguments
        if name == "keywords":
            return self.keywords
        if name in ("__module__", "__doc__"):
            return evaluator.wrap_constant(getattr(functools.partial, name))
        if name == "__dict__" and self.source is None and _only_reads(evaluator):
            return new_keyword_dict(dict(self.attributes))
        if name not in _OF_PARTIALS:
            return self._own_attribute(evaluator, name)
        return super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if self.source is not None or name in _OF_PARTIALS:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.attributes[name] = value

    def _own_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        """What somebody has set on the object, as on a function."""
        if name in self.attributes:
            return self.attributes[name]
        is_there = self.value is not None and name in vars(self.value)
        if self.source is not None:
            evaluator.guard(self.source, HasAttribute(name, is_there))
        if not is_there:
            no_attribute(evaluator, "functools.partial", name)
        assert self.source is not None
        return evaluator.builder.wrap(getattr(self.value, name), AttributeSource(self.source, name))

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        known = keyword_arguments(evaluator, self.keywords)
        kept = self.arguments.iterate(evaluator)
        free = sum(map(_is_free, kept))
        if free > len(arguments):
            evaluator.raise_error(
                TypeError,
                "missing positional arguments in 'partial' call; "
                f"expected at least {free}, got {len(arguments)}",
            )
        return self.function.call(evaluator, _merged(kept, arguments), {**known, **keywords})

    def reconstruct(self, emitter: Emitter) -> None:
        if self.attributes:
            super().reconstruct(emitter)
        pairs = [(key.variable, value) for key, value in self.keywords.entries.items()]
        keywords = itertools.chain.from_iterable(pairs)
        emitter.load_call(partial_function, self.function, self.arguments, *keywords)

    def __repr__(self) -> str:
        return f"Partial({self.function!r})"


class _KeywordsVariable(DictVariable):
    """The keyword arguments of a partial function made here, which the code after the graph asks for them."""

    partial: PartialVariable

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.partial)
        emitter.load_attribute("keywords")


@model(functools.partial)
def _new_partial(
    evaluator: Evaluator, function: Variable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    rest = list(arguments)
    if rest and _is_free(rest[-1]):
        evaluator.raise_error(TypeError, "trailing Placeholders are not allowed")
    if any(map(_is_free, keywords.values())):
        evaluator.raise_error(TypeError, "Placeholder cannot be passed as a keyword argument")
    if isinstance(function, PartialVariable):
        if function.source is not None:
            evaluator.guard(AttributeSource(function.source, "__dict__"), LengthIs(0))
        if not function.attributes and (function.value is None or not vars(function.value)):
            rest = _merged(function.arguments.iterate(evaluator), rest)
            keywords = {**keyword_arguments(evaluator, function.keywords), **keywords}
            function = function.function
        else:
            raise Unsupported("arguments of a builtin class", "partial of one with attributes")
    held = _KeywordsVariable(new_keyword_dict(keywords).entries)
    held.partial = PartialVariable(function, TupleVariable(rest), held)
    return held.partial


@register_wrapper(functools.partial)
def _wrap_partial(evaluator: Evaluator, value: functools.partial[Any], source: Source) -> Variable:
    evaluator.guard(source, TypeIs(functools.partial))
    wrap = evaluator.builder.wrap
    keywords = wrap(value.keywords, AttributeSource(source, "keywords"))
    assert isinstance(keywords, DictVariable)
    return PartialVariable(
        wrap(value.func, AttributeSource(source, "func")),
        wrap(value.args, AttributeSource(source, "args")),
        keywords,
        value,
        source,
    )


# The function ``dispatch`` that every generic function has: a closure over its registry and a cache.
_DISPATCH = vars(functools.singledispatch(len))["dispatch"].__code__


@model(_DISPATCH)
def _dispatch(evaluator: Evaluator, function: FunctionVariable, wanted: Variable) -> Variable:
    """The implementation for a class: the cache that holds it by weak references says nothing more."""
    names = _DISPATCH.co_freevars
    cell = function.closure_cells(evaluator)[names.index("registry")]
    registry = cell.read(evaluator)
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


@model(inspect.signature)
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


@model(inspect.isclass)
def _is_class(evaluator: Evaluator, value: Variable, /) -> Variable:
    return ConstantVariable(issubclass(value.python_type(), type))


# Callables that C makes of others: ``operator``'s getters and ``functools.cmp_to_key``.


class GetterVariable(Variable):
    """``itemgetter(*keys)``, ``attrgetter(*names)`` or ``methodcaller(name, *arguments, **keywords)``."""

    def __init__(self, kind: type, arguments: Arguments, keywords: Keywords) -> None:
        self.kind = kind
        self.arguments = arguments
        self.keywords = keywords

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if len(arguments) != 1 or keywords:
            getter = self.kind("name")  # it raises before it looks at anything
            evaluator.pure(getter, *[None] * len(arguments), **dict.fromkeys(keywords))
        target = arguments[0]
        if self.kind is operator.methodcaller:
            name, *rest = self.arguments
            method = target.get_attribute(evaluator, name.as_constant())
            return method.call(evaluator, rest, self.keywords)
        read = self._item if self.kind is operator.itemgetter else self._path
        found = [read(evaluator, target, part) for part in self.arguments]
        return found[0] if len(found) == 1 else TupleVariable(found)

    def _item(self, evaluator: Evaluator, target: Variable, key: Variable) -> Variable:
        return target.call_method(evaluator, "__getitem__", [key], {})

    def _path(self, evaluator: Evaluator, target: Variable, path: Variable) -> Variable:
        for name in path.as_constant().split("."):
            target = target.get_attribute(evaluator, name)
        return target

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self.kind)
        for value in (*self.arguments, *self.keywords.values()):
            emitter.load_variable(value)
        emitter.call(len(self.arguments) + len(self.keywords), tuple(self.keywords))

    def __repr__(self) -> str:
        return f"{self.kind.__name__}{self.arguments!r}"


class ComparedVariable(Variable):
    """What a key function of ``functools.cmp_to_key`` gives: it compares by the function."""

    def __init__(self, function: Variable, value: Variable) -> None:
        self.function = function
        self.value = value

    def python_type(self) -> type:
        return _COMPARED

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return self.value if name == "obj" else super().get_attribute(evaluator, name)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator not in COMPARISONS or not isinstance(other, ComparedVariable) or reflected:
            return None
        result = self.function.call(evaluator, [self.value, other.value], {})
        return evaluator.binary_operation(operator, result, ConstantVariable(0))


class KeyFunctionVariable(Variable):
    """``functools.cmp_to_key(function)``."""

    def __init__(self, function: Variable) -> None:
        self.function = function

    def python_type(self) -> type:
        return _COMPARED

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if len(arguments) != 1 or keywords:
            raise Unsupported("arguments of a builtin function", "a key function")
        return ComparedVariable(self.function, arguments[0])

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(functools.cmp_to_key, self.function)


_COMPARED: type = type(functools.cmp_to_key(lambda left, right: 0))


@model(functools.cmp_to_key)
def _cmp_to_key(evaluator: Evaluator, mycmp: Variable) -> Variable:
    return KeyFunctionVariable(mycmp)


_GETTERS: tuple[Any, ...] = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


@models(*_GETTERS)
def _make(
    kind: Any,
    evaluator: Evaluator,
    /,
    *arguments: Variable,
    **keywords: Variable,
) -> Variable:
    if not arguments or (keywords and kind is not operator.methodcaller):
        evaluator.pure(kind, *["name"] * len(arguments), **dict.fromkeys(keywords))  # raises
    names = {operator.attrgetter: arguments, operator.methodcaller: arguments[:1]}.get(kind, ())
    for name in names:
        if not issubclass(name.python_type(), str):
            evaluator.pure(kind, None)  # raises
        if type(name.as_constant()) is not str:
            raise Unsupported("arguments of a builtin class", kind.__name__)
    return GetterVariable(kind, [*arguments], keywords)


@register_wrapper(*_GETTERS)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """One from outside, held by identity; constants are all that it may hold."""
    evaluator.guard(source, IsObject(value))
    _, parts, *state = value.__reduce__()
    kind = type(value)
    if state or kind is operator.methodcaller:
        raise Unsupported("value of unknown type", f"{kind.__name__} with keywords")
    variable = GetterVariable(kind, [evaluator.wrap_result(part) for part in parts], {})
    variable.source = source
    return variable
