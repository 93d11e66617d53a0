"""Shorter forms take the place of what they stand for in bodies, and compute the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.nn import functional as F
from weft_codegen_triton.kernel.operations import ALWAYS, FOR_HALF
from weft_loop_ir import LoopBody, Value, ranges_for
from weft_loop_ir.bodies.patterns import rewritten
from weft_loop_ir.evaluate import TorchOps
from weft_loop_ir.recording import BodyRecorder

INDEX = sympy.Symbol("i", integer=True, nonnegative=True)
F32 = torch.float32


class Reference(TorchOps):
    def gelu(self, value: torch.Tensor) -> torch.Tensor:
        return F.gelu(value)

    def exp_of_negative(self, value: torch.Tensor) -> torch.Tensor:
        return torch.exp(-value)

    def divide_by_large(self, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        assert bool((other >= 1).all())
        return value / other


def recorded(program: Callable[[Any, Value], Value]) -> LoopBody:
    ops = BodyRecorder(ranges_for(((INDEX, sympy.Integer(64)),)), lambda _: F32)
    return ops.body(program(ops, ops.load("x", INDEX)))


def evaluated(body: LoopBody) -> torch.Tensor:
    x = torch.linspace(-4, 4, 64)
    handler = Reference(lambda _: x, {}, {INDEX: torch.arange(64)[:, None]}, (64, 1), False)
    result: torch.Tensor = body.replay(handler)
    return result


def names(body: LoopBody) -> list[str]:
    return [i.operation.name for i in body.instructions]


def constant(ops: Any, number: float) -> Value:
    value: Value = ops.constant(number, F32)
    return value


def gelu(ops: Any, x: Value, orders: tuple[bool, ...], half: float = 0.5) -> Value:
    def call(name: str, *operands: Value) -> Value:
        value: Value = ops.record(name, *(operands[::-1] if next(turned) else operands))
        return value

    turned = iter(orders)
    scaled = call("mul", x, constant(ops, 0.7071067811865476))
    weight = call("add", ops.erf(scaled), constant(ops, 1.0))
    return call("mul", call("mul", x, constant(ops, half)), weight)


@pytest.mark.parametrize("orders", itertools.product([False, True], repeat=4))
def test_gelu_in_any_order(orders: tuple[bool, ...]) -> None:
    body = recorded(lambda ops, x: gelu(ops, x, orders))
    short = rewritten(body, FOR_HALF)
    assert names(short) == ["load", "gelu"]
    torch.testing.assert_close(evaluated(short), evaluated(body))
    assert rewritten(body, ALWAYS) == body


def test_what_is_nearly_gelu_stays() -> None:
    orders = (False,) * 4
    scaled = recorded(lambda ops, x: gelu(ops, x, orders, half=0.25))
    assert rewritten(scaled, FOR_HALF) == scaled
    of_two = recorded(lambda ops, x: ops.mul(ops.neg(x), gelu(ops, x, orders)))
    assert names(rewritten(of_two, FOR_HALF)) == ["load", "neg", "gelu", "mul"]


def test_parts_that_are_used_otherwise_stay() -> None:
    def program(ops: Any, x: Value) -> Value:
        result = gelu(ops, x, (False,) * 4)
        scaled: Value = ops.mul(x, constant(ops, 0.7071067811865476))
        value: Value = ops.add(result, ops.erf(scaled))
        return value

    body = recorded(program)
    short = rewritten(body, FOR_HALF)
    assert names(short) == ["load", "constant", "mul", "erf", "gelu", "add"]
    torch.testing.assert_close(evaluated(short), evaluated(body))


@pytest.mark.parametrize("least", [0.5, 1.0, 3.0])
def test_divisors_that_are_no_less_than_one(least: float) -> None:
    def swish(ops: Any, x: Value) -> Value:
        value: Value = ops.truediv(x, ops.add(constant(ops, least), ops.exp(ops.neg(x))))
        return value

    body = recorded(swish)
    for rules in (ALWAYS, FOR_HALF):
        short = rewritten(body, rules)
        torch.testing.assert_close(evaluated(short), evaluated(body))
        assert ("divide_by_large" in names(short)) == (least >= 1)
        assert ("exp_of_negative" in names(short)) == (rules is FOR_HALF)


def test_nested_bodies_are_rewritten() -> None:
    def program(ops: Any, x: Value) -> Value:
        inside = lambda inner: inner.exp(inner.neg(inner.load("x", INDEX)))  # noqa: E731
        value: Value = ops.masked(ops.gt(x, constant(ops, 0.0)), inside, 0.0)
        return value

    body = recorded(program)
    (nested,) = [inner for i in rewritten(body, FOR_HALF).instructions for inner in i.bodies]
    assert names(nested) == ["load", "exp_of_negative"]
    torch.testing.assert_close(evaluated(rewritten(body, FOR_HALF)), evaluated(body))
