"""``io.StringIO`` and ``io.BytesIO`` made during evaluation: what is in them is known."""

from __future__ import annotations

import io
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..numbers.data_texts import DataTextVariable, joined
from ..table import models

_METHODS = frozenset(
    (
        "__enter__", "__exit__", "__iter__", "__next__", "close", "flush", "getvalue", "isatty", "read",
        "readable", "readline", "readlines", "seek", "seekable", "tell", "truncate", "writable", "write",
        "writelines",
    )
)  # fmt: skip
_FACTS = frozenset(("closed", "encoding", "errors", "line_buffering", "newlines"))


class MemoryFileVariable(Variable):
    """``file`` is one of the evaluator's own, in the state of the program's: its methods do what they do.

    ``later`` is what is written behind that from the first text on that holds numbers of data.
    """

    def __init__(self, file: Any, translates: bool = True) -> None:
        self.file = file
        self.later: Variable | None = None
        self._translates = translates  # line ends, perhaps

    def python_type(self) -> type:
        return type(self.file)

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__class__":
            return evaluator.wrap_known(type(self.file))
        if name in _FACTS:
            return evaluator.wrap_result(evaluator.pure(getattr, self.file, name))
        if name in _METHODS:
            return BuiltinMethodVariable(self, name)
        raise Unsupported("attribute of a builtin type", f"{type(self.file).__name__}.{name}")

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name not in _METHODS or evaluator.graph.is_in_region:
            raise Unsupported("method of a builtin type", f"{type(self.file).__name__}.{name}")
        if self.later is not None or any(map(_is_of_data, arguments)):
            return self._call_later(evaluator, name, arguments)
        if name == "__exit__":
            arguments = []
            name = "close"
        if name == "writelines" and len(arguments) == 1:
            arguments = [evaluator.collected(arguments[0])]
        positional, named = evaluator.snapshots(
            arguments, keywords, f"{type(self.file).__name__}.{name}"
        )
        result = evaluator.pure(getattr(self.file, name), *positional, **named)
        return self if result is self.file else evaluator.wrap_result(result)

    def _call_later(self, evaluator: Evaluator, name: str, arguments: Arguments) -> Variable:
        """A call of a method, as far as it does not ask for what only data gives."""
        is_text = len(arguments) == 1 and arguments[0].python_type() is str
        at_end = not self.file.closed and self.file.tell() == len(self.file.getvalue())
        if type(self.file) is io.StringIO and at_end and not self._translates:
            if name == "write" and is_text:
                before = [] if self.later is None else [self.later]
                self.later = joined(evaluator, [*before, arguments[0]])
                return length_of_text(arguments[0])
            if name == "getvalue" and not arguments and self.later is not None:
                return joined(evaluator, [ConstantVariable(self.file.getvalue()), self.later])
            if name == "writelines" and len(arguments) == 1:
                for line in arguments[0].iterate(evaluator):
                    self._call_later(evaluator, "write", [line])
                return ConstantVariable(None)
            if name in ("close", "__exit__"):
                self.file.close()
                self.later = None
            if name in ("close", "__exit__", "flush"):
                return ConstantVariable(None)
            if name == "__enter__":
                return self
        raise Unsupported("method of a builtin type", f"StringIO.{name}, with numbers of data")

    def iterator(self, evaluator: Evaluator) -> Variable:
        return self

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if self.later is not None:
            self._call_later(evaluator, "readlines", [])
        return [ConstantVariable(line) for line in evaluator.pure(list, self.file)]

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if evaluator.graph.is_in_region or self.later is not None:
            raise Unsupported("method of a builtin type", f"{type(self.file).__name__}.__next__")
        line = evaluator.pure(next, self.file, None)
        return None if line is None else ConstantVariable(line)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_rebuilt)
        emitter.load_object(type(self.file))
        emitter.load_object(None if self.file.closed else self.file.__getstate__())
        emitter.load_variable(self.later or ConstantVariable(""))
        emitter.call(3)

    def __repr__(self) -> str:
        return f"{type(self.file).__name__}()"


def _rebuilt(kind: Any, state: tuple[Any, ...] | None, later: str) -> Any:
    file = kind()
    if state is None:
        file.close()
        return file
    file.__setstate__(state)
    if later:
        file.write(later)
    return file


def _is_of_data(argument: Variable) -> bool:
    return isinstance(argument, DataTextVariable) and not argument.is_constant()


class _WrittenLengthVariable(Variable):
    """What ``write`` gives of a text that holds numbers of data: its length."""

    kind = int

    def __init__(self, text: Variable) -> None:
        self._text = text

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(len, self._text)


def length_of_text(text: Variable) -> Variable:
    """What ``write`` gives of a text."""
    if text.is_constant():
        return ConstantVariable(len(text.as_constant()))
    return _WrittenLengthVariable(text)


@models(io.StringIO, io.BytesIO)
def _new(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    positional, named = evaluator.snapshots(arguments, keywords, kind.__name__)
    translates = "newline" in named or len(positional) > 1
    return MemoryFileVariable(evaluator.pure(kind, *positional, **named), translates)
