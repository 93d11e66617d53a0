"""Operators that take Python numbers, called with numbers that the graph computes, which are in tensors.

A number is brought to the dtype in which the operator uses a Python number.  Beyond that dtype's range it is
an infinity there, where eager raises for some operators.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import COMPARISONS
from ..torch.tensor import TensorVariable, tensor_of
from .tensor_number import (
    TensorNumberVariable,
    cast_tensor,
    example_of,
    number_in_tensor,
    number_kind,
)


def has_number(arguments: Iterable[Variable]) -> bool:
    """Whether a number that the graph computes is among the arguments of a call."""
    return any(isinstance(argument, TensorNumberVariable) for argument in arguments)


def call_with_numbers(
    evaluator: Evaluator, target: Any, arguments: Sequence[Variable], keywords: Keywords
) -> Variable:
    """A call of ``target``, a function or the name of a method, with such numbers among its arguments.

    :raises Unsupported: no rule takes these arguments.
    """
    is_method = isinstance(target, str)
    full = target if is_method else getattr(target, "__name__", "")
    known = is_method or target is operator.setitem or getattr(torch, full, None) is target
    name = full.removesuffix("_")
    rule = _RULES.get(name) if known else None
    if rule is not None:
        names = rule.method if is_method else rule.function
        given = dict(zip(names, arguments, strict=False)) | keywords
        if len(given) == len(arguments) + len(keywords) and given.keys() <= rule.accepted:
            with contextlib.suppress(_NotTaken):
                return rule.run(_Call(evaluator, name, full != name, given))
    flags = [v for v in (*arguments, *keywords.values()) if number_kind(v) is bool]
    decided = {id(v): ConstantVariable(v.truth(evaluator)) for v in flags if has_number([v])}
    if decided:  # `is_causal=(mask == causal).all()`, as this call's
        arguments = [decided.get(id(value), value) for value in arguments]
        keywords = {name: decided.get(id(value), value) for name, value in keywords.items()}
        if isinstance(target, str):
            return evaluator.graph.call_method(
                evaluator, target, arguments[0], arguments[1:], keywords
            )
        return evaluator.graph.call_function(evaluator, target, arguments, keywords)
    described = ", ".join(map(repr, (*arguments, *keywords.values())))
    raise Unsupported("argument of an operator", f"{full}({described})")


class _NotTaken(Exception):
    """A rule does not take the arguments of a call."""


@dataclass(frozen=True)
class _Call:
    """A call by the name of its operator, without the underscore of those in place, and its arguments."""

    evaluator: Evaluator
    name: str
    in_place: bool
    given: dict[str, Variable]

    def find(self, name: str) -> Variable | None:
        """An argument; None where it is not given, or None."""
        value = self.given.get(name)
        return None if value is None or value.is_none() else value

    def get(self, name: str) -> Variable:
        value = self.find(name)
        if value is None:
            raise _NotTaken
        return value

    def tensor(self, name: str) -> TensorVariable:
        value = self.get(name)
        if not isinstance(value, TensorVariable):
            raise _NotTaken
        return value

    def function(self, function: Callable[..., Any], *arguments: Variable) -> TensorVariable:
        return tensor_of(self.evaluator, function, *arguments)

    def method(self, name: str, tensor: TensorVariable, *arguments: Variable) -> Variable:
        return self.evaluator.graph.call_method(self.evaluator, name, tensor, arguments, {})

    def result(self, target: TensorVariable, made: TensorVariable) -> Variable:
        """``made``, or ``target`` with it where the operator works in place.

        That is not taken where ``target`` is of another dtype: eager does not always write to it.
        """
        if not self.in_place:
            return made
        if target.fake.dtype is not made.fake.dtype:
            raise _NotTaken
        return self.method("copy_", target, made)

    def promoted(self, tensor: TensorVariable, *others: Variable) -> torch.dtype:
        """The dtype of an operation of ``tensor`` with tensors and numbers."""
        dtype = tensor.fake.dtype
        for other in others:
            kind = number_kind(other)
            if isinstance(other, TensorVariable):
                example = other.fake
            elif kind is None:
                raise _NotTaken
            else:
                example = example_of(tensor.fake, kind)
                if example is None:
                    raise _NotTaken
            with self.evaluator.graph.fake_mode:
                own = torch.result_type(tensor.fake, example)
            dtype = torch.promote_types(dtype, own)
        return dtype

    def number(self, value: Variable, dtype: torch.dtype) -> TensorVariable:
        """A number in a tensor of ``dtype``, which has to hold all numbers of its type."""
        held = dtype.is_floating_point or (dtype, number_kind(value)) in _HELD
        number = number_in_tensor(self.evaluator, value) if held else None
        if number is None:
            raise _NotTaken
        return cast_tensor(self.evaluator, number.tensor, dtype)


_HELD = frozenset({(torch.int64, int), (torch.int64, bool), (torch.bool, bool)})
_EXACT = frozenset({torch.float32, torch.float64})  # other dtypes are computed with in float32


# -- arithmetic ------------------------------------------------------------------------------------------


def _arithmetic(call: _Call) -> Variable:
    tensor, other, alpha = call.tensor("input"), call.get("other"), call.find("alpha")
    if alpha is not None:
        return _scaled(call, tensor, other, alpha)
    if not isinstance(other, TensorNumberVariable):
        raise _NotTaken
    spelled = ("i" if call.in_place else "") + _OPERATORS[call.name]
    made = other.with_tensor(call.evaluator, spelled, tensor, reflected=False)
    if made is None:
        raise _NotTaken
    return made


def _scaled(call: _Call, tensor: TensorVariable, other: Variable, alpha: Variable) -> Variable:
    """``tensor + alpha * other``, or the difference, rounded once."""
    dtype = call.promoted(tensor, other)
    is_number = number_kind(alpha) in (int, float, Real)
    if not dtype.is_floating_point or not is_number or not isinstance(other, TensorVariable):
        raise _NotTaken
    wide = dtype if dtype in _EXACT else torch.float32
    evaluator, scale = call.evaluator, call.number(alpha, wide)
    scaled = call.function(torch.mul, cast_tensor(evaluator, other, wide), scale)
    function = torch.add if call.name == "add" else torch.sub
    made = call.function(function, cast_tensor(evaluator, tensor, wide), scaled)
    return call.result(tensor, cast_tensor(evaluator, made, dtype))


def _three_tensors(call: _Call) -> Variable:
    """``addcmul`` and ``addcdiv``, rounded once."""
    tensors = [call.tensor(name) for name in ("input", "tensor1", "tensor2")]
    dtype = tensors[0].fake.dtype
    if not dtype.is_floating_point or any(tensor.fake.dtype is not dtype for tensor in tensors):
        raise _NotTaken
    wide = dtype if dtype in _EXACT else torch.float32
    value = call.number(call.get("value"), wide)
    target, first, second = (cast_tensor(call.evaluator, tensor, wide) for tensor in tensors)
    function = torch.mul if call.name == "addcmul" else torch.div
    made = call.function(function, call.function(torch.mul, first, value), second)
    made = call.function(torch.add, target, made)
    return call.result(tensors[0], cast_tensor(call.evaluator, made, dtype))


def _lerp(call: _Call) -> Variable:
    target, end, weight = call.tensor("input"), call.tensor("end"), call.get("weight")
    dtype = target.fake.dtype
    if dtype not in _EXACT or end.fake.dtype is not dtype:
        raise _NotTaken
    return call.result(target, call.function(torch.lerp, target, end, call.number(weight, dtype)))


# -- bounds and choices ----------------------------------------------------------------------------------


def _clamped(call: _Call) -> Variable:
    tensor = call.tensor("input")
    bounds = {name: call.get(name) for name in ("min", "max") if call.find(name)}
    if any(isinstance(bound, TensorVariable) for bound in bounds.values()):
        raise _NotTaken
    dtype = call.promoted(tensor, *bounds.values())
    numbers = {name: call.number(bound, dtype) for name, bound in bounds.items()}
    # In place, eager keeps a copy of what was there for backward: the write is none to what is saved.
    read = tensor_of(call.evaluator, "clone", tensor) if call.in_place else tensor
    return call.result(tensor, tensor_of(call.evaluator, torch.clamp, read, **numbers))


def _chosen(call: _Call) -> Variable:
    choices = [call.get("input"), call.get("other")]
    tensors = [choice for choice in choices if isinstance(choice, TensorVariable)]
    numbers = [choice for choice in choices if choice not in tensors]
    if len(tensors) != 1:
        raise _NotTaken
    number = call.number(numbers[0], call.promoted(tensors[0], *numbers))
    chosen = [choice if isinstance(choice, TensorVariable) else number for choice in choices]
    return call.function(torch.where, call.tensor("condition"), *chosen)


def _masked(call: _Call) -> Variable:
    tensor, mask = call.tensor("input"), call.tensor("mask")
    number = call.number(call.get("value"), tensor.fake.dtype)
    return call.method("masked_fill_" if call.in_place else "masked_fill", tensor, mask, number)


# -- tensors of one number -------------------------------------------------------------------------------


def _filled(call: _Call) -> Variable:
    tensor = call.tensor("input")
    if not call.in_place:
        raise _NotTaken
    return call.method("fill_", tensor, call.number(call.get("value"), tensor.fake.dtype))


def _element(call: _Call) -> Variable:
    tensor = call.tensor("input")
    number = call.number(call.get("value"), tensor.fake.dtype)
    arguments = [tensor, call.given["index"], number]
    return call.evaluator.graph.call_function(call.evaluator, operator.setitem, arguments, {})


def _full(call: _Call) -> Variable:
    """A new tensor: ``full``, ``full_like``, ``new_full``, ``tensor``."""
    value = call.get("fill_value")
    kind = number_kind(value)
    if kind is None:
        raise _NotTaken
    options = {n: v for n, v in call.given.items() if n not in ("input", "size", "fill_value")}
    if call.name in ("full", "tensor", "as_tensor"):
        if kind is Real and not call.find("dtype"):
            raise _NotTaken
        kind = float if kind is Real else kind
        dtype = {float: torch.get_default_dtype(), int: torch.int64, bool: torch.bool}[kind]
        options["dtype"] = call.find("dtype") or ConstantVariable(dtype)
    size = call.find("size") or call.evaluator.wrap_result(())
    evaluator = call.evaluator
    if call.name == "full_like":
        made = tensor_of(evaluator, torch.empty_like, call.tensor("input"), **options)
    elif call.name == "new_full":
        made = tensor_of(evaluator, "new_empty", call.tensor("input"), size, **options)
    else:
        made = tensor_of(evaluator, torch.empty, size, **options)
    return call.method("fill_", made, call.number(value, made.fake.dtype))


# -- the table -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rule:
    """``run`` gives a call's result, and raises where it does not take the arguments.

    ``function`` and ``method`` name the positional parameters of the two forms; ``named`` are others.
    """

    run: Callable[[_Call], Variable]
    function: tuple[str, ...]
    named: tuple[str, ...] = ()
    as_method: tuple[str, ...] | None = None

    @property
    def method(self) -> tuple[str, ...]:
        return self.function if self.as_method is None else self.as_method

    @property
    def accepted(self) -> frozenset[str]:
        return frozenset((*self.function, *self.named))


_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "subtract": "sub",
    "mul": "mul",
    "multiply": "mul",
    "div": "truediv",
    "divide": "truediv",
    "true_divide": "truediv",
    **{name: name for name in COMPARISONS},
}
"""The names of functions and methods, and of the operators that they are."""

_CREATION = ("dtype", "device", "layout")

_RULES: dict[str, _Rule] = {
    **{name: _Rule(_arithmetic, ("input", "other")) for name in _OPERATORS},
    **{name: _Rule(_arithmetic, ("input", "other"), ("alpha",)) for name in ("add", "sub")},
    "addcmul": _Rule(_three_tensors, ("input", "tensor1", "tensor2"), ("value",)),
    "addcdiv": _Rule(_three_tensors, ("input", "tensor1", "tensor2"), ("value",)),
    "lerp": _Rule(_lerp, ("input", "end", "weight")),
    "clamp": _Rule(_clamped, ("input", "min", "max")),
    "clip": _Rule(_clamped, ("input", "min", "max")),
    "clamp_min": _Rule(_clamped, ("input", "min")),
    "clamp_max": _Rule(_clamped, ("input", "max")),
    "where": _Rule(
        _chosen, ("condition", "input", "other"), as_method=("input", "condition", "other")
    ),
    "masked_fill": _Rule(_masked, ("input", "mask", "value")),
    "fill": _Rule(_filled, ("input", "value")),
    "setitem": _Rule(_element, ("input", "index", "value")),
    "full": _Rule(_full, ("size", "fill_value"), _CREATION),
    "full_like": _Rule(_full, ("input", "fill_value"), (*_CREATION, "memory_format")),
    "new_full": _Rule(_full, ("input", "size", "fill_value"), _CREATION),
    "tensor": _Rule(_full, ("fill_value",), ("dtype", "device")),
    "as_tensor": _Rule(_full, ("fill_value",), ("dtype", "device")),
}
