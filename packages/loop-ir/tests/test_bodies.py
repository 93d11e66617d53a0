"""The table of operations, and the API over bodies."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from typing import Any

import pytest
import sympy
import torch
from weft_loop_ir import OpsHandler, ops, ranges_for
from weft_loop_ir.bodies import OPERATIONS, Conversion, Instruction, Load, LoopBody, Masked, Value
from weft_loop_ir.bodies.edit import (
    part_of,
    slice_of,
    with_buffers,
    with_expressions,
    without_unused,
)
from weft_loop_ir.bodies.patterns import call, capture, converted, match, number, reduced
from weft_loop_ir.evaluate import TorchOps
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.format import format_instruction
from weft_loop_ir.recording import BodyRecorder

I0 = loop_symbol("i", 0)
DTYPES = {"x": torch.float32, "y": torch.float32, "n": torch.int64, "b": torch.bool}


def recorder() -> BodyRecorder:
    return BodyRecorder(ranges_for(((I0, sympy.Integer(8)),)), DTYPES.__getitem__)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operands_are_named_as_handlers_name_them(name: str) -> None:
    """Each operation that is not elementwise has a method in the protocol, with as many parameters."""
    operation = OPERATIONS[name]
    if operation.is_elementwise:
        assert operation.arity in (1, 2) and name in ops.ELEMENTWISE
        return
    parameters = list(inspect.signature(getattr(OpsHandler, name)).parameters)[1:]
    named = [
        key
        for form in reversed(operation.form.__mro__[:-2])
        for key, value in vars(form).items()
        if isinstance(value, property) and key in inspect.get_annotations(form)
    ]
    dtype = "dtype" in parameters and operation.name != "reduction"  # the instruction's own
    assert len(named) == len(parameters) - dtype


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_evaluator_and_the_recorder_have_every_operation(name: str) -> None:
    assert callable(getattr(recorder(), "indirect_symbol" if name == "indirect" else name))
    handler = TorchOps(lambda _: torch.ones(1), {}, {}, (1, 1), False)
    assert callable(getattr(handler, name))


@pytest.mark.parametrize("name", ops.ELEMENTWISE)
def test_dtypes_of_elementwise_operations_are_torchs(name: str) -> None:
    """The rule of the table beside what the evaluator gives, on floats, or integers if it has none."""
    operation = OPERATIONS[name]
    handler = TorchOps(lambda _: torch.ones(1), {}, {}, (1, 1), False)
    buffer = "n" if "bitwise" in name or "shift" in name else "x"
    ops_ = recorder()
    values = [ops_.load(buffer, I0)] * int(operation.arity or 0)
    result = ops_.record(name, *values)
    tensors = [torch.ones(3, dtype=DTYPES[buffer])] * len(values)
    assert getattr(handler, name)(*tensors).dtype == ops_.dtype_of(result)
    assert operation.gives_bool == (ops_.dtype_of(result) is torch.bool)


def test_comparisons_are_what_their_negation_and_mirror_are_not() -> None:
    values = torch.tensor([-1, 0, 2])
    left, right = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    compared = [o for o in OPERATIONS.values() if o.negation is not None]
    assert len(compared) == 6
    for operation in compared:
        result = getattr(torch, operation.name)(left, right)
        assert operation.negation is not None and operation.mirror is not None
        assert torch.equal(getattr(torch, operation.negation.name)(left, right), ~result)
        assert torch.equal(getattr(torch, operation.mirror.name)(right, left), result)


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.commutes])
def test_operations_commute_as_the_table_says(name: str) -> None:
    values = torch.tensor([0, 1, 2, 5])
    left, right = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    handler = TorchOps(lambda _: torch.ones(1), {}, {}, (1, 1), False)
    assert torch.equal(getattr(handler, name)(left, right), getattr(handler, name)(right, left))


def test_operations_stay_themselves_in_copies() -> None:
    ops_ = recorder()
    ops_.store("y", I0, ops_.exp(ops_.load("x", I0)))
    body = ops_.body()
    for copied in (pickle.loads(pickle.dumps(body)), copy.deepcopy(body)):
        assert copied == body
        assert [type(i) for i in copied.instructions] == [type(i) for i in body.instructions]
        assert all(i.operation is OPERATIONS[i.operation.name] for i in copied.instructions)


def test_accesses_include_nested_bodies() -> None:
    ops_ = recorder()
    inside = ops_.lt(ops_.index_expr(I0, torch.int64), ops_.constant(4, torch.int64))
    position = ops_.indirect_symbol(ops_.load("n", I0), sympy.Integer(8), True)
    value = ops_.masked(inside, lambda inner: inner.load("x", position + 1), 0.0)
    ops_.store("y", I0, ops_.add(value, value))
    body = ops_.body()
    assert body.reads == ("n", "x") and body.writes == ("y",)
    assert [load.index for load in body.loads("x")] == [position + 1]
    assert body.bound_symbols == {position} and body.checks_positions
    assert body.free_symbols == {I0, position}
    assert [i.index for i in body.indexed()] == [I0, I0, position + 1, I0]
    renamed = with_buffers(body, {"x": "z", "y": "z"})
    assert renamed.reads == ("n", "z") and renamed.writes == ("z",)
    moved = with_expressions(body, lambda e: e.xreplace({I0: I0 + 1}))
    assert [load.index for load in moved.loads()] == [I0 + 1, position + 1]
    assert slice_of(body, Value(body.instructions.index(body.only(Load)))) is not None
    masked = body.only(Masked)
    assert masked is not None
    assert slice_of(body, Value(body.instructions.index(masked))) is None


def random_body(seed: int) -> tuple[LoopBody, list[Value]]:
    draw, ops_ = random.Random(seed), recorder()
    values = [ops_.load("x", I0), ops_.load("y", I0), ops_.constant(0.5, torch.float32)]
    for _ in range(12):
        name = draw.choice(["add", "mul", "maximum", "exp", "neg"])
        values.append(ops_.record(name, *(draw.choice(values) for _ in range(_arity(name)))))
    return ops_.body(), values


def _arity(name: str) -> int:
    return int(OPERATIONS[name].arity or 0)


class _Texts:
    """Gives a value as the text of what it is computed by."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: f"{name}({', '.join(map(str, arguments))})"


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_body_computes_the_same(seed: int) -> None:
    body, values = random_body(seed)
    for value in values:
        expected = LoopBody(body.instructions, value).replay(_Texts())
        for part in (part_of(body, value), slice_of(body, value)):
            assert part is not None and part.replay(_Texts()) == expected
            assert without_unused(part) == part
            assert len(part.instructions) == len(body.made_of(value))


# -- patterns --------------------------------------------------------------------------------------------


def test_a_capture_is_one_value() -> None:
    ops_ = recorder()
    x, y = ops_.load("x", I0), ops_.load("y", I0)
    anything = capture()
    square = call("mul", anything, anything)
    found = match(ops_.at, ops_.mul(x, x), square)
    assert found is not None and found[anything] == x
    assert match(ops_.at, ops_.mul(x, y), square) is None


def test_patterns_match_operands_that_commute_in_any_order() -> None:
    ops_ = recorder()
    x, y = ops_.load("x", I0), ops_.load("y", I0)
    one, anything = ops_.constant(1.0, torch.float32), capture()
    more, less = call("add", number(1.0), call("exp", anything)), call("sub", number(1.0), anything)
    exponential = ops_.exp(x)
    for sum_ in (ops_.add(one, exponential), ops_.add(exponential, one)):
        found = match(ops_.at, sum_, more)
        assert found is not None and found[anything] == x
    assert match(ops_.at, ops_.add(exponential, y), more) is None
    assert match(ops_.at, ops_.sub(one, y), less) is not None
    assert match(ops_.at, ops_.sub(y, one), less) is None


def test_what_a_failed_order_captured_is_forgotten() -> None:
    ops_ = recorder()
    x, y = ops_.load("x", I0), ops_.load("y", I0)
    first = capture()
    pattern = call("add", call("neg", first), call("exp", first))
    assert match(ops_.at, ops_.add(ops_.exp(x), ops_.neg(x)), pattern) is not None
    assert match(ops_.at, ops_.add(ops_.exp(x), ops_.neg(y)), pattern) is None
    assert match(ops_.at, ops_.add(ops_.neg(x), ops_.exp(x)), pattern) is not None


def test_patterns_of_conversions_dtypes_and_reductions() -> None:
    ops_ = recorder()
    x = ops_.load("x", I0)
    half = ops_.to_dtype(x, torch.float16)
    wide = ops_.to_dtype(half, torch.float64)
    loaded = capture(torch.float32)
    found = match(ops_.at, wide, converted(loaded))
    assert found is not None and found[loaded] == x
    assert match(ops_.at, wide, loaded) is None
    total = ops_.reduction("sum", torch.float32, x)
    assert match(ops_.at, total, reduced("sum", loaded)) is not None
    assert match(ops_.at, total, reduced("max", loaded)) is None
    assert isinstance(ops_.at(half), Conversion)


def test_dumps_say_how_a_store_combines() -> None:
    ops_ = recorder()
    for mode in (None, *ops.ATOMIC_MODES):
        ops_.store("y", I0, ops_.load("x", I0), mode)
    texts = [format_instruction(k, i) for k, i in enumerate(ops_.body().instructions)]
    assert texts[1:] == ["y[i0] = t0", *(f"y[i0] {mode} t0" for mode in ops.ATOMIC_MODES)]


def test_an_instruction_shows_its_operation() -> None:
    instruction: Instruction = OPERATIONS["exp"].instruction((Value(0),), torch.float32)
    assert repr(instruction.operation) == "exp"


@pytest.mark.parametrize("name", ops.ELEMENTWISE)
def test_the_verifier_knows_the_dtypes_of_arithmetic(name: str) -> None:
    """Eager has an operation on a dtype of its domain; outside, a body that uses it is refused."""
    operation = OPERATIONS[name]
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool):
        operands = [dtype] * int(operation.arity or 0)
        instruction = operation.instruction(tuple(map(Value, range(len(operands)))), dtype)
        assert (operation.check(instruction, operands) is None) == operation.takes(dtype)
        if operation.takes(dtype) and dtype is not torch.bool:
            handler = TorchOps(lambda _: torch.ones(1), {}, {}, (1, 1), False)
            made = getattr(handler, name)(*(torch.ones(2, dtype=d) for d in operands))
            assert made.dtype == (torch.bool if operation.gives_bool else dtype)
    for dtype in ops.STORAGE_ONLY:
        assert not operation.takes(dtype)
