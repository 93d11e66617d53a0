"""Slices, and the integers of subscripts."""

from __future__ import annotations

import operator as operators
from typing import cast

from weft_guards import AttributeSource, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...graph.known_contents import known_contents
from ...graph.storages import Tensor
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.class_guards import guard_absent
from ...variables.operations import compare_sequences
from ...variables.python_protocols import has_raw, no_attribute
from ..builtins.methods import method_of

_NO_INDEX = "{!r} object cannot be interpreted as an integer"
_NO_SUBSCRIPT = "{} indices must be integers or slices, not {}"
_NO_SLICE = "slice indices must be integers or None or have an __index__ method"


def index_value(evaluator: Evaluator, key: Variable, what: str | None = None) -> int:
    """``operator.index`` of a subscript of ``what``, of "slice"'s parts, or of an argument (None)."""
    kind = key.python_type()
    if key.node is not None:
        if known_contents(evaluator, cast("Tensor", key)) is not None:
            return int(key.call_method(evaluator, "__index__", [], {}).as_constant())
        raise Unsupported("subscript that the graph computes", f"{what}[{key!r}]")
    if not has_raw(kind, "__index__"):
        guard_absent(evaluator, kind, "__index__")
        if what is None:
            message = _NO_INDEX.format(kind.__name__)
        elif what == "slice":
            message = _NO_SLICE
        else:
            message = _NO_SUBSCRIPT.format(what, kind.__name__)
        evaluator.raise_error(TypeError, message)
    index = key if key.is_constant() else key.call_method(evaluator, "__index__", [], {})
    return int(evaluator.pure(operators.index, index.as_constant()))


class SliceVariable(Variable):
    """A slice object."""

    kind = slice

    def __init__(self, start: Variable, stop: Variable, step: Variable) -> None:
        self.parts = (start, stop, step)

    def is_constant(self) -> bool:
        return all(part.is_constant() for part in self.parts)

    def as_constant(self) -> slice:
        return slice(*(part.as_constant() for part in self.parts))

    def as_slice(self, evaluator: Evaluator) -> slice:
        values: list[int | None] = []
        for part in self.parts:
            if part.is_none():
                values.append(None)
            else:
                values.append(index_value(evaluator, part, "slice"))
        if values[2] == 0:
            evaluator.raise_error(ValueError, "slice step cannot be zero")
        return slice(*values)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        if name == "indices":
            return method_of(evaluator, self, name)
        return no_attribute(evaluator, "slice", name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "indices":
            positional, _ = evaluator.snapshots(arguments, {}, "slice.indices")
            known = self.as_slice(evaluator)
            return evaluator.wrap_result(evaluator.pure(known.indices, *positional))
        return super().call_method(evaluator, name, arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator in ("eq", "ne") and isinstance(other, SliceVariable):
            return compare_sequences(evaluator, operator, list(self.parts), list(other.parts))
        return None

    def reconstruct(self, emitter: Emitter) -> None:
        for part in self.parts:
            emitter.load_variable(part)
        emitter.build("slice", 3)


@register_wrapper(slice)
def _wrap_slice(evaluator: Evaluator, value: slice, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(slice))
    variable = SliceVariable(
        *(
            evaluator.builder.wrap(getattr(value, part), AttributeSource(source, part))
            for part in ("start", "stop", "step")
        )
    )
    variable.source = source
    return variable
