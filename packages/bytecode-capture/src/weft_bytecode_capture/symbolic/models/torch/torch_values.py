"""Values of torch that are no tensors: number formats, sizes, tuples with named fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from weft_guards import Source, TypeIs

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_constant_types, register_predicate, register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import pure_call
from ..containers.sequences import TupleVariable
from ..table import model, models

register_constant_types(torch.finfo, torch.iinfo)


@models(torch.finfo, torch.iinfo, torch.device)
def _new(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A class of immutable values: calls with constants are made at once."""
    return pure_call(evaluator, kind, arguments, keywords)


@model(torch.Size)
def _new_size(evaluator: Evaluator, sizes: Variable | None = None, /) -> Variable:
    return SizeVariable([] if sizes is None else sizes.iterate(evaluator))


class SizeVariable(TupleVariable):
    """A ``torch.Size`` of known integers."""

    def python_type(self) -> type:
        return torch.Size

    def as_constant(self) -> Any:
        return torch.Size(super().as_constant())

    def snapshot(self) -> Any:
        return torch.Size(super().snapshot())

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "numel" and not arguments and not keywords:
            total: Variable = ConstantVariable(1)
            for item in self.items(evaluator):
                total = evaluator.binary_operation("mul", total, item)
            return total
        return super().call_method(evaluator, name, arguments, keywords)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(torch.Size)
        super().reconstruct(emitter)
        emitter.call(1)


@register_wrapper(torch.Size)
def _wrap_size(evaluator: Evaluator, value: torch.Size, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(torch.Size))
    return SizeVariable.from_object(evaluator, value, source)


class StructSequenceVariable(TupleVariable):
    """A tuple with named fields of torch.return_types: the values and indices of ``max``."""

    def __init__(self, kind: Any, items: list[Variable]) -> None:
        super().__init__(items)
        self._type = kind
        self._fields = _fields(kind)

    def python_type(self) -> type:
        kind: type = self._type
        return kind

    def is_constant(self) -> bool:
        return False

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self._fields:
            return self.items(evaluator)[self._fields.index(name)]
        return super().get_attribute(evaluator, name)

    @classmethod
    def plain(cls, items: Sequence[Variable]) -> Variable:
        return TupleVariable(items)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self._type)
        super().reconstruct(emitter)
        emitter.call(1)


def _fields(kind: type) -> list[str]:
    return [name for name, raw in vars(kind).items() if type(raw).__name__ == "member_descriptor"]


def _is_named_result(value: Any) -> bool:
    """Whether it is a tuple of which every field has a name and a place."""
    kind: Any = type(value)
    if not issubclass(kind, tuple) or not hasattr(kind, "n_sequence_fields"):
        return False
    return bool(kind.n_fields == kind.n_sequence_fields == len(_fields(kind)))


@register_predicate(_is_named_result, priority=1)
def _wrap_named_result(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """``x.max(0)`` that a function is given, or that lives across a break."""
    evaluator.guard(source, TypeIs(type(value)))
    variable = StructSequenceVariable(type(value), [])
    variable.source = source
    variable.leave_unread(value)
    return variable
