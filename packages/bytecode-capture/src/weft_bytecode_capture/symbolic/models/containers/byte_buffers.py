"""``bytearray`` and ``memoryview`` objects made during evaluation: their bytes are known."""

from __future__ import annotations

import operator as operators
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.python_protocols import COMPARISONS, find_raw
from ..builtins.methods import BuiltinMethodVariable
from ..iterators.builtin_iterators import LazyIteratorVariable
from ..iterators.rebuilding import indexed_iterator
from ..table import models
from .slices import SliceVariable


class ByteBufferVariable(Variable):
    """``buffer`` is a buffer of the evaluator's own, equal to the program's: its methods do what they do."""

    def __init__(self, buffer: Any, base: ByteBufferVariable | None = None) -> None:
        self.buffer = buffer
        self.base = base  # the bytearray that a view shows
        self.viewed = False
        if base is not None:
            base.viewed = True

    def python_type(self) -> type:
        return type(self.buffer)

    def truth(self, evaluator: Evaluator) -> bool:
        return len(self.buffer) > 0

    def length(self, evaluator: Evaluator) -> int:
        return int(evaluator.pure(len, self.buffer))

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return [ConstantVariable(value) for value in evaluator.pure(list, self.buffer)]

    def iterator(self, evaluator: Evaluator) -> Variable:
        """By position: what changes meanwhile is seen."""
        position = 0

        def step(evaluator: Evaluator) -> Variable | None:
            nonlocal position
            if position >= len(self.buffer):
                return None
            position += 1
            return ConstantVariable(self.buffer[position - 1])

        resumable = isinstance(self.buffer, bytearray)
        kind: type = type(iter(self.buffer))
        parts = (lambda: [self, ConstantVariable(position)]) if resumable else None
        return LazyIteratorVariable(kind, step, parts, indexed_iterator)

    def snapshot(self) -> Any:
        """The buffer itself: pure functions only read it."""
        return self.buffer

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        value = evaluator.pure(getattr, self.buffer, name)
        if name == "__class__":
            return evaluator.wrap_known(value)
        if name == "obj" and isinstance(self.buffer, memoryview):
            return self.base or ConstantVariable(value)
        if callable(value):
            return BuiltinMethodVariable(self, name)
        return evaluator.wrap_result(value)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        positional, named = evaluator.snapshots(arguments, keywords, f"bytearray.{name}")
        self._require_no_view(name, arguments)
        function = _FUNCTIONS.get(name)
        if function is not None and not named:
            result = evaluator.pure(function, self.buffer, *positional)
        elif find_raw(self.python_type(), name) is None or name.startswith("__"):
            raise Unsupported("method of a builtin type", f"{self.python_type().__name__}.{name}")
        else:
            result = evaluator.pure(getattr(self.buffer, name), *positional, **named)
        return self._wrapped(evaluator, result)

    def _require_no_view(self, name: str, arguments: Arguments) -> None:
        """A view keeps the size, for as long as it lives: how long the program's does is not known."""
        whole = name == "__setitem__" and not isinstance(arguments[0], SliceVariable)
        if self.viewed and name in _RESIZING and not whole:
            raise Unsupported("method of a builtin type", f"bytearray.{name} of one with a view")

    def _wrapped(self, evaluator: Evaluator, result: Any) -> Variable:
        if isinstance(result, memoryview):
            raise Unsupported("method of a builtin type", f"part of {self!r}")
        if isinstance(result, bytearray):
            return self if result is self.buffer else ByteBufferVariable(result)
        return evaluator.wrap_result(result)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if not (other.is_constant() or isinstance(other, ByteBufferVariable)):
            return None
        pair = self.buffer, other.snapshot()
        left, right = pair[::-1] if reflected else pair
        if operator not in (*COMPARISONS, *_OPERATORS):
            return None
        self._require_no_view(operator, [])
        return self._wrapped(evaluator, evaluator.pure(OPERATORS[operator], left, right))

    def reconstruct(self, emitter: Emitter) -> None:
        shown = self.buffer.obj if isinstance(self.buffer, memoryview) else bytes(self.buffer)
        emitter.load_call(self.python_type(), self.base or shown)

    def __repr__(self) -> str:
        return f"ByteBuffer({self.buffer!r})"


_OPERATORS = ("add", "iadd", "mul", "imul", "mod")
_RESIZING = (
    "append", "clear", "extend", "insert", "pop", "remove", "__delitem__", "__setitem__", "iadd", "imul",
)  # fmt: skip
_FUNCTIONS: dict[str, Any] = {
    "__getitem__": operators.getitem,
    "__setitem__": operators.setitem,
    "__delitem__": operators.delitem,
    "__contains__": operators.contains,
}


def _collected(evaluator: Evaluator, argument: Variable) -> Variable:
    """An iterable of numbers as a list of them."""
    known = argument.is_constant() or isinstance(argument, (ByteBufferVariable, SliceVariable))
    return argument if known else evaluator.collected(argument)


@models(bytearray, memoryview)
def _new(
    kind: type, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    base = arguments[0] if arguments else None
    if kind is memoryview and not isinstance(base, (ByteBufferVariable, ConstantVariable)):
        raise Unsupported("arguments of a builtin class", "memoryview")
    given = [_collected(evaluator, argument) for argument in arguments]
    positional, named = evaluator.snapshots(given, keywords, kind.__name__)
    buffer = evaluator.pure(kind, *positional, **named)
    shown = base if kind is memoryview and isinstance(base, ByteBufferVariable) else None
    return ByteBufferVariable(buffer, shown)
