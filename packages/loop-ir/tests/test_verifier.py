"""The verifier finds each kind of fault and shows where it is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

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
from weft_loop_ir.bodies import Conversion, Load, operation_named


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
    position = next(k for k, i in enumerate(instructions) if i.operation.name == name)
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
    assert "t2 = t0 - t1" in str(error.value)  # the neighbourhood is shown


def test_value_used_before_it_is_defined() -> None:
    schedule = softmax_schedule()
    body = mutated(body_of(schedule, 1), "exp", arguments=(Value(40),))
    with pytest.raises(VerificationError, match="value 40 is not defined"):
        verify(with_body(schedule, 1, body))


def test_unknown_symbol_in_an_index() -> None:
    schedule = softmax_schedule()
    body = body_of(schedule, 2)
    store = body.stores()[0]
    arguments = (store.buffer, sympy.Symbol("elsewhere"), store.value, None)
    with pytest.raises(VerificationError, match="unknown symbol elsewhere"):
        verify(with_body(schedule, 2, mutated(body, "store", arguments=arguments)))


NAMES = [*"irbsuk", "i0", "r1", "indirect0", "s0", "u3", "ks7", "row", "inner", "i64"]


def renamed(program: Schedule, symbol: sympy.Symbol, name: str) -> Schedule:
    """``program`` with another name for a symbol, wherever it stands."""
    other = sympy.Symbol(name, **symbol.assumptions0)

    def changed(item: Any) -> Any:
        if isinstance(item, sympy.Expr):
            return item.xreplace({symbol: other})
        if isinstance(item, Instruction):
            return item.mapped(changed)
        if isinstance(item, tuple):
            return tuple(map(changed, item))
        if isinstance(item, Mapping):
            return {key: changed(value) for key, value in item.items()}
        if is_dataclass(item) and not isinstance(item, type | Value):
            values = {field.name: changed(getattr(item, field.name)) for field in fields(item)}
            return replace(item, **values)
        return item

    result: Schedule = changed(program)
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_size_may_have_any_name(name: str) -> None:
    """The row that a softmax keeps in a local buffer has symbolic rows and columns around it."""
    graph = make_fx(
        lambda x: (torch.softmax(x.view(x.shape[0], -1), -1),), tracing_mode="symbolic"
    )(torch.randn(5, 6, 7))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    kernel = next(step for step in schedule.steps if isinstance(step, Kernel))
    assert kernel.local_buffers and len(schedule.symbols) == 3
    for number, symbol in enumerate(schedule.symbols):
        verify(renamed(schedule, symbol.symbol, f"{name}{number}_"))


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_index_of_any_name_is_found_where_its_loop_is_not(name: str) -> None:
    """An index over another stage's loop, and an outer loop's in a local buffer."""
    schedule = softmax_schedule()
    kernel = next(step for step in schedule.steps if isinstance(step, Kernel))
    inner = kernel.stages[0].inner[0].symbol
    moved = renamed(schedule, inner, f"{name}_")
    body = body_of(moved, 0)
    broken = replace(moved, steps=with_body(moved, 0, body).steps)
    steps = tuple(
        replace(step, stages=(replace(step.stages[0], inner=()), *step.stages[1:]))
        if isinstance(step, Kernel)
        else step
        for step in broken.steps
    )
    with pytest.raises(VerificationError, match=f"unknown symbol {name}_"):
        verify(replace(broken, steps=steps))
    outer = renamed(schedule, kernel.outer[0].symbol, f"{name}_")
    renamed_kernel = next(step for step in outer.steps if isinstance(step, Kernel))
    local = renamed_kernel.local_buffers[0].name
    number, body = next(
        (k, s.body) for k, s in enumerate(renamed_kernel.stages) if s.body.loads(local)
    )
    position = body.instructions.index(body.loads(local)[0])
    load = body.instructions[position]
    at_outer = load.operation.instruction((local, renamed_kernel.outer[0].symbol), load.dtype)
    instructions = (*body.instructions[:position], at_outer, *body.instructions[position + 1 :])
    with pytest.raises(VerificationError, match="indexed by more than the inner loops"):
        verify(with_body(outer, number, LoopBody(instructions, body.result)))


def test_unknown_buffer() -> None:
    schedule = softmax_schedule()
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
    position = body.instructions.index(body.reductions()[0])
    extra = operation_named("exp").instruction((Value(position),), torch.float32)
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
    conversion = next(k for k, i in enumerate(body.instructions) if isinstance(i, Conversion))
    extra = operation_named("neg").instruction((Value(conversion),), torch.bfloat16)
    with pytest.raises(VerificationError, match="half-precision"):
        verify(with_body(schedule, 0, LoopBody((*body.instructions, extra))))


def test_operands_of_different_dtypes() -> None:
    graph = make_fx(lambda x, y: (x + y,), tracing_mode="fake")(torch.randn(4), torch.arange(4))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    body = body_of(schedule, 0)
    loads = [k for k, i in enumerate(body.instructions) if isinstance(i, Load)]
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


@pytest.mark.parametrize("name", ["FloorDiv", "Mod", "Max"])
def test_functions_of_other_packages(name: str) -> None:
    """They may print as those of index expressions do, and no code generator knows them."""
    schedule = softmax_schedule()
    body = body_of(schedule, 0)
    load = next(i for i in body.instructions if isinstance(i, Load))
    index = load.index + sympy.Function(name)(load.index, 3)
    changed = mutated(body, "load", arguments=(load.buffer, index))
    with pytest.raises(VerificationError, match="in an index expression"):
        verify(with_body(schedule, 0, changed))
