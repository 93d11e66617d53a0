"""Instances of tensor classes that override operators in Python: a plain tensor, a class, attributes.

Every operation on one asks ``__torch_function__`` first; torch's default one and those that end in it run
the operation on plain tensors and give what comes of it the class again.
"""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import Source, TensorMatches, TensorMetadata

from ...._torch import is_dispatching_class, is_uninitialized, without_overrides
from ....frame.emitter import Emitter
from ....sources import ConvertedSource, plain_tensor
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_predicate
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.hashing import outside_key
from ...variables.keys import HashedKey
from ...variables.python_protocols import resolution_order
from ..builtins.methods import BuiltinMethodVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..objects.class_attributes import bind_attribute, raise_no_attribute
from ..objects.classes import ClassVariable
from ..objects.opaque import RefusedVariable
from ..table import model
from .own_attributes import WithAttributes
from .tensor import TensorVariable


class SubclassTensorVariable(WithAttributes):
    """A tensor of a class of the program's; ``plain`` is the same tensor without its class."""

    may_override = True

    def __init__(self, kind: type, plain: TensorVariable, source: Source | None) -> None:
        self.kind = kind
        self.plain = plain
        self.source = source
        self.attributes = {}

    def truth(self, evaluator: Evaluator) -> bool:
        return self.plain.truth(evaluator)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return outside_key(evaluator, self)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        own = self._own(evaluator, name)
        if own is not None:
            return own
        if name == "__class__":
            return evaluator.wrap_known(self.kind)
        if not hasattr(torch.Tensor, name):
            found_own = self.own_attribute(evaluator, name)
            return found_own or raise_no_attribute(evaluator, self.kind, name)
        if callable(getattr(torch.Tensor, name)):
            return BuiltinMethodVariable(self, name)
        found = evaluator.state.overrides.overridden(
            evaluator, getattr, [self, ConstantVariable(name)], {}
        )
        return self.plain.get_attribute(evaluator, name) if found is None else found

    def _own(self, evaluator: Evaluator, name: str) -> Variable | None:
        """What a class derived from Tensor defines."""
        found = evaluator.state.find_in_type(self.kind, name)
        if found is None or found[0] in resolution_order(torch.Tensor):
            return None
        return bind_attribute(evaluator, self.kind, found[0], name, found[1], self)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if evaluator.state.find_in_type(self.kind, name) is not None:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.write_attribute(evaluator, name, value)

    def length(self, evaluator: Evaluator) -> int:
        return int(self.call_method(evaluator, "__len__", [], {}).as_constant())

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        own = self._own(evaluator, "__iter__")
        if own is not None:
            return own.call(evaluator, [], {}).iterate(evaluator)
        self.call_method(evaluator, "dim", [], {})  # as torch.Tensor.__iter__ does
        if self.plain.fake.dim() == 0:
            evaluator.raise_error(TypeError, "iteration over a 0-d tensor")
        rows = self.call_method(evaluator, "unbind", [ConstantVariable(0)], {})
        return rows.iterate(evaluator)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        own = self._own(evaluator, name)
        if own is not None:
            return own.call(evaluator, arguments, keywords)
        method = getattr(torch.Tensor, name, None)
        if name == "as_subclass":  # which asks no override
            return self.plain.call_method(evaluator, name, arguments, keywords)
        if method is None:
            return super().call_method(evaluator, name, arguments, keywords)
        found = evaluator.state.overrides.overridden(
            evaluator, method, [self, *arguments], keywords
        )
        if found is None:
            plain = [without_class(evaluator, argument) for argument in arguments]
            result = self.plain.call_method(evaluator, name, plain, keywords)
            return self if result is self.plain else result
        return found

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        own = self._own(evaluator, f"__{'r' if reflected else ''}{operator}__")
        if own is not None:
            return own.call(evaluator, [other], {})
        function = OPERATORS.get(operator)
        if function is None:
            raise Unsupported("override of an operator", f"{operator} of {self!r}")
        pair = [other, self] if reflected else [self, other]
        found = evaluator.state.overrides.overridden(evaluator, function, pair, {})
        if found is not None:
            return found
        result = self.plain.binary_operation(
            evaluator, operator, without_class(evaluator, other), reflected
        )
        return self if result is self.plain else result

    def override(self, evaluator: Evaluator) -> Variable:
        """What operators ask."""
        return evaluator.wrap_known(self.kind).get_attribute(evaluator, "__torch_function__")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_with_class, self.plain, self.kind)

    def __repr__(self) -> str:
        return f"{self.kind.__qualname__}({self.plain!r})"


def _with_class(tensor: torch.Tensor, kind: type) -> torch.Tensor:
    with without_overrides():
        return tensor.as_subclass(kind)


def without_class(evaluator: Evaluator, variable: Variable) -> Variable:
    """What an operator that asks no override takes: plain tensors, in lists and tuples too."""
    if isinstance(variable, SubclassTensorVariable):
        return variable.plain
    if type(variable) in (ListVariable, TupleVariable):
        items = [without_class(evaluator, item) for item in variable.iterate(evaluator)]
        return ListVariable(items) if isinstance(variable, ListVariable) else TupleVariable(items)
    return variable


def with_class(evaluator: Evaluator, variable: Variable, kind: Any) -> Variable:
    """``as_subclass(kind)`` of a tensor, and of the tensors in a list or tuple."""
    if isinstance(variable, TensorVariable) and kind is not torch.Tensor:
        if is_dispatching_class(kind):
            raise Unsupported("tensor of unusual kind", f"{variable!r} as {kind.__qualname__}")
        return SubclassTensorVariable(kind, variable, None)
    if isinstance(variable, SubclassTensorVariable) and not issubclass(variable.kind, kind):
        return SubclassTensorVariable(kind, variable.plain, None)
    if type(variable) in (ListVariable, TupleVariable):
        items = [with_class(evaluator, item, kind) for item in variable.iterate(evaluator)]
        return ListVariable(items) if isinstance(variable, ListVariable) else TupleVariable(items)
    return variable


@register_predicate(lambda value: issubclass(type(value), torch.Tensor), 40)
def _wrap_subclass(evaluator: Evaluator, value: torch.Tensor, source: Source) -> Variable:
    kind = type(value)
    if is_uninitialized(value) or isinstance(value, torch.nn.Parameter):
        return RefusedVariable(value, source, "tensor of unusual kind", kind.__qualname__)
    try:
        metadata = TensorMetadata.of(value)
    except TypeError as error:
        raise Unsupported("tensor of unusual kind", source.name(), str(error)) from error
    evaluator.guard(source, TensorMatches(metadata))
    plain = evaluator.graph.add_input(
        evaluator, plain_tensor(value), ConvertedSource(source, plain_tensor)
    )
    assert isinstance(plain, TensorVariable)
    return SubclassTensorVariable(kind, plain, source)


@model(torch.Tensor.as_subclass)
def _as_subclass(evaluator: Evaluator, self: Variable, kind: Variable, /) -> Variable:
    if isinstance(self, SubclassTensorVariable):
        self = self.plain
    if not isinstance(kind, ClassVariable) or not isinstance(self, TensorVariable):
        raise Unsupported("method of a tensor", f"{self!r}.as_subclass({kind!r})")
    if is_dispatching_class(kind.value) or not issubclass(kind.value, torch.Tensor):
        raise Unsupported("tensor of unusual kind", f"{self!r}.as_subclass({kind!r})")
    if kind.value is torch.Tensor:  # another tensor, a view of the same elements
        return evaluator.graph.call_function(evaluator, torch.ops.aten.alias.default, [self], {})
    return SubclassTensorVariable(kind.value, self, None)
