"""Jagged tensors: values, offsets, and operations on them as plain Python over these.

The dimension that is ragged has no number for a size: it is equal to that of tensors with the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from weft_guards import AttributeSource, EqualsConstant, Source, TypeIs

from ...._torch import OpOverloadPacket
from ...._torch.jagged import (
    CACHE,
    DIMENSION,
    LENGTHS,
    OFFSETS,
    JaggedTensor,
    as_jagged,
    from_jagged,
    is_jagged,
    make_jagged,
    new_jagged,
    parts_of,
    to_padded,
    values_of,
)
from ...._torch.wrappers import wrapper_like
from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...polyfills import jagged_tensors as polyfills
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import OPERATORS, ConstantVariable
from ..builtins.methods import BuiltinMethodVariable
from ..containers.mappings import DictVariable, keyword_arguments, new_keyword_dict
from ..containers.sequences import TupleVariable
from ..objects.opaque import RefusedVariable
from ..table import model
from .subclass_tensors import SubclassTensorVariable
from .tensor import TensorVariable
from .torch_values import SizeVariable
from .wrapper_tensors import UNUSUAL, PlainMetadata

_HINT = "take the values with .values(), or pad with torch.nested.to_padded_tensor"
_OF_VALUES = frozenset("dtype device is_cuda is_cpu is_meta requires_grad".split())
_CONSTANTS = {"layout": torch.jagged, "is_nested": True, "is_sparse": False, "is_quantized": False}

_RULES: dict[str, Callable[..., Any]] = {
    "nested_to_padded_tensor": polyfills.to_padded,
    "to_padded_tensor": polyfills.to_padded,
    "__rsub__": polyfills.reflected_sub,
    "__rdiv__": polyfills.reflected_div,
    "__rpow__": polyfills.reflected_pow,
    **{
        name: getattr(polyfills, name)
        for name in (
            *("linear", "matmul", "embedding", "layer_norm", "rms_norm", "softmax", "log_softmax"),
            *("transpose", "unflatten", "flatten", "view", "reshape", "chunk", "split", "cat"),
            *("unsqueeze", "unbind", "sum", "mean", "scaled_dot_product_attention"),
        )
    },
}
"""By the names of torch's functions and methods."""

_ON_VALUES = frozenset(
    "dropout to float double half bfloat16 long int bool type_as clone contiguous detach".split()
)
"""What is done to each element beside the operators that torch marks as such."""


class RaggedSizeVariable(Variable):
    """The size of a ragged dimension, by the offsets that say it."""

    kind = int

    def __init__(self, offsets: Variable) -> None:
        self.source = None
        self.offsets = offsets

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if isinstance(other, RaggedSizeVariable) and other.offsets is self.offsets:
            return True
        if other.is_constant() and type(other.as_constant()) is int and other.as_constant() < 0:
            return False
        raise Unsupported(UNUSUAL, "a ragged size beside another", _HINT)

    def reconstruct(self, emitter: Emitter) -> None:
        raise Unsupported(UNUSUAL, "a ragged size outside the graph", _HINT)

    def __repr__(self) -> str:
        return "ragged size"


class JaggedTensorVariable(SubclassTensorVariable):
    """A jagged tensor; ``dim`` is ragged, and ``cache`` a dict of the lengths that are known."""

    plain: PlainMetadata

    def __init__(
        self,
        values: TensorVariable,
        offsets: TensorVariable,
        dim: int,
        cache: Variable,
        source: Source | None,
    ) -> None:
        like = wrapper_like(
            [1] * (values.fake.dim() + 1), dtype=values.fake.dtype, device=values.fake.device
        )
        assert like is not None
        super().__init__(JaggedTensor, PlainMetadata(JaggedTensor, like), source)
        self.values, self.offsets, self.dim, self.cache = values, offsets, dim, cache

    def truth(self, evaluator: Evaluator) -> bool:
        raise Unsupported(UNUSUAL, "truth of a jagged tensor", _HINT)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _OF_VALUES:
            return self.values.get_attribute(evaluator, name)
        if name in _CONSTANTS:
            return ConstantVariable(_CONSTANTS[name])
        if name == "ndim":
            return ConstantVariable(self.values.fake.dim() + 1)
        if name == "shape":
            return self._shape(evaluator)
        if name == "__class__":
            return evaluator.wrap_known(self.kind)
        if not callable(getattr(JaggedTensor, name, None)):
            raise Unsupported("attribute of a tensor", f"{name} of a jagged tensor", _HINT)
        return BuiltinMethodVariable(self, name)

    def _shape(self, evaluator: Evaluator) -> SizeVariable:
        inner = self.values.get_attribute(evaluator, "shape").iterate(evaluator)
        inner[self.dim - 1] = RaggedSizeVariable(self.offsets)
        return SizeVariable([self._batch(evaluator), *inner])

    def _batch(self, evaluator: Evaluator) -> Variable:
        bounds = self.offsets.get_attribute(evaluator, "shape").iterate(evaluator)[0]
        return evaluator.binary_operation("sub", bounds, ConstantVariable(1))

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        raise Unsupported("attribute write", f"{name} of a jagged tensor")

    def length(self, evaluator: Evaluator) -> int:
        return int(self._batch(evaluator).as_constant())

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if not arguments and not keywords:
            if name in ("dim", "size", "__len__"):
                shape = self._shape(evaluator)
                parts = shape.iterate(evaluator)
                counted = ConstantVariable(len(parts)) if name == "dim" else parts[0]
                return shape if name == "size" else counted
            if name in ("values", "offsets"):
                return self.values if name == "values" else self.offsets
            if name == "lengths":
                return ConstantVariable(None)
            if name == "numel":
                return self.values.call_method(evaluator, name, [], {})
        if name == "size":
            return self._shape(evaluator).call_method(evaluator, "__getitem__", arguments, keywords)
        method = getattr(torch.Tensor, name, None)
        if method is None:
            raise Unsupported("method of a tensor", f"{name} of a jagged tensor", _HINT)
        return self._operation(evaluator, method, [self, *arguments], keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        function = OPERATORS.get(operator)
        if function is None:
            raise Unsupported(UNUSUAL, f"{operator} of a jagged tensor", _HINT)
        pair = [other, self] if reflected else [self, other]
        return self._operation(evaluator, function, pair, {})

    def _operation(
        self, evaluator: Evaluator, operation: Any, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        found = evaluator.state.overrides.overridden(evaluator, operation, arguments, keywords)
        if found is None:
            raise Unsupported(UNUSUAL, f"{operation} of a jagged tensor", _HINT)
        return found

    def override(self, evaluator: Evaluator) -> Variable:
        return _RulesVariable()

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(make_jagged, self.values, self.offsets, self.dim, self.cache)

    def __repr__(self) -> str:
        return "jagged tensor"


class _RulesVariable(Variable):
    """Stands for ``NestedTensor.__torch_function__``: the plain Python that an operation is here."""

    source = None

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        function, _, *rest = arguments
        positional = rest[0].iterate(evaluator) if rest else []
        named = rest[1] if len(rest) > 1 else None
        given = keyword_arguments(evaluator, named) if isinstance(named, DictVariable) else {}
        name = str(getattr(getattr(function, "value", None), "__name__", ""))
        found: Variable = ConstantVariable(None)
        if name in _RULES:
            found = evaluator.wrap_known(_RULES[name]).call(evaluator, positional, given)
        elif name in _ON_VALUES or _is_pointwise(name.removesuffix("_")):
            rule = polyfills.in_place if name.endswith("_") else polyfills.on_values
            packed = [function, TupleVariable(positional), new_keyword_dict(given)]
            found = evaluator.wrap_known(rule).call(evaluator, packed, {})
        if found.is_none():
            raise Unsupported(UNUSUAL, f"{name or function!r} of a jagged tensor", _HINT)
        return found

    def __repr__(self) -> str:
        return "operation on a jagged tensor"


def _is_pointwise(name: str) -> bool:
    """Whether torch marks an operator of a name as one of each element."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return False
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


@register_wrapper(JaggedTensor)
def _wrap_jagged(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    if getattr(value, LENGTHS) is not None or torch.is_inference(value):
        return RefusedVariable(value, source, UNUSUAL, "jagged tensor with holes, or of inference")
    evaluator.guard(source, TypeIs(JaggedTensor))
    for name in (LENGTHS, DIMENSION):
        evaluator.guard(AttributeSource(source, name), EqualsConstant(getattr(value, name)))
    values = evaluator.builder.wrap(values_of(value), ConvertedSource(source, values_of))
    offsets, cache = (
        evaluator.builder.wrap(getattr(value, name), AttributeSource(source, name))
        for name in (OFFSETS, CACHE)
    )
    assert isinstance(values, TensorVariable) and isinstance(offsets, TensorVariable)
    return JaggedTensorVariable(values, offsets, getattr(value, DIMENSION), cache, source)


# What the plain Python asks, and makes.


@model(make_jagged)
def _make(
    evaluator: Evaluator, values: Variable, offsets: Variable, dim: Variable, cache: Variable, /
) -> Variable:
    if not isinstance(values, TensorVariable) or not isinstance(offsets, TensorVariable):
        raise Unsupported(UNUSUAL, "jagged tensor of tensors of classes")
    return JaggedTensorVariable(values, offsets, dim.as_constant(), cache, None)


@model(parts_of)
def _parts(evaluator: Evaluator, tensor: Variable, /) -> Variable:
    if not isinstance(tensor, JaggedTensorVariable):
        raise Unsupported(UNUSUAL, f"{tensor!r} as a jagged tensor")
    dim = ConstantVariable(tensor.dim)
    return TupleVariable([tensor.values, tensor.offsets, dim, tensor.cache])


@model(is_jagged)
def _is_jagged(evaluator: Evaluator, value: Variable, /) -> Variable:
    return ConstantVariable(isinstance(value, JaggedTensorVariable))


def _or_refused(polyfill: Callable[..., Any], subject: Any) -> None:
    """Let ``polyfill`` be evaluated for calls of ``subject``; where it gives None they stay as written."""

    def handler(evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable) -> Variable:
        found = evaluator.wrap_known(polyfill).call(evaluator, list(arguments), keywords)
        if found.is_none():
            raise Unsupported(UNUSUAL, f"{subject.__name__} with these arguments", _HINT)
        return found

    model(subject)(handler)


_or_refused(polyfills.to_padded, to_padded)
_or_refused(polyfills.from_jagged, from_jagged)
_or_refused(polyfills.new_jagged, new_jagged)
_or_refused(polyfills.as_jagged, as_jagged)
