"""The verifier finds each kind of fault and shows where it is."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import sympy
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import (
    Instruction,
    Kernel,
    LoopBody,
    LoopGraph,
    MemoryPlan,
    Schedule,
    ScheduleOptions,
    Stage,
    Value,
    VerificationError,
    verify,
)


def softmax_schedule() -> Schedule:
    graph = make_fx(lambda x, w: (torch.softmax(x @ w, -1),), tracing_mode="fake")(
        torch.randn(4, 8), torch.randn(8, 8)
    )
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


def with_body(schedule: Schedule, stage_number: int, body: LoopBody) -> Schedule:
    """``schedule`` with one stage's body of its only kernel replaced."""
    steps = list(schedule.steps)
    position = next(k for k, s in enumerate(steps) if isinstance(s, Kernel))
    kernel = steps[position]
    assert isinstance(kernel, Kernel)
    stages = list(kernel.stages)
    stages[stage_number] = replace(stages[stage_number], body=body)
    steps[position] = replace(kernel, stages=tuple(stages))
    return replace(schedule, steps=tuple(steps))


def body_of(schedule: Schedule, stage_number: int) -> LoopBody:
    kernel = next(s for s in schedule.steps if isinstance(s, Kernel))
    return kernel.stages[stage_number].body


def mutated(body: LoopBody, name: str, /, **changes: object) -> LoopBody:
    """``body`` with the first instruction of this operation changed."""
    instructions = list(body.instructions)
    position = next(k for k, i in enumerate(instructions) if i.operation == name)
    instructions[position] = replace(instructions[position], **changes)  # type: ignore[arg-type]
    return LoopBody(tuple(instructions), body.result)


def test_a_good_schedule_passes() -> None:
    verify(softmax_schedule())


def test_wrong_dtype() -> None:
    schedule = softmax_schedule()
    body = mutated(body_of(schedule, 1), "exp", dtype=torch.float64)
    with pytest.raises(VerificationError, match=r"gives torch\.float64") as error:
        verify(with_body(schedule, 1, body))
    assert "->" in str(error.value)
    assert "sub" in str(error.value)  # the neighbourhood is shown


def test_value_used_before_it_is_defined() -> None:
    schedule = softmax_schedule()
    body = mutated(body_of(schedule, 1), "exp", arguments=(Value(40),))
    with pytest.raises(VerificationError, match="value 40 is not defined"):
        verify(with_body(schedule, 1, body))


def test_unknown_symbol_in_an_index() -> None:
    schedule = softmax_schedule()
    body = body_of(schedule, 2)
    store = next(i for i in body.instructions if i.operation == "store")
    arguments = (store.arguments[0], sympy.Symbol("elsewhere"), store.arguments[2])
    with pytest.raises(VerificationError, match="unknown symbol elsewhere"):
        verify(with_body(schedule, 2, mutated(body, "store", arguments=arguments)))


def test_unknown_operation_and_buffer() -> None:
    schedule = softmax_schedule()
    body = mutated(body_of(schedule, 1), "exp", operation="frobnicate")
    with pytest.raises(VerificationError, match="unknown operation frobnicate"):
        verify(with_body(schedule, 1, body))
    body = mutated(body_of(schedule, 1), "load", arguments=("nowhere", sympy.S.Zero))
    with pytest.raises(VerificationError, match="buffer nowhere is not declared"):
        verify(with_body(schedule, 1, body))


def test_reduction_outside_a_reduction_stage() -> None:
    schedule = softmax_schedule()
    steps = list(schedule.steps)
    kernel = steps[-1]
    assert isinstance(kernel, Kernel)
    stages = (replace(kernel.stages[0], is_reduction=False), *kernel.stages[1:])
    steps[-1] = replace(kernel, stages=stages)
    with pytest.raises(VerificationError, match="outside a reduction stage"):
        verify(replace(schedule, steps=tuple(steps)))


def test_reduction_result_used_in_its_own_stage() -> None:
    schedule = softmax_schedule()
    body = body_of(schedule, 0)
    position = next(k for k, i in enumerate(body.instructions) if i.operation == "reduction")
    extra = Instruction("exp", (Value(position),), torch.float32)
    with pytest.raises(VerificationError, match="used by more than a store"):
        verify(with_body(schedule, 0, LoopBody((*body.instructions, extra))))


def test_steps_out_of_order() -> None:
    schedule = softmax_schedule()
    with pytest.raises(VerificationError, match="read before it is written"):
        verify(replace(schedule, steps=tuple(reversed(schedule.steps))))


def test_arithmetic_on_half_precision() -> None:
    graph = make_fx(lambda x: (x.to(torch.bfloat16),), tracing_mode="fake")(torch.randn(4))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    body = body_of(schedule, 0)
    conversion = next(k for k, i in enumerate(body.instructions) if i.operation == "to_dtype")
    extra = Instruction("neg", (Value(conversion),), torch.bfloat16)
    with pytest.raises(VerificationError, match="half-precision"):
        verify(with_body(schedule, 0, LoopBody((*body.instructions, extra))))


def test_operands_of_different_dtypes() -> None:
    graph = make_fx(lambda x, y: (x + y,), tracing_mode="fake")(torch.randn(4), torch.arange(4))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    body = body_of(schedule, 0)
    loads = [k for k, i in enumerate(body.instructions) if i.operation == "load"]
    broken = mutated(body, "add", arguments=tuple(Value(k) for k in loads))
    with pytest.raises(VerificationError, match="different dtypes"):
        verify(with_body(schedule, 0, broken))


def test_memory_plan_without_a_buffer() -> None:
    schedule = softmax_schedule()
    with pytest.raises(VerificationError, match="has no place"):
        verify(replace(schedule, memory=MemoryPlan(sympy.S.Zero, {})))


def test_two_loops_with_one_symbol() -> None:
    schedule = softmax_schedule()
    kernel = schedule.steps[-1]
    assert isinstance(kernel, Kernel)
    clash = replace(kernel, stages=(Stage(kernel.outer, kernel.stages[0].body, True),))
    with pytest.raises(VerificationError, match="share a symbol"):
        verify(replace(schedule, steps=(*schedule.steps[:-1], clash)))


def test_every_pass_is_verified_that_changes_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = weft_loop_ir.lower(
        make_fx(lambda x: (x.sum(),), tracing_mode="fake")(torch.randn(100_000))
    )
    module = importlib.import_module("weft_loop_ir.schedule.schedule")
    verified: list[object] = []
    monkeypatch.setattr(module, "verify", verified.append)
    options = ScheduleOptions(split_reduction_elements=1000, verify=True)
    result = weft_loop_ir.schedule(graph, options)
    given, split, last = verified
    assert given is graph
    assert isinstance(split, LoopGraph)
    assert len(split.nodes) > len(graph.nodes)
    assert last is result
    monkeypatch.undo()
    monkeypatch.setattr(module, "element_loops", lambda before: replace(before, buffers={}))
    with pytest.raises(VerificationError, match="is not declared"):
        weft_loop_ir.schedule(graph, options)
