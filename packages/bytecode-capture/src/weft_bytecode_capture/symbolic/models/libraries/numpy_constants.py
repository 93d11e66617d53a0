"""Arrays of NumPy that captured code makes of constants: NumPy itself computes with them during capture.

A table of positions or a window is exact that way, whatever its type.  What the graph takes of one is a
tensor that it makes of the elements; where the two share their memory the array is not looked at any more.
"""

from __future__ import annotations

from typing import Any

import numpy

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..containers.sequences import TupleVariable
from ..objects.classes import ClassVariable

_NUMPY = "NumPy array"
_FACTS = frozenset(("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"))
_VIEWS = frozenset(("T", "real", "imag"))
_METHODS = frozenset(
    (
        "__contains__", "__getitem__", "__len__", "__setitem__", "all", "any", "argmax", "argmin",
        "argsort", "clip", "conj", "copy", "cumprod", "cumsum", "diagonal", "dot", "fill",
        "flatten", "item", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "reshape",
        "round", "searchsorted", "sort", "squeeze", "std", "sum", "swapaxes", "take", "tolist", "trace",
        "transpose", "var", "__neg__", "__abs__", "__invert__", "__float__", "__int__", "__bool__",
        "__pos__", "__index__",
    )
) | {"astype"}  # fmt: skip
_MAX_ELEMENTS = 1_000_000
SCALARS: tuple[Any, ...] = (
    numpy.bool_, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8, numpy.float16,
    numpy.float32, numpy.float64, numpy.complex64, numpy.complex128,
)  # fmt: skip


class Memory:
    """What an array and its views have in common."""

    is_shared = False  # with a tensor of the graph


class KnownArrayVariable(Variable):
    """An array whose elements are known: ``value``, one of the evaluator's own.

    Views of it are views of ``value``, so a write through one is seen in the others.
    """

    kind = numpy.ndarray

    def __init__(self, value: numpy.ndarray[Any, Any], memory: Memory) -> None:
        self.value = value
        self.memory = memory

    def own(self, what: str = "") -> numpy.ndarray[Any, Any]:
        """The elements, as long as nobody else can change them."""
        if self.memory.is_shared:
            raise Unsupported(_NUMPY, f"{self!r}{what}, which a tensor shares")
        return self.value

    def share(self) -> numpy.ndarray[Any, Any]:
        """The elements for a tensor that shares them: only an array that is no view says when it changes."""
        value = self.own()
        if value.base is not None or not value.flags.c_contiguous:
            raise Unsupported(_NUMPY, f"{self!r}, a view that a tensor would share")
        self.memory.is_shared = True
        return value

    def snapshot(self) -> Any:
        return self.own()

    def length(self, evaluator: Evaluator) -> int:
        return int(evaluator.pure(len, self.value))

    def truth(self, evaluator: Evaluator) -> bool:
        return bool(evaluator.pure(bool, self.own()))

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        elements = evaluator.pure(list, self.own())
        return [known_result(evaluator, element, [self]) for element in elements]

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _FACTS:
            return evaluator.wrap_result(getattr(self.value, name))
        if name in _VIEWS:
            return known_result(evaluator, getattr(self.own(), name), [self])
        if name == "__class__":
            return evaluator.wrap_known(numpy.ndarray)
        if name in _METHODS:
            return BuiltinMethodVariable(self, name)
        raise Unsupported(_NUMPY, f"{self!r}.{name}")

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name not in _METHODS or evaluator.graph.is_in_region:
            raise Unsupported(_NUMPY, f"{self!r}.{name}()")
        method = getattr(self.own(f".{name}()"), name)
        positional, named = numpy_arguments(evaluator, arguments, keywords, f"array.{name}")
        return known_result(evaluator, evaluator.pure(method, *positional, **named), [self])

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if other.python_type() is numpy.ndarray and not isinstance(other, KnownArrayVariable):
            return other.binary_operation(evaluator, operator, self, not reflected)
        function = OPERATORS.get(operator)
        is_known = other.is_constant() or isinstance(other, (KnownArrayVariable, TupleVariable))
        if function is None or not is_known or evaluator.graph.is_in_region:
            raise Unsupported(_NUMPY, f"{operator} of {self!r} and {other!r}")
        pair = [other.snapshot(), self.own()] if reflected else [self.own(), other.snapshot()]
        return known_result(evaluator, evaluator.pure(function, *pair), [self, other])

    def reconstruct(self, emitter: Emitter) -> None:
        if self.own().base is not None:
            raise Unsupported("value cannot be rebuilt after a graph", f"{self!r}, a view")
        emitter.load_callable(numpy.array)
        emitter.load_object(self.value.copy(order="K"))
        emitter.call(1)

    def printable(self, evaluator: Evaluator) -> Any:
        return self.own()

    def __repr__(self) -> str:
        return f"array of {self.value.dtype} {self.value.shape}"


def numpy_arguments(
    evaluator: Evaluator, arguments: Arguments, keywords: Keywords, label: str
) -> tuple[list[Any], dict[str, Any]]:
    """The values of arguments of a function of NumPy; classes stand for types of elements."""
    return evaluator.snapshots(
        [_without_class(argument) for argument in arguments],
        {name: _without_class(value) for name, value in keywords.items()},
        label,
    )


def _without_class(variable: Variable) -> Variable:
    """A class of scalars, which stands for the type of elements, as a constant."""
    if isinstance(variable, ClassVariable) and variable.value in (*SCALARS, int, float, bool):
        return ConstantVariable(numpy.dtype(variable.value))
    return variable


def known_result(evaluator: Evaluator, value: Any, operands: list[Variable]) -> Variable:
    """What NumPy gives of constants: one of the operands, a view of one, or something new."""
    if type(value) in (tuple, list) and any(isinstance(part, numpy.ndarray) for part in value):
        parts = [known_result(evaluator, part, operands) for part in value]
        made = TupleVariable(parts)
        return made if type(value) is tuple else evaluator.collected(made)
    if not isinstance(value, numpy.ndarray):
        return evaluator.wrap_result(value)
    if type(value) is not numpy.ndarray or value.dtype.hasobject or value.size > _MAX_ELEMENTS:
        raise Unsupported(_NUMPY, f"{type(value).__name__} of {value.dtype}")
    known = [operand for operand in operands if isinstance(operand, KnownArrayVariable)]
    for operand in known:
        if operand.value is value:
            return operand
    shown = [one for one in known if numpy.may_share_memory(value, one.value)]
    if shown and not value.flags.writeable:
        raise Unsupported(_NUMPY, "a view that may not be written to")
    if not shown and (value.base is not None or not value.flags.writeable):
        value = value.copy(order="K")  # NumPy's own base is nobody else's
    return KnownArrayVariable(value, shown[0].memory if shown else Memory())
