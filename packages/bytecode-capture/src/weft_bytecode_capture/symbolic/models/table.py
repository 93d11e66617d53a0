"""The table of models: what calling a builtin, a class or a library's function does.

A model is a *handler*, a function over variables, where the evaluator's inside is needed, or a *polyfill*:
plain Python that is evaluated as the program's own functions are.  Either is registered for the callable
itself: a function, a class, a method as its class holds it (``list.append``), or a code object that closures
share.  Its signature says which arguments it takes; for others CPython itself says what it raises.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, TypeVar

from ...unsupported import Unsupported
from ..protocol import Evaluator
from ..variables.base import Arguments, Keywords, Variable

Handler = Callable[..., "Variable | None"]
"""Takes the evaluator, then what the callable is bound to, then the arguments; None stands for None.

What it is bound to: a method's receiver, a class method's class, the function that has the code object.
"""

_F = TypeVar("_F", bound=Callable[..., Any])

METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_BOUND = (*METHODS, types.ClassMethodDescriptorType, types.CodeType)


@dataclass(frozen=True)
class Model:
    """What calling ``subject`` does."""

    subject: Any
    handler: Handler | None = None
    polyfill: types.FunctionType | None = None
    of_builtin: bool = (
        False  # whether its receiver is a builtin object, or what holds an instance's elements
    )

    def call(
        self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords, bound: Any = None
    ) -> Variable:
        """The result of a call of the subject, which is bound to ``bound`` if it is a method."""
        before = (bound,) if isinstance(self.subject, _BOUND) else ()
        if not self.parameters.take(len(arguments), keywords):
            self._refuse(evaluator, before, len(arguments), keywords)
        if self.handler is None:
            function = evaluator.wrap_known(self.polyfill)
            return function.call(evaluator, [*before, *arguments], keywords)
        result = self.handler(evaluator, *before, *arguments, **keywords)
        return evaluator.wrap_constant(None) if result is None else result

    @cached_property
    def parameters(self) -> Parameters:
        """Which arguments it takes, beside what it is bound to."""
        is_bound = isinstance(self.subject, _BOUND)
        if self.handler is not None:
            return Parameters.of(self.handler, 1 + is_bound)
        try:
            return Parameters.of(self.subject, is_bound)
        except ValueError:  # C does not say
            return Parameters.of(self.polyfill, is_bound)

    def _refuse(
        self, evaluator: Evaluator, before: tuple[Any, ...], count: int, keywords: Collection[str]
    ) -> None:
        """Raise what CPython raises for such arguments, or Unsupported where it takes them."""
        message = None
        if not isinstance(self.subject, types.CodeType) and _is_of_standard_library(self.subject):
            message = _refusal(_callable(self.subject, before), count, keywords)
        if message is not None:
            evaluator.raise_error(TypeError, message)
        raise Unsupported("arguments of a builtin function", _name(self.subject))


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function that a call's arguments have to fit."""

    positional: tuple[str, ...]  # a name that no keyword has for those without one
    required: tuple[tuple[int, str], ...]  # their positions and names
    named: frozenset[str]
    any_count: bool
    any_name: bool

    @staticmethod
    def of(function: Any, first: int) -> Parameters:
        """Those of a function, from number ``first`` on."""
        found = list(inspect.signature(function).parameters.values())
        before = takewhile(lambda p: p.kind is not p.VAR_POSITIONAL, found[:first])
        found = found[len(list(before)) :]
        by_name = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        single = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        places = [p for p in single if p.kind is not p.KEYWORD_ONLY]
        return Parameters(
            tuple(p.name if p in by_name else "" for p in places),
            tuple(
                (places.index(p) if p in places else sys.maxsize, p.name if p in by_name else "")
                for p in single
                if p.default is p.empty
            ),
            frozenset(p.name for p in by_name),
            any(p.kind is p.VAR_POSITIONAL for p in found),
            any(p.kind is p.VAR_KEYWORD for p in found),
        )

    def take(self, count: int, keywords: Collection[str]) -> bool:
        """Whether so many positional arguments and keywords of these names fit."""
        if count > len(self.positional) and not self.any_count:
            return False
        for position, name in self.required:
            if position >= count and name not in keywords:
                return False
        return not keywords or (
            not any(name in keywords for name in self.positional[:count])
            and (self.any_name or all(name in self.named for name in keywords))
        )


_MODELS: dict[int, Model] = {}
_POLYFILLS: set[int] = set()
_NEW_FUNCTIONS: list[Callable[[Any], None]] = []


def model_of(subject: Any) -> Model | None:
    """The model of a callable, None if there is none."""
    return _MODELS.get(id(subject))


def _registering(make: Callable[[Any], Iterable[Model]]) -> Callable[[_F], _F]:
    """A decorator that adds the models that ``make`` makes of a function."""

    def register(function: _F) -> _F:
        for made in make(function):
            _add(made)
        return function

    return register


def model(*subjects: Any) -> Callable[[_F], _F]:
    """Register the handler of these callables."""
    return _registering(lambda handler: (Model(s, handler=handler) for s in subjects))


def models(*subjects: Any) -> Callable[[_F], _F]:
    """Register one handler for several callables; it is given the one that is called before all else."""
    return _registering(lambda f: (Model(s, handler=partial(f, s)) for s in subjects))


def method_model(name: str, *kinds: type) -> Callable[[_F], _F]:
    """Register the handler of a method of these builtin classes, as far as they have one of their own.

    It is given the builtin object; for an instance of a subclass, what holds the instance's elements.
    """
    found = [vars(kind)[name] for kind in kinds if name in vars(kind)]
    return _registering(lambda f: (Model(raw, handler=f, of_builtin=True) for raw in found))


def method_models(names: Iterable[str], *kinds: type) -> Callable[[_F], _F]:
    """As :func:`method_model`, for several names, of which the handler is given one before all else."""

    def register(handler: _F) -> _F:
        for name in names:
            method_model(name, *kinds)(partial(handler, name))
        return handler

    return register


def polyfill(*subjects: Any) -> Callable[[_F], _F]:
    """Register the plain Python function that is evaluated where these callables are called."""
    return _registering(lambda function: (Model(s, polyfill=function) for s in subjects))


def unmodelled(function: Any) -> Any:
    """A function of the same code, without wrappers, for which no model stands: it is evaluated as it is."""
    plain = inspect.unwrap(function)
    return types.FunctionType(plain.__code__, plain.__globals__, plain.__name__)


def is_polyfill(function: Any) -> bool:
    """Whether a function is evaluated in place of another: nothing of it changes, and nothing is guarded."""
    return id(function) in _POLYFILLS


def _add(model: Model) -> None:
    _MODELS[id(model.subject)] = model
    if model.polyfill is not None:
        _POLYFILLS.add(id(model.polyfill))
    for note in _NEW_FUNCTIONS:
        _tell(note, model)


def _tell(note: Callable[[Any], None], model: Model) -> None:
    if not isinstance(model.subject, (type, *_BOUND)):
        note(model.subject)


def when_function_is_modelled(note: Callable[[Any], None]) -> Callable[[Any], None]:
    """Call ``note`` with each function that has a model or is given one: its variable is one of its own."""
    _NEW_FUNCTIONS.append(note)
    for known in _MODELS.values():
        _tell(note, known)
    return note


def bound_arguments(
    function: Any, arguments: Sequence[Variable], keywords: Keywords, kind: str
) -> dict[str, Any]:
    """The arguments of a call by parameter, without defaults.

    Raises ``Unsupported`` of ``kind`` where the function does not take them.
    """
    try:
        return dict(inspect.signature(function).bind(*arguments, **keywords).arguments)
    except TypeError as error:
        raise Unsupported(kind, f"{function.__qualname__}: {error}") from error


# What CPython says of arguments that do not fit.


_STAND_INS: tuple[Any, ...] = (object(), 0, ())


def _refusal(function: Callable[..., Any], count: int, keywords: Collection[str]) -> str | None:
    """The message of the TypeError for so many arguments, whatever they are; None if there is none."""
    messages = set()
    for value in _STAND_INS:
        try:
            function(*[value] * count, **dict.fromkeys(keywords, value))
        except TypeError as error:
            messages.add(str(error))
        except Exception:  # its own, of the values: it took so many
            return None
        else:
            return None
    return messages.pop() if len(messages) == 1 else None


def _callable(subject: Any, before: tuple[Any, ...]) -> Callable[..., Any]:
    """The subject, bound to an object of the right kind if it is a method."""
    if isinstance(subject, types.ClassMethodDescriptorType):
        bound: Callable[..., Any] = subject.__get__(None, before[0])
        return bound
    if isinstance(subject, METHODS):
        owner: Any = subject.__objclass__
        receiver = before[0].snapshot() if owner in (str, bytes) else owner.__new__(owner)
        method: Callable[..., Any] = subject.__get__(receiver)
        return method
    function: Callable[..., Any] = subject
    return function


def _is_of_standard_library(subject: Any) -> bool:
    owner = getattr(subject, "__objclass__", subject)
    module = getattr(owner, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in sys.stdlib_module_names


def _name(subject: Any) -> str:
    return str(getattr(subject, "__qualname__", None) or getattr(subject, "co_qualname", subject))
