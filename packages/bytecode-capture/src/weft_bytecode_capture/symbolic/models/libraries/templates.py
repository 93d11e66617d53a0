"""Template strings (CPython 3.14): texts and values beside each other, which other code puts together."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.missing_methods import name_in_c
from ...variables.python_protocols import no_attribute
from ..containers.sequences import TupleVariable
from ..table import model

_TEMPLATES: Any = sys.version_info >= (3, 14) and importlib.import_module("string.templatelib")
_NAME = "string.templatelib.Template"
_PARTS = ("value", "expression", "conversion", "format_spec")


class InterpolationVariable(Variable):
    """A value in a template, with the text that gave it, a conversion and a format specification."""

    def __init__(self, *parts: Variable) -> None:
        self.kind = _TEMPLATES.Interpolation
        self.parts = parts

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _PARTS:
            return self.parts[_PARTS.index(name)]
        if hasattr(self.kind, name):
            return super().get_attribute(evaluator, name)
        return no_attribute(evaluator, "string.templatelib.Interpolation", name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(self.kind, *self.parts)


class TemplateVariable(Variable):
    """A template: a text more than interpolations, in turn."""

    def __init__(self, strings: Sequence[str], interpolations: Sequence[Variable]) -> None:
        self.kind = _TEMPLATES.Template
        self.texts = list(strings)
        self.strings = TupleVariable([ConstantVariable(text) for text in strings])
        self.interpolations = TupleVariable(list(interpolations))
        self.held = list(interpolations)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("strings", "interpolations"):
            found: Variable = getattr(self, name)
            return found
        if name == "values":
            return TupleVariable([held.get_attribute(evaluator, "value") for held in self.held])
        if hasattr(self.kind, name):
            return super().get_attribute(evaluator, name)
        return no_attribute(evaluator, _NAME, name)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        """Texts and interpolations as they come, without empty texts."""
        parts = self._in_turn()
        return [part for part in parts if not part.is_constant() or part.as_constant()]

    def iterator(self, evaluator: Evaluator) -> Variable:
        return TupleVariable(self.iterate(evaluator)).iterator(evaluator)

    def _in_turn(self) -> list[Variable]:
        parts: list[Variable] = [ConstantVariable(self.texts[0])]
        for held, text in zip(self.held, self.texts[1:], strict=True):
            parts += [held, ConstantVariable(text)]
        return parts

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator != "add" or reflected:
            return None
        if not isinstance(other, TemplateVariable):
            kind = name_in_c(other.python_type())
            text = f'can only concatenate {_NAME} (not "{kind}") to {_NAME}'
            return evaluator.raise_error(TypeError, text)
        return template_of(self._in_turn() + other._in_turn())

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(self.kind, *self._in_turn())


def template_of(parts: Sequence[Variable]) -> TemplateVariable:
    """A template of texts and interpolations in any order."""
    strings, interpolations = [""], []
    for part in parts:
        if part.is_constant():
            strings[-1] += part.as_constant()
        else:
            interpolations.append(part)
            strings.append("")
    return TemplateVariable(strings, interpolations)


if _TEMPLATES:

    @model(_TEMPLATES.Interpolation)
    def _new_interpolation(
        evaluator: Evaluator,
        value: Variable,
        expression: Variable | None = None,
        conversion: Variable | None = None,
        format_spec: Variable | None = None,
    ) -> Variable:
        empty = ConstantVariable("")
        conversion = conversion or ConstantVariable(None)
        texts = [expression or empty, conversion, format_spec or empty]
        evaluator.pure(_TEMPLATES.Interpolation, None, *(text.as_constant() for text in texts))
        return InterpolationVariable(value, *texts)

    @model(_TEMPLATES.Template)
    def _new_template(evaluator: Evaluator, *parts: Variable) -> Variable:
        for part in parts:
            if part.python_type() not in (str, _TEMPLATES.Interpolation):
                kind = name_in_c(part.python_type())
                evaluator.raise_error(
                    TypeError,
                    "Template.__new__ *args need to be of type 'str' or 'Interpolation', "
                    f"got {kind}",
                )
        return template_of(parts)
