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
    """``file`` is one of the evaluator's own, in the state of the program's: its methods do what they do."""

    def __init__(self, file: Any) -> None:
        self.file = file

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

    def iterator(self, evaluator: Evaluator) -> Variable:
        return self

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return [ConstantVariable(line) for line in evaluator.pure(list, self.file)]

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        if evaluator.graph.is_in_region:
            raise Unsupported("method of a builtin type", f"{type(self.file).__name__}.__next__")
        line = evaluator.pure(next, self.file, None)
        return None if line is None else ConstantVariable(line)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_rebuilt)
        emitter.load_object(type(self.file))
        emitter.load_object(None if self.file.closed else self.file.__getstate__())
        emitter.call(2)

    def __repr__(self) -> str:
        return f"{type(self.file).__name__}()"


def _rebuilt(kind: Any, state: tuple[Any, ...] | None) -> Any:
    file = kind()
    if state is None:
        file.close()
    else:
        file.__setstate__(state)
    return file


@models(io.StringIO, io.BytesIO)
def _new(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    positional, named = evaluator.snapshots(arguments, keywords, kind.__name__)
    return MemoryFileVariable(evaluator.pure(kind, *positional, **named))
