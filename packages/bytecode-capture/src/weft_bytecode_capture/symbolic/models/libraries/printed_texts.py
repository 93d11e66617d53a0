"""``print``: texts are made where the program prints them, and written after the graph, in order."""

from __future__ import annotations

import io
import sys
from typing import Any

from weft_guards import Source, TypeIs

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..containers.memory_files import MemoryFileVariable
from ..numbers.data_texts import joined
from ..objects.opaque import OpaqueVariable
from ..table import model


@model(print)
def _print(
    evaluator: Evaluator,
    *values: Variable,
    sep: Variable | None = None,
    end: Variable | None = None,
    file: Variable | None = None,
    flush: Variable | None = None,
) -> None:
    """To a file made here it is written at once; to one from outside after the graph."""
    if file is None or file.is_none():
        file = evaluator.state.module_globals(vars(sys)).written.get("stdout")
    is_made_here = isinstance(file, MemoryFileVariable)
    if not (is_made_here or _is_stream(file)):
        given = ", ".join(map(repr, values))
        raise Unsupported(
            "call of a builtin function", f"print({given}), to a file of another kind"
        )
    if not is_made_here and evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", f"print({', '.join(map(repr, values))})")
    between = _separator(evaluator, sep, "sep", " ")
    last = _separator(evaluator, end, "end", "\n")
    text = _line(evaluator, values, between, last)
    if isinstance(file, MemoryFileVariable):
        evaluator.call_method(file, "write", text)
        return
    flushes = flush is not None and flush.truth(evaluator)
    evaluator.side_effects.record(lambda emitter: _emit(text, file, flushes, emitter))


def _is_stream(file: Variable | None) -> bool:
    """Whether all that a file does with a text is to write it: not so the ones that programs read back."""
    stream = sys.stdout if file is None or file.is_none() else getattr(file, "value", None)
    return isinstance(stream, io.TextIOBase) and not isinstance(stream, io.StringIO)


def _separator(
    evaluator: Evaluator, given: Variable | None, name: str, default: str
) -> ConstantVariable:
    if given is None or given.is_none():
        return ConstantVariable(default)
    if given.python_type() is not str:
        found = given.python_type().__name__
        evaluator.raise_error(TypeError, f"{name} must be None or a string, not {found}")
    return ConstantVariable(given.as_constant())


def _line(
    evaluator: Evaluator, values: tuple[Variable, ...], between: Variable, last: Variable
) -> Variable:
    """What is written, in one text."""
    to_text = evaluator.wrap_known(str)
    parts: list[Variable] = []
    for value in values:
        if parts:
            parts.append(between)
        parts.append(evaluator.call_function(to_text, [value]))
    return joined(evaluator, [*parts, last])


def _emit(text: Variable, file: Variable | None, flushes: bool, emitter: Emitter) -> None:
    emitter.load_callable(_WRITTEN)
    emitter.load_variable(text)
    if file is None:
        emitter.load_constant(None)
    else:
        emitter.load_variable(file)
    emitter.load_constant(flushes)
    emitter.call(3)
    emitter.pop()


def _written(text: str, file: io.TextIOBase | None, flushes: bool) -> None:
    print(text, end="", file=file, flush=flushes)


_WRITTEN = _frame_hook.disabled(_written)  # a stream may have a class in Python


class _StreamVariable(OpaqueVariable):
    """A text file from outside: what is written to it is an effect, anything else is not known."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name not in ("write", "flush"):
            return super().get_attribute(evaluator, name)
        assert self.source is not None
        evaluator.guard(self.source, TypeIs(io.TextIOWrapper))
        return BuiltinMethodVariable(self, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        kinds = [argument.python_type() for argument in arguments]
        if keywords or (name, kinds) not in (("write", [str]), ("flush", [])):
            return super().call_method(evaluator, name, arguments, keywords)
        if evaluator.graph.is_in_region:
            raise Unsupported("effect inside a region", f"{self!r}.{name}")
        text = arguments[0] if arguments else ConstantVariable("")
        length = len(text.as_constant())
        evaluator.side_effects.record(lambda emitter: _emit(text, self, not arguments, emitter))
        return ConstantVariable(length if arguments else None)


@register_wrapper(io.TextIOWrapper)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return _StreamVariable(value, source)
