"""Operators that take Python numbers, called with numbers that the graph computes, which are in tensors.

A number is brought to the dtype in which the operator uses a Python number.  Beyond that dtype's range it is
an infinity there, where eager raises for some operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import COMPARISONS
from ..torch.tensor import TensorVariable
from .tensor_number import TensorNumberVariable, cast_tensor, number_in_tensor, number_kind


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
    made = None
    if rule is not None:
        names = rule.method if is_method else rule.function
        given = dict(zip(names, arguments, strict=False)) | keywords
        if len(given) == len(arguments) + len(keywords) and given.keys() <= rule.accepted:
            made = rule.run(_Call(evaluator, name, full != name, given))
    if made is None:
        described = ", ".join(map(repr, (*arguments, *keywords.values())))
        raise Unsupported("argument of an operator", f"{full}({described})")
    return made


@dataclass(frozen=True)
class _Call:
    """A call by the name of its operator, without the underscore of those in place, and its arguments."""

    evaluator: Evaluator
    name: str
    in_place: bool
    given: dict[str, Variable]

    def get(self, name: str) -> Variable | None:
        """An argument; None where it is not given, or None."""
        value = self.given.get(name)
        return None if value is None or value.is_none() else value

    def tensor(self, name: str) -> TensorVariable | None:
        value = self.get(name)
        return value if isinstance(value, TensorVariable) else None

    def function(self, function: Callable[..., Any], *arguments: Variable) -> TensorVariable:
        return self.evaluator.graph.tensor(self.evaluator, function, *arguments)

    def method(self, name: str, tensor: TensorVariable, *arguments: Variable) -> Variable:
        return self.evaluator.graph.call_method(self.evaluator, name, tensor, arguments, {})

    def settled(self, target: TensorVariable, made: TensorVariable) -> Variable | None:
        """The result ``made``, or ``target`` with it where the operator works in place.

        None where ``target`` is of another dtype: eager does not always write to that.
        """
        if not self.in_place:
            return made
        same = target.fake.dtype is made.fake.dtype
        return self.method("copy_", target, made) if same else None

    def promoted(self, tensor: TensorVariable, *others: Variable) -> torch.dtype | None:
        """The dtype of an operation of ``tensor`` with tensors and numbers; None where one is neither."""
        dtype = tensor.fake.dtype
        for other in others:
            kind = number_kind(other)
            example = None if kind is None else kind(1)
            if isinstance(other, TensorVariable):
                example = other.fake
            if example is None:
                return None
            with self.evaluator.graph.fake_mode:
                own = torch.result_type(tensor.fake, example)
            dtype = torch.promote_types(dtype, own)
        return dtype

    def number(self, value: Variable, dtype: torch.dtype) -> TensorVariable | None:
        """A number in a tensor of ``dtype``; None where that does not hold all numbers of its type."""
        kind = number_kind(value)
        held = dtype.is_floating_point or (dtype, kind) in _HELD
        number = number_in_tensor(self.evaluator, value) if held else None
        return None if number is None else cast_tensor(self.evaluator, number.tensor, dtype)


_HELD = frozenset({(torch.int64, int), (torch.int64, bool), (torch.bool, bool)})
_EXACT = frozenset({torch.float32, torch.float64})  # other dtypes are computed with in float32


# -- arithmetic ------------------------------------------------------------------------------------------


def _arithmetic(call: _Call) -> Variable | None:
    tensor, other, alpha = call.tensor("input"), call.get("other"), call.get("alpha")
    if tensor is None or other is None:
        return None
    if alpha is not None:
        return _scaled(call, tensor, other, alpha)
    if not isinstance(other, TensorNumberVariable):
        return None
    spelled = ("i" if call.in_place else "") + _OPERATORS[call.name]
    return other.with_tensor(call.evaluator, spelled, tensor, reflected=False)


def _scaled(
    call: _Call, tensor: TensorVariable, other: Variable, alpha: Variable
) -> Variable | None:
    """``tensor + alpha * other``, or the difference, rounded once."""
    dtype = call.promoted(tensor, other)
    is_number = number_kind(alpha) in (int, float) and isinstance(other, TensorVariable)
    if dtype is None or not dtype.is_floating_point or not is_number:
        return None
    wide = dtype if dtype in _EXACT else torch.float32
    evaluator, factor = call.evaluator, call.number(alpha, wide)
    assert factor is not None and isinstance(other, TensorVariable)
    scaled = call.function(torch.mul, cast_tensor(evaluator, other, wide), factor)
    function = torch.add if call.name == "add" else torch.sub
    made = call.function(function, cast_tensor(evaluator, tensor, wide), scaled)
    return call.settled(tensor, cast_tensor(evaluator, made, dtype))


def _three_tensors(call: _Call) -> Variable | None:
    """``addcmul`` and ``addcdiv``."""
    operands = [call.tensor(name) for name in ("input", "tensor1", "tensor2")]
    value = call.get("value")
    dtypes = {operand.fake.dtype for operand in operands if operand is not None}
    if None in operands or value is None or len(dtypes) > 1 or not dtypes <= _EXACT:
        return None
    target, first, second = operands
    assert target is not None and first is not None and second is not None
    factor = call.number(value, target.fake.dtype)
    assert factor is not None
    function = torch.mul if call.name == "addcmul" else torch.div
    made = call.function(function, call.function(torch.mul, first, factor), second)
    return call.settled(target, call.function(torch.add, target, made))


def _lerp(call: _Call) -> Variable | None:
    target, end, weight = call.tensor("input"), call.tensor("end"), call.get("weight")
    if target is None or end is None or weight is None:
        return None
    dtype = target.fake.dtype
    if dtype not in _EXACT or end.fake.dtype is not dtype:
        return None
    factor = call.number(weight, dtype)
    assert factor is not None
    return call.settled(target, call.function(torch.lerp, target, end, factor))


# -- bounds and choices ----------------------------------------------------------------------------------


def _clamped(call: _Call) -> Variable | None:
    tensor, bounds = call.tensor("input"), {n: call.get(n) for n in ("min", "max") if call.get(n)}
    given = [bound for bound in bounds.values() if bound is not None]
    if tensor is None or any(isinstance(bound, TensorVariable) for bound in given):
        return None
    dtype = call.promoted(tensor, *given)
    if dtype is None:
        return None
    numbers: dict[str, Variable] = {}
    for name, bound in bounds.items():
        assert bound is not None
        number = call.number(bound, dtype)
        if number is None:
            return None
        numbers[name] = number
    made = call.evaluator.graph.tensor(call.evaluator, torch.clamp, tensor, **numbers)
    return call.settled(tensor, made)


def _chosen(call: _Call) -> Variable | None:
    condition = call.tensor("condition")
    sides = [call.get("input"), call.get("other")]
    tensors = [side for side in sides if isinstance(side, TensorVariable)]
    numbers = [side for side in sides if side is not None and side not in tensors]
    if condition is None or None in sides or len(tensors) != 1:
        return None
    dtype = call.promoted(tensors[0], *numbers)
    number = None if dtype is None else call.number(numbers[0], dtype)
    if number is None:
        return None
    chosen = [side if isinstance(side, TensorVariable) else number for side in sides]
    return call.function(torch.where, condition, *chosen)


def _masked(call: _Call) -> Variable | None:
    tensor, mask, value = call.tensor("input"), call.tensor("mask"), call.get("value")
    if tensor is None or mask is None or value is None:
        return None
    number = call.number(value, tensor.fake.dtype)
    name = "masked_fill_" if call.in_place else "masked_fill"
    return None if number is None else call.method(name, tensor, mask, number)


# -- tensors of one number -------------------------------------------------------------------------------


def _filled(call: _Call) -> Variable | None:
    tensor, value = call.tensor("input"), call.get("value")
    number = None if tensor is None or value is None else call.number(value, tensor.fake.dtype)
    if tensor is None or number is None or not call.in_place:
        return None
    return call.method("fill_", tensor, number)


def _element(call: _Call) -> Variable | None:
    tensor, value = call.tensor("input"), call.get("value")
    number = None if tensor is None or value is None else call.number(value, tensor.fake.dtype)
    if tensor is None or number is None:
        return None
    arguments = [tensor, call.given["index"], number]
    return call.evaluator.graph.call_function(call.evaluator, operator.setitem, arguments, {})


def _full(call: _Call) -> Variable | None:
    """A new tensor: ``full``, ``full_like``, ``new_full``, ``tensor``."""
    value = call.get("fill_value")
    kind = None if value is None else number_kind(value)
    if value is None or kind is None:
        return None
    options = {n: v for n, v in call.given.items() if n not in ("input", "size", "fill_value")}
    if call.name in ("full", "tensor"):
        dtype = {float: torch.get_default_dtype(), int: torch.int64, bool: torch.bool}[kind]
        options["dtype"] = call.get("dtype") or ConstantVariable(dtype)
    size = call.get("size") or call.evaluator.wrap_result(())
    graph, evaluator, like = call.evaluator.graph, call.evaluator, call.tensor("input")
    if call.name == "full_like" and like is not None:
        made = graph.tensor(evaluator, torch.empty_like, like, **options)
    elif call.name == "new_full" and like is not None:
        made = graph.tensor(evaluator, "new_empty", like, size, **options)
    else:
        made = graph.tensor(evaluator, torch.empty, size, **options)
    number = call.number(value, made.fake.dtype)
    return None if number is None else call.method("fill_", made, number)


# -- the table -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rule:
    """``run`` gives a call's result; None where it does not take the arguments.

    ``function`` and ``method`` name the positional parameters of the two forms; ``named`` are others.
    """

    run: Callable[[_Call], Variable | None]
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
}
