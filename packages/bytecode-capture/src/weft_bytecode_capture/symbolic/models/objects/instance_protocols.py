"""What Python's protocols ask of an instance: its class's special methods, and their defaults."""

from __future__ import annotations

import dataclasses
import operator as operators
import reprlib
import sys
import types
from collections.abc import Callable
from typing import Any

from ....code_objects.dialects import DIALECT
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.operations import values_equal
from ...variables.python_protocols import COMPARISONS, drained, find_raw, needs_result, special_name
from ..containers.slices import index_value
from ..functions.bound_methods import BoundMethodVariable
from ..iterators.builtin_iterators import IteratorVariable, LazyIteratorVariable
from ..iterators.rebuilding import indexed_iterator
from .class_attributes import bind_attribute, guard_default, is_builtin_descriptor


class InstanceProtocols(Variable):
    """An instance of ``kind`` as operators, calls, iteration and truth see it."""

    kind: type

    def special(self, evaluator: Evaluator, name: str) -> Variable | None:
        """A special method of the class bound to this object; None where the class has none.

        ``object``'s own count as none: what they do is each protocol's default.
        """
        found = evaluator.state.find_in_type(self.kind, name)
        if found is None or found[0] is object:
            guard_default(evaluator, self.kind, name, found)
            return None
        method = bind_attribute(evaluator, self.kind, found[0], name, found[1], self)
        if found[1] is None and name in _ASKED_FOR:
            evaluator.raise_error(TypeError, _error_of_none(self.kind.__name__, name))
        return method  # a call of None raises its own error

    def printable(self, evaluator: Evaluator) -> Any:
        read = [n for n in _READ_BY_FORMATS if evaluator.state.find_in_type(self.kind, n)]
        methods = dict.fromkeys(read, _refuse)
        return type(self.kind.__name__, (PrintedInstance,), methods)(evaluator, self)

    def builtin_text(self, evaluator: Evaluator, name: str, *arguments: Any) -> str:
        """What a builtin base class has for ``__str__``, ``__repr__`` or ``__format__``."""
        raise NotImplementedError

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        method = self.special(evaluator, "__call__")
        if method is None:
            evaluator.raise_error(TypeError, f"{self.kind.__name__!r} object is not callable")
        return method.call(evaluator, arguments, keywords)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name.startswith("__") and name.endswith("__"):
            method = self.special(evaluator, name)
            if method is not None:
                result = method.call(evaluator, arguments, keywords)
                if name in _RESULTS:
                    kind, message = _RESULTS[name]
                    message = message.replace("{kind}", self.kind.__name__)
                    if issubclass(result.python_type(), kind) and result.python_type() is not kind:
                        raise Unsupported("special method gives a subclass", f"{self!r}.{name}()")
                    needs_result(evaluator, result, kind, message)
                return result
            if name == "__contains__":
                return self._contains(evaluator, *arguments)
            if name in ("__int__", "__float__") and self.special(evaluator, "__index__"):
                value = self.call_method(evaluator, "__index__", [], {}).as_constant()
                return evaluator.wrap_constant(
                    evaluator.pure(int if name == "__int__" else float, value)
                )
            if name == "__int__" and _ASKS_TRUNC and self.special(evaluator, "__trunc__"):
                raise Unsupported("operator of a builtin type", f"int({self!r}) by __trunc__")
            if name in _MISSING:
                evaluator.raise_error(TypeError, _MISSING[name].format(self.kind.__name__))
        return super().call_method(evaluator, name, arguments, keywords)

    def _contains(self, evaluator: Evaluator, item: Variable) -> Variable:
        try:
            iterator = self.iterator(evaluator)
        except CapturedException as error:
            if not issubclass(error.exception.python_type(), TypeError):
                raise
            message = _error_of(_ASKED_FOR["__contains__"], self.kind.__name__, "__iter__", None)
            evaluator.raise_error(TypeError, message)
        while (element := iterator.next_or_none(evaluator)) is not None:
            if values_equal(evaluator, element, item):
                return ConstantVariable(True)
        return ConstantVariable(False)

    def truth(self, evaluator: Evaluator) -> bool:
        method = self.special(evaluator, "__bool__")
        if method is not None:
            result = method.call(evaluator, [], {})
            message = "__bool__ should return bool, returned {}"
            return bool(needs_result(evaluator, result, bool, message))
        return self.special(evaluator, "__len__") is None or self.length(evaluator) > 0

    def length(self, evaluator: Evaluator) -> int:
        method = self.special(evaluator, "__len__")
        if method is None:
            evaluator.raise_error(TypeError, f"object of type {self.kind.__name__!r} has no len()")
        length = index_value(evaluator, method.call(evaluator, [], {}))
        if length < 0:
            evaluator.raise_error(ValueError, "__len__() should return >= 0")
        return int(evaluator.pure(range(length).__len__))

    def iterator(self, evaluator: Evaluator) -> Variable:
        method = self.special(evaluator, "__iter__")
        if method is None:
            reader = self.special(evaluator, "__getitem__")
            if reader is not None:
                return self._iterate_by_index(reader)
            evaluator.raise_error(TypeError, f"{self.kind.__name__!r} object is not iterable")
        iterator = method.call(evaluator, [], {})
        if isinstance(iterator, IteratorVariable):
            return iterator
        if find_raw(iterator.python_type(), "__next__") is None:
            kind = iterator.python_type().__name__
            evaluator.raise_error(TypeError, f"iter() returned non-iterator of type {kind!r}")
        return iterator

    def _iterate_by_index(self, reader: Variable) -> Variable:
        """An iterator over ``self[0]``, ``self[1]`` ... up to an IndexError."""
        position = 0
        ended = False

        def step(evaluator: Evaluator) -> Variable | None:
            nonlocal position, ended
            if ended:
                return None
            try:
                element = reader.call(evaluator, [ConstantVariable(position)], {})
            except CapturedException as error:
                if not issubclass(error.exception.python_type(), (IndexError, StopIteration)):
                    raise
                ended = True
                return None
            position += 1
            return element

        def parts() -> list[Variable]:
            return [
                _at_its_end() if ended else self,
                ConstantVariable(0 if ended else position),
            ]

        return LazyIteratorVariable(_INDEX_ITERATOR, step, parts, indexed_iterator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        """The elements as ``list()`` takes them: it asks for a length before the first."""
        iterator = self.iterator(evaluator)
        if not self._tells_length(evaluator):
            self._length_hint(evaluator)
        return drained(evaluator, iterator)

    def tuple_elements(self, evaluator: Evaluator) -> list[Variable]:
        """The elements as ``tuple()`` and a call's ``*`` take them."""
        if DIALECT.tuple_asks_length:
            return self.iterate(evaluator)
        return drained(evaluator, self.iterator(evaluator))

    def _tells_length(self, evaluator: Evaluator) -> bool:
        """Whether there is a ``__len__``, called now, that does not raise TypeError."""
        if self.special(evaluator, "__len__") is None:
            return False
        try:
            self.length(evaluator)
        except CapturedException as error:
            if not issubclass(error.exception.python_type(), TypeError):
                raise
            return False
        return True

    def _length_hint(self, evaluator: Evaluator) -> None:
        """Call ``__length_hint__`` as ``operator.length_hint`` does."""
        method = self.special(evaluator, "__length_hint__")
        if method is None:
            return
        try:
            hint = method.call(evaluator, [], {})
        except CapturedException as error:
            if not issubclass(error.exception.python_type(), TypeError):
                raise
            return
        if hint.is_not_implemented():
            return
        message = "__length_hint__ must be an integer, not {}"
        if needs_result(evaluator, hint, int, message) < 0:
            evaluator.raise_error(ValueError, "__length_hint__() should return >= 0")

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        method = self.special(evaluator, "__next__")
        if method is None:
            evaluator.raise_error(TypeError, f"{self.kind.__name__!r} object is not an iterator")
        try:
            return method.call(evaluator, [], {})
        except CapturedException as error:
            if issubclass(error.exception.python_type(), StopIteration):
                return None
            raise

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        method = self._operator_method(evaluator, operator, reflected)
        if method is None and operator == "ne":
            # object.__ne__ inverts __eq__.
            method = self._operator_method(evaluator, "eq", False)
            equal = None if method is None else method.call(evaluator, [other], {})
            if equal is None or equal.is_not_implemented():
                return None
            return ConstantVariable(not equal.truth(evaluator))
        if method is None:
            return None
        result = method.call(evaluator, [other], {})
        return None if result.is_not_implemented() else result

    def _operator_method(
        self, evaluator: Evaluator, operator: str, reflected: bool
    ) -> Variable | None:
        """The method of an operator; a comparison's that cannot be bound counts as none."""
        try:
            return self.special(evaluator, special_name(operator, reflected))
        except CapturedException:
            if operator in COMPARISONS:
                return None
            raise


_ASKS_TRUNC = sys.version_info < (3, 14)
"""Whether ``int()`` asks for ``__trunc__``, with a warning, where there is neither other method."""


class _Empty:
    """What an index iterator at its end iterates over."""

    def __getitem__(self, index: int) -> object:
        raise IndexError


def _at_its_end() -> Variable:
    from .user_objects import UserObjectVariable

    return UserObjectVariable(_Empty)


_INDEX_ITERATOR: type = type(iter(_Empty()))


def _error_of(call: Callable[[Any], Any], kind: str, name: str, value: Any) -> str:
    """What CPython says of an object of a class called ``kind`` whose method ``name`` is ``value``."""
    try:
        call(type(kind, (), {name: value})())
    except TypeError as error:
        return str(error)
    raise AssertionError(f"{name} is {value!r}, which nothing refused")


def _result_of(name: str, call: Callable[[Any], Any]) -> str:
    """What CPython says of a result of another class, with places for that and for the object's class."""
    return _error_of(call, "{kind}", name, lambda self: ()).replace("tuple", "{}")


_RESULTS: dict[str, tuple[type, str]] = {
    "__int__": (int, _result_of("__int__", int)),
    "__index__": (int, _result_of("__index__", operators.index)),
    "__float__": (float, _result_of("__float__", float)),
    "__complex__": (complex, _result_of("__complex__", complex)),
}

_ASKED_FOR: dict[str, Callable[[Any], Any]] = {
    "__iter__": iter,
    "__reversed__": reversed,
    "__contains__": lambda container: 0 in container,
    "__hash__": hash,
}
"""What says in its own words that a class has None in the place of a method."""


def _error_of_none(kind: str, name: str) -> str:
    return _error_of(_ASKED_FOR[name], kind, name, None)


_MISSING = {
    "__neg__": "bad operand type for unary -: {!r}",
    "__pos__": "bad operand type for unary +: {!r}",
    "__invert__": "bad operand type for unary ~: {!r}",
    "__abs__": "bad operand type for abs(): {!r}",
    "__int__": "int() argument must be a string, a bytes-like object or a real number, not {!r}",
    "__float__": "float() argument must be a string or a real number, not {!r}",
    "__index__": "{!r} object cannot be interpreted as an integer",
    "__getitem__": "{!r} object is not subscriptable",
    "__setitem__": "{!r} object does not support item assignment",
    "__delitem__": "{!r} object doesn't support item deletion",
}


# Texts of instances.


class PrintedInstance:
    """Stands for an instance of a Python class where a builtin prints it: asks the evaluator.

    A subclass has those of ``_READ_BY_FORMATS`` that the class has, which ``%`` looks for, and its name.
    """

    def __init__(self, evaluator: Evaluator, instance: InstanceProtocols) -> None:
        self._asked = evaluator, instance

    def __repr__(self) -> str:
        text = _text(self, "__repr__")
        if text is None:
            raise Unsupported("text of an instance", repr(_asked(self)[1]), "it has its address")
        return text

    def __str__(self) -> str:
        text = _text(self, "__str__")
        return repr(self) if text is None else text

    def __format__(self, specification: str) -> str:
        text = _text(self, "__format__", ConstantVariable(specification))
        if text is not None:
            return text
        if specification:
            name = type(self).__name__
            raise TypeError(f"unsupported format string passed to {name}.__format__")
        return str(self)

    def __getattribute__(self, name: str) -> Any:
        """What ``"{0.name}"`` reads."""
        evaluator, instance = _asked(self)
        return instance.get_attribute(evaluator, name).printable(evaluator)


def _asked(printed: PrintedInstance) -> tuple[Evaluator, InstanceProtocols]:
    asked: tuple[Evaluator, InstanceProtocols] = object.__getattribute__(printed, "_asked")
    return asked


def _text(printed: PrintedInstance, name: str, *arguments: Variable) -> str | None:
    """What the class's own method gives; None where ``object`` has the only one."""
    evaluator, instance = _asked(printed)
    found = evaluator.state.find_in_type(instance.kind, name)
    if found is None or found[0] is object:
        return None
    if is_builtin_descriptor(found[1]):
        plain = [argument.as_constant() for argument in arguments]
        return instance.builtin_text(evaluator, name, *plain)
    result = _called(evaluator, instance, name, *found, *arguments)
    if not result.is_constant():
        raise Unsupported("text of an instance", f"{instance!r}.{name}() gave {result!r}")
    return str(result.as_constant())


def _called(
    evaluator: Evaluator,
    instance: InstanceProtocols,
    name: str,
    owner: type,
    raw: Any,
    *arguments: Variable,
) -> Variable:
    """The text that a method written in Python gives."""
    method = bind_attribute(evaluator, instance.kind, owner, name, raw, instance)
    inner = _without_recursion_check(raw)
    if inner is not None:
        method = BoundMethodVariable(evaluator.wrap_known(inner), instance)
    result = method.call(evaluator, list(arguments), {})
    if result.python_type() is not str:
        raise Unsupported("text of an instance", f"{instance!r}.{name}() gave {result!r}")
    return result


def own_text(evaluator: Evaluator, value: Variable, name: str) -> Variable | None:
    """What ``__str__`` or ``__repr__`` gives, which the class of an instance has in Python; else None.

    It may hold numbers that only data gives.
    """
    if not isinstance(value, InstanceProtocols):
        return None
    found = evaluator.state.find_in_type(value.kind, name)
    if name == "__str__" and found is not None and found[0] is object:
        return own_text(evaluator, value, "__repr__")
    if found is None or is_builtin_descriptor(found[1]):
        return None
    return _called(evaluator, value, name, *found)


def _refuse(printed: PrintedInstance, *key: Any) -> Any:
    raise Unsupported("text of an instance", f"{_asked(printed)[1]!r} read by a format")


_READ_BY_FORMATS = ("__getitem__", "__index__", "__int__", "__float__")


_RECURSION_CHECKS = (dataclasses.__file__, reprlib.__file__)


def _without_recursion_check(raw: Any) -> Any:
    """The function in a ``__repr__`` as data classes have it, whose wrapper against recursion asks for ids.

    The wrapper is ``reprlib.recursive_repr``'s, or ``dataclasses``' copy of it before CPython 3.14.
    Evaluation ends by its own limit of depth where an instance holds itself.
    """
    code = getattr(raw, "__code__", None)
    if isinstance(code, types.CodeType) and code.co_filename in _RECURSION_CHECKS:
        return getattr(raw, "__wrapped__", None)
    return None
