"""Functions behind ``functools.lru_cache`` and ``functools.cache``.

A call that the cache answers is no call: what it gives is read from the cache on entry of the frame, as any
object from outside is, and the hit is counted behind the graph.  A call that the cache cannot answer is
CPython's, in code that is guarded to be for such a cache: once it has been made, the frame is captured again.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from weft_guards import AttributeSource, IsObject, SymbolSource, expression_function

from ...._torch.symbols import expression_of
from ....frame.emitter import Emitter
from ....sources import ComputedSource
from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_wrapper
from ...variables.constant import ConstantVariable
from ..functions.identified_functions import IdentifiedFunctionVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..objects.classes import ClassVariable
from ..objects.user_objects import UserObjectVariable

# What a cache holds.  ``functools`` has no way to ask that counts as no call, so what it tells the garbage
# collector is read (``lru_cache_tp_traverse`` of CPython's ``_functoolsmodule.c``): of a cache of limited
# size each link's key, result and class, oldest first; then the dict of links, or of results.

_LINK = 3


def cached_result(function: Any, key: Any) -> Any:
    """What a call would be answered with, which counts as no call.

    :raises KeyError: nothing; the function would be called.
    """
    links, cache = _contents(function)
    if not links:  # the cache has no limit
        return cache[key]
    if key in cache:
        for k in range(len(links) - _LINK, -1, -_LINK):  # a hit makes its link the last
            if links[k] == key:
                return links[k + 1]
    raise KeyError(key)


def is_cached(function: Any, key: Any) -> bool:
    """Whether a call would be answered from the cache."""
    _, cache = _contents(function)
    return key in cache


def _contents(function: Any) -> tuple[list[Any], dict[Any, Any]]:
    """The links' keys, results and classes, none of a cache without limit, and the cache's dict."""
    held, own = gc.get_referents(function), vars(function)
    for k in range(len(held) - 1, -1, -1):
        if type(held[k]) is dict and held[k] is not own:
            return held[k % _LINK : k], held[k]
    raise AssertionError("a cache holds a dict")


@dataclass(frozen=True)
class _Number:
    """An argument that numbers of the call determine: an expression of ``n0``, ``n1``, ..."""

    expression: sympy.Basic
    count: int

    @cached_property
    def value(self) -> Callable[..., Any]:
        return expression_function(self.expression, _names(self.count))


def _names(count: int) -> list[sympy.Symbol]:
    return [sympy.Symbol(f"n{k}", integer=True) for k in range(count)]


@dataclass(frozen=True)
class CacheEntry:
    """Asks a function's cache about a call.

    ``arguments`` are constants, numbers of the call, and weak references to objects; ``types`` tell apart
    what is equal.
    """

    ask: Callable[[Any, Any], Any]
    function: Any
    arguments: tuple[Any, ...]
    types: tuple[type, ...]

    def __call__(self, *numbers: Any) -> Any:
        return self.ask(self.function, _key([_given(a, numbers) for a in self.arguments]))


def _given(argument: Any, numbers: Sequence[Any]) -> Any:
    """An argument of a call."""
    if isinstance(argument, _Number):
        return argument.value(*numbers)
    return argument() if isinstance(argument, weakref.ref) else argument


def _key(arguments: list[Any]) -> Any:
    """The key of a call without keywords, where types do not count."""
    if len(arguments) == 1 and type(arguments[0]) in (int, str):
        return arguments[0]
    return tuple(arguments)


@held_by_identity(register_wrapper(functools._lru_cache_wrapper), weak=True)
class CachedFunctionVariable(IdentifiedFunctionVariable):
    """What ``functools.lru_cache`` gives."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__wrapped__":
            assert self.source is not None
            return evaluator.builder.wrap(
                self.value.__wrapped__, AttributeSource(self.source, name)
            )
        return super().get_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        """A library's is asked during capture, and answers the same each time.

        A program's own counts its calls, and may have effects.
        """
        if not is_library_module(self.value.__module__):
            return self._answer(evaluator, arguments, keywords)
        plain = [_known_value(evaluator, argument) for argument in arguments]
        if not all(argument.is_constant() for argument in (*plain, *keywords.values())):
            # Libraries cache what depends on the arguments alone.
            wrapped = self.get_attribute(evaluator, "__wrapped__")
            return wrapped.call(evaluator, arguments, keywords)
        positional = [argument.as_constant() for argument in plain]
        named = {name: argument.as_constant() for name, argument in keywords.items()}
        result = evaluator.pure(self.value, *positional, **named)
        return evaluator.wrap_known(result, self.value.__qualname__)

    def _answer(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        """What the cache holds.

        :raises Unsupported: nothing, or whether it holds anything cannot be asked on entry of the frame.
        """
        parameters = self.value.cache_parameters()
        if keywords or parameters["typed"] or parameters["maxsize"] == 0:
            raise self._refusal()
        symbols = _symbols(evaluator, arguments)
        if symbols is None:
            raise self._refusal()
        parts = [self._part(evaluator, argument, [*symbols]) for argument in arguments]
        values, now = zip(*parts, strict=True) if parts else ((), ())
        row = values, tuple(map(type, now))
        key, numbers = _key([*now]), tuple(symbols.values())
        if not is_cached(self.value, key):
            asked = ComputedSource(CacheEntry(is_cached, self.value, *row), numbers)
            evaluator.guard(asked, IsObject(False))
            raise self._refusal()
        source = ComputedSource(CacheEntry(cached_result, self.value, *row), numbers)
        evaluator.side_effects.record(functools.partial(self._count, arguments))
        return evaluator.builder.wrap(cached_result(self.value, key), source)

    def _count(self, arguments: Arguments, emitter: Emitter) -> None:
        """Let the cache count the hit, and take the entry for its youngest."""
        emitter.load_variable(self)
        emitter.prepare_call()
        for argument in arguments:
            emitter.load_variable(argument)
        emitter.call(len(arguments))
        emitter.pop()

    def _part(
        self, evaluator: Evaluator, argument: Variable, symbols: list[sympy.Symbol]
    ) -> tuple[Any, Any]:
        """An argument as :class:`CacheEntry` has it, and as it is now."""
        if isinstance(argument, SymbolicNumberVariable):
            renamed = dict(zip(symbols, _names(len(symbols)), strict=True))
            expression = expression_of(argument.value).xreplace(renamed)
            return _Number(expression, len(symbols)), argument.value.node.hint
        if argument.is_constant():
            value = argument.as_constant()
            return value, value
        if isinstance(argument, ClassVariable):
            return argument.value, argument.value
        value = _identified_object(evaluator, argument)
        if value is None:
            raise self._refusal()
        return weakref.ref(value), value

    def _refusal(self) -> Unsupported:
        return Unsupported("call of a cached function", self.value.__qualname__)


def _symbols(evaluator: Evaluator, arguments: Arguments) -> dict[sympy.Symbol, SymbolSource] | None:
    """What determines numbers among the arguments; None where that is not the call alone."""
    found = {}
    for argument in arguments:
        if not isinstance(argument, SymbolicNumberVariable):
            continue
        if not isinstance(argument.value, torch.SymInt):
            return None
        for symbol in sorted(expression_of(argument.value).free_symbols, key=str):
            source = evaluator.graph.shapes.symbol_source(symbol)
            if not isinstance(source, SymbolSource):
                return None
            found[symbol] = source
    return found


def _known_value(evaluator: Evaluator, argument: Variable) -> Variable:
    """A class stands for itself: ``typing`` caches what subscripts with classes give.

    So does an object from outside that is equal to itself alone, as in ``logger.warning_once``.
    """
    if isinstance(argument, ClassVariable):
        return ConstantVariable(argument.value)
    value = _identified_object(evaluator, argument)
    return argument if value is None else ConstantVariable(value)


def _identified_object(evaluator: Evaluator, argument: Variable) -> Any:
    """The object from outside that is equal to itself alone, guarded; None for any other argument."""
    if not isinstance(argument, UserObjectVariable) or argument.source is None:
        return None
    value = evaluator.builder.value_of(argument)
    kind: Any = type(value)
    if kind.__eq__ is not object.__eq__ or kind.__hash__ is not object.__hash__:
        return None
    evaluator.guard(argument.source, IsObject(value, weak=True))
    return value
