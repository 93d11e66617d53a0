"""From Python objects to variables: the dispatch tables that every family of variables registers in."""

from __future__ import annotations

import importlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from weft_guards import ConstantSource, EqualsConstant, IsObject, SameObject, Source, is_constant

from ...sources import EqualsScalar
from ..protocol import Evaluator
from .base import Variable

Wrapper = Callable[["Evaluator", Any, Source], "Variable"]
_Class = TypeVar("_Class", bound=Callable[..., Any])

_BY_IDENTITY: dict[int, tuple[Any, Wrapper]] = {}
_BY_TYPE: dict[type, Wrapper] = {}
_BY_PREDICATE: list[tuple[int, Callable[[Any], bool], Wrapper]] = []
_LATE: dict[str, str] = {}
_NOTES: list[Callable[[types.FunctionType], None]] = []
_CONSTANT_TYPES: set[type] = set()
_SCALAR_TYPES: set[type] = set()
_CONSTANT_PREDICATES: list[Callable[[Any], bool]] = []
_WRAPPERS_OF_CONSTANTS: list[Wrapper] = []


def register_object(*objects: Any) -> Callable[[Wrapper], Wrapper]:
    """Register the wrapper of these very objects (functions, singletons); wins over all others."""

    def register(wrapper: Wrapper) -> Wrapper:
        for value in objects:
            _BY_IDENTITY[id(value)] = (value, wrapper)
        return wrapper

    return register


def register_wrapper(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register the wrapper of objects whose exact type is one of ``types``."""

    def register(wrapper: Wrapper) -> Wrapper:
        for kind in types:
            _BY_TYPE[kind] = wrapper
        return wrapper

    return register


def register_predicate(
    predicate: Callable[[Any], bool], priority: int = 0
) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects that ``predicate`` accepts; higher priorities are asked first.

    Asked after identity and exact type.  The last of all accepts any object.
    """

    def register(wrapper: Wrapper) -> Wrapper:
        _BY_PREDICATE.append((priority, predicate, wrapper))
        _BY_PREDICATE.sort(key=lambda row: -row[0])
        return wrapper

    return register


def held_by_identity(
    *registers: Callable[[Wrapper], Wrapper], weak: bool = False
) -> Callable[[_Class], _Class]:
    """Let the objects that ``registers`` tell be variables of a class, guarded to be these very objects."""

    def decorate(kind: _Class) -> _Class:
        def wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
            evaluator.guard(source, IsObject(value, weak=weak))
            made: Variable = kind(value, source)
            return made

        for register in registers:
            register(wrap)
        return kind

    return decorate


def register_constant_types(*types: type) -> None:
    """Objects of exactly these types are constants: immutable, compared by ``EqualsConstant``."""
    _CONSTANT_TYPES.update(types)


def register_scalar_types(*types: type) -> None:
    """Objects of these types are numbers of NumPy: constants that operators take as Python's numbers."""
    _SCALAR_TYPES.update(types)
    register_constant_types(*types)


def is_scalar(value: Any) -> bool:
    """Whether an object is a number of NumPy."""
    return type(value) in _SCALAR_TYPES


def register_constant_predicate(predicate: Callable[[Any], bool]) -> None:
    """Objects that ``predicate`` accepts are constants (enum members, for example)."""
    _CONSTANT_PREDICATES.append(predicate)


def register_wrapper_of_constants(wrapper: Wrapper) -> Wrapper:
    """Register the wrapper of all constants."""
    _WRAPPERS_OF_CONSTANTS.append(wrapper)
    return wrapper


def is_constant_value(value: Any) -> bool:
    """Whether an object is a constant by itself (tuples of constants are sequences, not constants)."""
    if type(value) in _CONSTANT_TYPES:
        return True
    return any(predicate(value) for predicate in _CONSTANT_PREDICATES)


def is_registered(value: Any) -> bool:
    """Whether this very object has a wrapper of its own."""
    return id(value) in _BY_IDENTITY


def register_late(model: str, *modules: str) -> None:
    """Import ``model``, which registers, when a Python function of one of ``modules`` is met first.

    For modules of torch that few programs import.
    """
    _LATE.update(dict.fromkeys(modules, model))


_Function = types.FunctionType | types.BuiltinFunctionType
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def when_function_is_met(
    note: Callable[[_Function], None],
) -> Callable[[_Function], None]:
    """Call ``note`` with each function that has no wrapper of its own yet: it may register one."""
    _NOTES.append(note)
    return note


def _load_late(value: Any) -> None:
    model = _LATE.get(value.__module__)
    if model is not None:
        for module in [name for name, other in _LATE.items() if other == model]:
            del _LATE[module]
        importlib.import_module(model)


def _wrapper_of(value: Any) -> Wrapper:
    """The wrapper of an object that is not a constant."""
    if _LATE and type(value) is types.FunctionType:
        _load_late(value)
    row = _BY_IDENTITY.get(id(value))
    if row is None and type(value) in _FUNCTIONS:
        for note in _NOTES:
            note(value)
        row = _BY_IDENTITY.get(id(value))
    if row is not None:
        return row[1]
    wrapper = _BY_TYPE.get(type(value))
    if wrapper is not None:
        return wrapper
    return next(candidate for _, predicate, candidate in _BY_PREDICATE if predicate(value))


class VariableBuilder:
    """Wraps objects that existed before the frame; one object always gives one variable.

    An object met again by another path gives the same variable, and a guard that both paths still lead to
    one object.
    """

    def __init__(self, current_evaluator: Callable[[], Evaluator]) -> None:
        self._current_evaluator = current_evaluator
        self._memo: dict[int, tuple[Any, Variable, Source]] = {}
        self._equal_paths: set[tuple[int, Source]] = set()

    def wrap(self, value: Any, source: Source) -> Variable:
        """The variable of ``value``, found at ``source``; adds the guards that its kind needs."""
        evaluator = self._current_evaluator()
        if is_constant_value(value):
            return _WRAPPERS_OF_CONSTANTS[-1](evaluator, value, source)
        evaluator.state.kernel_writes.check_object(value)
        row = self._memo.get(id(value))
        if row is not None:
            self._guard_same(evaluator, value, row, source)
            return row[1]
        variable = _wrapper_of(value)(evaluator, value, source)
        self._memo[id(value)] = (value, variable, source)
        return variable

    def known(self, value: Any) -> Variable | None:
        """The variable of an object wrapped before, without any guard."""
        row = self._memo.get(id(value))
        return row[1] if row is not None else None

    def held(self, value: Any) -> Variable | None:
        """The variable of an object wrapped before, guarded to be this very one."""
        row = self._memo.get(id(value))
        if row is None:
            return None
        self._current_evaluator().guard(row[2], IsObject(value, weak=True))
        return row[1]

    def held_object(self, variable: Variable) -> tuple[Any] | None:
        """The object from outside that ``variable`` stands for, guarded to be this very one; or None."""
        for value, known, _ in self._memo.values():
            if known is variable:
                self.held(value)
                return (value,)
        return None

    def remember(self, value: Any, variable: Variable, source: Source) -> None:
        """Let ``variable`` stand for ``value`` from now on (before wrapping what may refer back to it)."""
        self._memo[id(value)] = (value, variable, source)

    def release(self) -> None:
        """Make the variables of objects from outside forget all they know."""
        for _, variable, _ in self._memo.values():
            variable.__dict__.clear()
        self._memo.clear()

    def value_of(self, variable: Variable) -> Any:
        """The object from outside that ``variable`` stands for."""
        return next(value for value, known, _ in self._memo.values() if known is variable)

    def wrapped(self) -> Iterator[tuple[Any, Variable, Source]]:
        """All objects wrapped so far with their variables and first sources."""
        return iter(list(self._memo.values()))

    def _guard_same(
        self, evaluator: Evaluator, value: Any, row: tuple[Any, Variable, Source], source: Source
    ) -> None:
        first = row[2]
        if source == first:
            return
        if isinstance(source, ConstantSource):
            evaluator.guard(first, IsObject(value, weak=True))
            return
        key = (id(value), source)
        if key in self._equal_paths:
            return
        self._equal_paths.add(key)
        if isinstance(first, ConstantSource):
            evaluator.guard(source, IsObject(value, weak=first.is_weak))
        else:
            evaluator.guard(source, SameObject(first))


def guard_constant(evaluator: Evaluator, value: Any, source: Source) -> None:
    """Guard that an immutable constant, or a tuple of such, is still equal."""
    if is_scalar(value):
        evaluator.guard(source, EqualsScalar(value))
    elif isinstance(value, (bool, type(None), type(Ellipsis))) or not is_constant(value):
        evaluator.guard(source, IsObject(value))
    else:
        evaluator.guard(source, EqualsConstant(value))


def same_constant(left: Any, right: Any) -> bool:
    """Equality as ``EqualsConstant`` means it."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        if math.isnan(left):
            return math.isnan(right)
        return left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
    return bool(left == right)


def root_object(source: Source) -> Any:
    """The object that a path begins with, which the guard set holds; None for other paths."""
    while not isinstance(source, ConstantSource):
        if not hasattr(source, "base"):
            return None
        source = source.base
    return source.value
