"""Kernels of attention beside the loop nests that they stand for: verified, evaluated, and readable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import FusedKernel, Schedule, VerificationError
from weft_loop_ir.bodies import LoopBody, Value

T = torch.Tensor
Score = Callable[..., T]
QUERIES, KEYS = 10, 13
HIDDEN = "rows that see no key"


def positions() -> tuple[T, T]:
    return torch.arange(QUERIES)[:, None], torch.arange(KEYS)


def plain(scores: T) -> T:
    return scores


def causal(scores: T) -> T:
    queries, keys = positions()
    return scores.masked_fill(keys > queries, -math.inf)


def window(scores: T) -> T:
    queries, keys = positions()
    return torch.where((keys <= queries) & (keys > queries - 4), scores, -math.inf)


def soft_cap(scores: T) -> T:
    return causal(torch.tanh(scores / 5) * 5)


def with_bias(scores: T, bias: T) -> T:
    return scores + bias


def hidden_rows(scores: T) -> T:
    queries, keys = positions()
    return scores.masked_fill(keys >= queries - 2, -math.inf)


def documents(scores: T, document: T) -> T:
    same = document[:, None, :QUERIES, None] == document[:, None, None, :]
    return causal(torch.where(same, scores, -math.inf))


SCORES: dict[str, tuple[Score, tuple[T, ...]]] = {
    "plain": (plain, ()),
    "causal": (causal, ()),
    "window": (window, ()),
    "soft cap": (soft_cap, ()),
    "a bias of each head": (with_bias, (torch.randn(2, QUERIES, KEYS),)),
    "a bias of each image": (with_bias, (torch.randn(3, 1, QUERIES, KEYS),)),
    "a bias for all": (with_bias, (torch.randn(QUERIES, KEYS),)),
    HIDDEN: (hidden_rows, ()),
    "documents": (documents, (torch.arange(KEYS).div(5, rounding_mode="floor").repeat(3, 1),)),
}


def attention(change: Score) -> Callable[..., T]:
    def function(q: T, k: T, v: T, *others: T) -> T:
        return torch.softmax(change(q @ k.mT * 0.4, *others), -1) @ v

    return function


def in_tuple(function: Callable[..., T]) -> Callable[..., tuple[T, ...]]:
    return lambda *inputs: (function(*inputs),)


def operands(dtype: torch.dtype) -> tuple[T, ...]:
    sizes = ((3, 2, QUERIES, 8), (3, 2, KEYS, 8), (3, 2, KEYS, 6))
    return tuple(torch.randn(size).to(dtype) for size in sizes)


def backward(change: Score) -> Callable[..., tuple[T, ...]]:
    """Gradients of queries, keys and values, where ``change`` hides scores or adds to them."""

    def function(
        tangent: T, result: T, largest: T, logarithm: T, q: T, k: T, v: T, *others: T
    ) -> tuple[T, ...]:
        scores = change(q @ k.mT * 0.4, *others)
        weights = torch.exp(scores - largest - logarithm)
        sums = (result * tangent).sum(-1, keepdim=True)
        of_scores = weights * (tangent @ v.mT - sums) * 0.4
        return of_scores @ k, of_scores.mT @ q, weights.mT @ tangent

    return function


def given_to_backward(change: Score, inputs: tuple[T, ...]) -> tuple[T, ...]:
    """What forward keeps: its result, the largest score of a row, and its sum's logarithm; and its inputs."""
    q, k, _, *others = inputs
    scores = change(q @ k.mT * 0.4, *others)
    largest = scores.amax(-1, keepdim=True)
    logarithm = (scores - largest).exp().sum(-1, keepdim=True).log()
    result = attention(change)(*inputs)
    return torch.randn_like(result), result, largest, logarithm, *inputs


def fused(function: Callable[..., Any], inputs: tuple[T, ...]) -> Schedule:
    """The schedule with attention, and its gradients, in kernels."""
    with torch.no_grad():
        graph = make_fx(lambda *i: function(*i), tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    schedule = weft_loop_ir.fuse_attention(schedule, lambda _: True)
    return weft_loop_ir.fuse_attention_gradients(schedule, lambda _: True)


def kernels(schedule: Schedule) -> list[FusedKernel]:
    return [step for step in schedule.steps if isinstance(step, FusedKernel)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_attention_is_what_its_nests_compute(name: str, dtype: torch.dtype) -> None:
    change, others = SCORES[name]
    others = tuple(t.to(dtype) if t.is_floating_point() else t for t in others)
    function, inputs = attention(change), (*operands(dtype), *others)
    schedule = fused(in_tuple(function), inputs)
    assert len(kernels(schedule)) == len(schedule.steps) == 1
    weft_loop_ir.verify(schedule)
    (result,) = weft_loop_ir.evaluate(schedule, inputs, use_arena=True)
    wide = (t.double() if t.is_floating_point() else t for t in inputs)
    error = 2e-2 if dtype == torch.bfloat16 else 1e-5
    exact = function(*wide)
    torch.testing.assert_close(result.double(), exact, rtol=error, atol=error, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in SCORES if n not in ("soft cap", HIDDEN)])
def test_gradients_are_what_their_nests_compute(name: str) -> None:
    change, others = SCORES[name]
    inputs = (*operands(torch.float32), *others)
    given = given_to_backward(change, inputs)
    schedule = fused(backward(change), given)
    assert len(kernels(schedule)) == 2  # by rows, and by columns
    weft_loop_ir.verify(schedule)
    results = weft_loop_ir.evaluate(schedule, given, use_arena=True)
    wide = tuple(t.double().requires_grad_() if t.is_floating_point() else t for t in inputs)
    exact = torch.autograd.grad(attention(change)(*wide), wide[:3], given[0].double())
    for result, want in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double(), want, rtol=1e-5, atol=1e-5)


def test_gradients_of_heads_that_share_keys_are_added_up() -> None:
    q, k, v = torch.randn(3, 4, QUERIES, 8), *operands(torch.float32)[1:]
    of_each = [t[:, :, None].expand(3, 2, 2, *t.shape[2:]).flatten(1, 2) for t in (k, v)]
    tangent, result, *numbers = given_to_backward(plain, (q, *of_each))[:4]

    def function(*given: T) -> tuple[T, ...]:
        keys, values = (
            t[:, :, None].expand(3, 2, 2, *t.shape[2:]).flatten(1, 2) for t in given[-2:]
        )
        of_q, *others = backward(plain)(*given[:-2], keys, values)
        return of_q, *(t.unflatten(1, (2, 2)).sum(2) for t in others)

    given = (tangent, result, *numbers, q, k, v)
    schedule = fused(function, given)
    assert any(getattr(k, "by_columns", False) and k.group.count == 2 for k in kernels(schedule))
    weft_loop_ir.verify(schedule)
    exact = function(*(t.double() for t in given))
    for got, want in zip(weft_loop_ir.evaluate(schedule, given), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_bias_are_sums_of_matrices() -> None:
    inputs = (*operands(torch.float32), torch.randn(2, QUERIES, KEYS))
    given = given_to_backward(with_bias, inputs)

    def function(tangent: T, result: T, largest: T, logarithm: T, *inputs: T) -> tuple[T, ...]:
        q, k, v, bias = inputs
        weights = torch.exp(q @ k.mT * 0.4 + bias - largest - logarithm)
        of_scores = weights * (tangent @ v.mT - (result * tangent).sum(-1, keepdim=True))
        return of_scores.sum(0), (of_scores * 0.4) @ k

    schedule = fused(function, given)
    assert any(getattr(kernel, "total", None) is not None for kernel in kernels(schedule))
    weft_loop_ir.verify(schedule)
    exact = function(*(t.double() for t in given))
    for got, want in zip(weft_loop_ir.evaluate(schedule, given), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_written_to_an_input_is_not_computed_earlier() -> None:
    """A step between reads what the input holds before."""
    inputs = (*operands(torch.float32), torch.randn(2, QUERIES, KEYS))
    given = (*given_to_backward(with_bias, inputs), torch.randn(2, QUERIES, KEYS))

    def function(
        tangent: T, result: T, largest: T, logarithm: T, q: T, k: T, v: T, bias: T, held: T
    ) -> tuple[T, ...]:
        weights = torch.exp(q @ k.mT * 0.4 + bias - largest - logarithm)
        of_scores = weights * (tangent @ v.mT - (result * tangent).sum(-1, keepdim=True))
        of_queries, before = (of_scores * 0.4) @ k, held @ held.mT
        return of_scores.sum(0), of_queries, before

    graph = weft_loop_ir.lower(make_fx(function, tracing_mode="fake")(*given))
    schedule = weft_loop_ir.schedule(weft_loop_ir.write_back(graph, {0: 8}))
    assert schedule.inputs[8] in schedule.steps[-1].writes  # type: ignore[union-attr]
    chosen = weft_loop_ir.fuse_attention_gradients(schedule, lambda _: True)
    exact = function(*(t.double() for t in given))
    copies = [t.clone() for t in given]
    for got, want in zip(weft_loop_ir.evaluate(chosen, copies), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_bias_that_is_overwritten_stay_apart() -> None:
    """One of the kernels would write what the next one reads."""
    inputs = (*operands(torch.float32), torch.randn(3, 2, QUERIES, KEYS))
    given = given_to_backward(with_bias, inputs)

    def function(
        tangent: T, result: T, largest: T, logarithm: T, q: T, k: T, v: T, bias: T
    ) -> tuple[T, ...]:
        weights = torch.exp(q @ k.mT * 0.4 + bias - largest - logarithm)
        of_scores = weights * (tangent @ v.mT - (result * tangent).sum(-1, keepdim=True))
        return weights * 1.0, of_scores, (of_scores * 0.4) @ k

    exact = function(*(t.double() for t in given))
    for written in (0, 1):
        graph = weft_loop_ir.lower(make_fx(function, tracing_mode="fake")(*given))
        schedule = weft_loop_ir.schedule(weft_loop_ir.write_back(graph, {written: 7}))
        chosen = weft_loop_ir.fuse_attention_gradients(schedule, lambda _: True)
        results = weft_loop_ir.evaluate(chosen, [t.clone() for t in given])
        for got, want in zip(results, exact, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_dumps_show_the_nests() -> None:
    schedule = fused(in_tuple(attention(causal)), operands(torch.float32))
    text = weft_loop_ir.format_schedule(schedule)
    assert text.count("reduce key0") == 2  # the largest score of a row, and the sum of exponentials
    assert text.count("reduce inner0") == 2 and "exp(" in text


def test_a_fault_in_a_kernel_of_attention_is_found() -> None:
    inputs = (*operands(torch.float32), torch.randn(QUERIES, KEYS))
    schedule = fused(in_tuple(attention(with_bias)), inputs)
    (kernel,) = kernels(schedule)
    score: LoopBody = kernel.score  # type: ignore[attr-defined]
    broken = (
        LoopBody(score.instructions, Value(40)),
        LoopBody(score.instructions[::-1], score.result),
    )
    for body in broken:
        changed = replace(kernel, score=body)  # type: ignore[call-arg]
        with pytest.raises((VerificationError, AssertionError, IndexError, KeyError)):
            weft_loop_ir.verify(replace(schedule, steps=(changed,)))
    changed = replace(kernel, reads=kernel.reads[1:])
    with pytest.raises(VerificationError, match="read before it is written"):
        weft_loop_ir.verify(replace(schedule, steps=(changed,)))
