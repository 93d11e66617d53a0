"""``print``: texts are made where the program prints them, and written after the graph, in order."""

from __future__ import annotations

import io
import sys
from types import FunctionType
from typing import Any

from weft_guards import AttributeSource, ConstantSource, IsObject, Source, TypeIs

from .... import _frame_hook
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import find_raw
from ..builtins.methods import BuiltinMethodVariable
from ..containers.memory_files import MemoryFileVariable, length_of_text
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
    """To a file made here it is written at once; to one from outside after the graph.

    One of a class of the program's is written to by the code of that class, part by part.
    """
    if file is None or file.is_none():
        file = _standard_output(evaluator)
    between = _separator(evaluator, sep, "sep", " ")
    last = _separator(evaluator, end, "end", "\n")
    parts = _parts(evaluator, values, between, last)
    flushes = flush is not None and flush.truth(evaluator)
    if isinstance(file, MemoryFileVariable):
        evaluator.call_method(file, "write", joined(evaluator, parts))
    elif _is_stream(file):
        if evaluator.graph.is_in_region:
            raise Unsupported("effect inside a region", f"print({', '.join(map(repr, values))})")
        text = joined(evaluator, parts)
        evaluator.side_effects.record(lambda emitter: _emit(text, file, flushes, emitter))
    elif file is not None and isinstance(find_raw(file.python_type(), "write"), FunctionType):
        for part in parts:
            evaluator.call_method(file, "write", part)
        if flushes:
            evaluator.call_method(file, "flush")
    else:
        given = ", ".join(map(repr, values))
        raise Unsupported(
            "call of a builtin function", f"print({given}), to a file of another kind"
        )


def _standard_output(evaluator: Evaluator) -> Variable | None:
    """What the program has put in its place, or another has that is no stream of Python's; else None."""
    written = evaluator.state.module_globals(vars(sys)).written.get("stdout")
    if written is not None or isinstance(sys.stdout, (io.TextIOBase, type(None))):
        return written
    return evaluator.builder.wrap(sys.stdout, AttributeSource(ConstantSource("sys", sys), "stdout"))


def _is_stream(file: Variable | None) -> bool:
    """Whether all that a file does with a text, as far as the frame sees, is to write it."""
    if file is None:
        return sys.stdout is not None
    stream = getattr(file, "value", None)
    if not isinstance(stream, io.TextIOBase) or stream.closed:
        return False
    is_shown = stream is sys.stdout or stream is sys.stderr  # a notebook's has a class in Python
    return is_shown or not isinstance(find_raw(type(stream), "write"), FunctionType)


def _separator(
    evaluator: Evaluator, given: Variable | None, name: str, default: str
) -> ConstantVariable:
    if given is None or given.is_none():
        return ConstantVariable(default)
    if given.python_type() is not str:
        found = given.python_type().__name__
        evaluator.raise_error(TypeError, f"{name} must be None or a string, not {found}")
    return ConstantVariable(given.as_constant())


def _parts(
    evaluator: Evaluator, values: tuple[Variable, ...], between: Variable, last: Variable
) -> list[Variable]:
    """What is written, text by text."""
    to_text = evaluator.wrap_known(str)
    parts: list[Variable] = []
    for value in values:
        if parts:
            parts.append(between)
        parts.append(evaluator.call_function(to_text, [value]))
    return [*parts, last]


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
        evaluator.guard(self.source, TypeIs(type(self.value)))
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
        evaluator.side_effects.record(lambda emitter: _emit(text, self, not arguments, emitter))
        return length_of_text(text) if arguments else ConstantVariable(None)


@register_wrapper(io.TextIOWrapper, io.StringIO)
def _wrap(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    if type(value) is io.StringIO:
        evaluator.guard(source, TypeIs(io.StringIO))
        evaluator.guard(AttributeSource(source, "closed"), IsObject(value.closed))
    return OpaqueVariable(value, source) if value.closed else _StreamVariable(value, source)
