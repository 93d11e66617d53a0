"""Texts that hold numbers which only data gives: ``f"{n} tokens, {size} features"`` of tensors.

Most are messages of errors that no call raises.  Such a text is made after the graph, where anyone reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .... import _frame_hook
from ...._torch.symbols import unbacked_symbols
from ...._torch.transforms import is_of_level
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.keys import HashedKey
from ..containers.sequences import ListVariable, SequenceVariable, TupleVariable
from ..torch.tensor import TensorVariable
from ..torch.torch_values import SizeVariable
from .data_numbers import DataBooleanVariable, DataFloatVariable
from .representations import NumberVariable


@dataclass(frozen=True)
class TextCall:
    """A part of a text: what a pure function gives for numbers and constants."""

    function: Callable[..., Any]
    arguments: tuple[Variable, ...]


class _HeldSequence(Variable):
    """A list, a tuple or a torch.Size as a text shows it, however the list changes later."""

    def __init__(self, kind: type[SequenceVariable], held: list[Variable]) -> None:
        self.held = held
        self._sequence = kind(held)

    def snapshot(self) -> Any:
        return self._sequence.snapshot()

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self._sequence)


class DataTextVariable(Variable):
    """A string joined of literal parts and of texts of numbers.

    It is a constant where no number depends on data: asking for it compiles for these numbers alone.
    ``by_code``: the code after the graph does not ask, but makes it anew.
    """

    kind = str

    def __init__(self, parts: Sequence[str | TextCall], by_code: bool) -> None:
        self.parts = parts
        self._by_code = by_code

    def is_constant(self) -> bool:
        calls = (part for part in self.parts if isinstance(part, TextCall))
        return not any(_is_of_data(argument) for call in calls for argument in call.arguments)

    def is_made_of_numbers(self) -> bool:
        return self._by_code

    def is_none(self) -> bool:
        return False

    def is_not_implemented(self) -> bool:
        return False

    def as_constant(self) -> str:
        if not self.is_constant():
            raise Unsupported("value of a tensor as a Python object", repr(self))
        return "".join(map(_known_text, self.parts))

    def truth(self, evaluator: Evaluator) -> bool:
        is_told = any(isinstance(part, str) and part for part in self.parts)
        return is_told or bool(self.as_constant())

    def length(self, evaluator: Evaluator) -> int:
        return len(self.as_constant())

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return ConstantVariable(self.as_constant()).iterate(evaluator)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return HashedKey(ConstantVariable(self.as_constant()), (self.as_constant(),))

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return ConstantVariable(self.as_constant()).get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        known = ConstantVariable(self.as_constant())
        return known.call_method(evaluator, name, arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator in ("add", "iadd") and other.python_type() is str:
            texts = (other, self) if reflected else (self, other)
            return joined(evaluator, texts)
        known = ConstantVariable(self.as_constant())
        return known.binary_operation(evaluator, operator, other, reflected)

    def reconstruct(self, emitter: Emitter) -> None:
        for part in self.parts:
            if isinstance(part, str):
                emitter.load_constant(part)
                continue
            emitter.load_callable(_MADE)
            emitter.load_object(part.function)
            for argument in part.arguments:
                emitter.load_variable(argument)
            emitter.call(1 + len(part.arguments))
        emitter.build("string", len(self.parts))

    def __repr__(self) -> str:
        return f"DataText({self.parts})"


def _made(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


_MADE = _frame_hook.disabled(_made)  # tensors print themselves by torch's Python


def text_of_data(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Sequence[Variable]
) -> DataTextVariable | None:
    """``function(*arguments)``, a text, if numbers that vary are among the arguments; else None.

    None also where it raises: that is where the program is, and not where somebody reads the text.
    """
    if not any(_varies(evaluator, argument) for argument in arguments):
        return None
    try:
        function(*(_example(evaluator, argument) for argument in arguments))
    except _FORMAT_ERRORS:
        return None
    held = [_held(evaluator, argument) for argument in arguments]
    kept = tuple(argument for argument in held if argument is not None)
    if len(kept) < len(held):
        return None
    return DataTextVariable([TextCall(function, kept)], evaluator.state.options.numbers_by_code)


_FORMAT_ERRORS = (TypeError, ValueError, KeyError, IndexError, AttributeError)


def _example(evaluator: Evaluator, variable: Variable) -> Any:
    """A value of the kind that a variable has; TypeError for one that no text can wait for."""
    if isinstance(variable, SequenceVariable) and _is_plain_sequence(variable):
        kind: Any = variable.python_type()
        return kind(_example(evaluator, item) for item in variable.items(evaluator))
    if isinstance(variable, TensorVariable):
        fake = variable.fake
        shape = [size if type(size) is int and size < 2 else 2 for size in fake.shape]
        return torch.ones(shape, dtype=fake.dtype)
    if isinstance(variable, (NumberVariable, DataTextVariable, DataBooleanVariable)):
        return variable.python_type()(1)
    if not variable.is_constant():
        raise TypeError
    return variable.as_constant()


def formatted_with(evaluator: Evaluator, template: str, value: Variable) -> DataTextVariable | None:
    """``template % value``, if numbers that vary are in it; else None."""
    if _is_plain_sequence(value) and value.python_type() is tuple:
        values = value.iterate(evaluator)
        return text_of_data(evaluator, _formatted, [ConstantVariable(template), *values])
    return text_of_data(evaluator, operator.mod, [ConstantVariable(template), value])


def formatted_by_names(
    evaluator: Evaluator, template: Variable, arguments: Sequence[Variable], keywords: Keywords
) -> DataTextVariable | None:
    """``template.format(*arguments, **keywords)``, if numbers that vary are in it; else None."""
    names = TupleVariable([ConstantVariable(name) for name in keywords])
    given: list[Variable] = [template, names, *arguments, *keywords.values()]
    return text_of_data(evaluator, _formatted_by_names, given)


def _formatted_by_names(template: str, names: tuple[str, ...], *values: Any) -> str:
    first = len(values) - len(names)
    return template.format(*values[:first], **dict(zip(names, values[first:], strict=True)))


def _formatted(template: str, *values: Any) -> str:
    return template % values


def joined(evaluator: Evaluator, texts: Sequence[Variable]) -> Variable:
    """The texts one after the other."""
    if not any(isinstance(text, DataTextVariable) for text in texts):
        return evaluator.wrap_constant("".join(text.as_constant() for text in texts))
    parts: list[str | TextCall] = []
    for text in texts:
        parts += text.parts if isinstance(text, DataTextVariable) else [text.as_constant()]
    return DataTextVariable(parts, evaluator.state.options.numbers_by_code)


def _known_text(part: str | TextCall) -> str:
    if isinstance(part, str):
        return part
    return str(part.function(*(argument.snapshot() for argument in part.arguments)))


def _is_plain_sequence(variable: Variable) -> bool:
    return type(variable) in (ListVariable, TupleVariable, SizeVariable)


def _varies(evaluator: Evaluator, variable: Variable) -> bool:
    if isinstance(variable, SequenceVariable) and _is_plain_sequence(variable):
        return any(_varies(evaluator, item) for item in variable.items(evaluator))
    return isinstance(
        variable, (NumberVariable, TensorVariable, DataTextVariable, DataBooleanVariable)
    )


def _is_of_data(variable: Variable) -> bool:
    if isinstance(variable, _HeldSequence):
        return any(map(_is_of_data, variable.held))
    if isinstance(variable, DataFloatVariable):
        return True
    if isinstance(variable, NumberVariable):
        return variable.value is None or bool(unbacked_symbols(variable.value))
    if isinstance(variable, DataTextVariable):
        return not variable.is_constant()
    return isinstance(variable, (TensorVariable, DataBooleanVariable))


def _held(evaluator: Evaluator, variable: Variable) -> Variable | None:
    """An argument as it is now; None for what prints itself in another way than its copy would."""
    if isinstance(variable, SequenceVariable) and _is_plain_sequence(variable):
        items = [_held(evaluator, item) for item in variable.items(evaluator)]
        kept = [item for item in items if item is not None]
        return _HeldSequence(type(variable), kept) if len(kept) == len(items) else None
    if not isinstance(variable, TensorVariable):
        numbers = (NumberVariable, DataTextVariable, DataBooleanVariable)
        return variable if isinstance(variable, numbers) or variable.is_constant() else None
    fake = variable.fake
    if evaluator.graph.is_in_region or is_of_level(fake) or fake.requires_grad:
        return None
    if variable.python_type() is not torch.Tensor:
        return None
    return evaluator.graph.call_method(evaluator, "clone", variable, [], {})
