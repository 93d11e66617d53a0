"""What the tests stand on: running a graph functionalized, beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
import weft_functionalize
from weft_functionalize.aten_normalization import normalize
from weft_functionalize.tensor_ssa.alias_graph import build_alias_graph
from weft_functionalize.tensor_ssa.interpreter import run_block
from weft_functionalize.tensor_ssa.region_aliases import SharedValues, check_region_aliases
from weft_functionalize.tensor_ssa.rewrite_mutation import rewrite_mutation

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper module

CheckGraph = Callable[..., weft_functionalize.FunctionalGraph]


def copied(value: Any) -> Any:
    """A tensor with the same values and strides, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return new.copy_(value)


def assert_same_effects(
    want: Sequence[Any], got: Sequence[Any], want_inputs: list[Any], got_inputs: list[Any]
) -> None:
    """Equal bits, dtypes and strides; equal identity and sharing of storage among outputs and inputs."""
    assert len(want) == len(got)
    for x, y in zip((*want, *want_inputs), (*got, *got_inputs), strict=True):
        if not isinstance(x, torch.Tensor):
            assert x == y
            continue
        torch.testing.assert_close(y, x, rtol=0, atol=0, equal_nan=True, check_stride=False)
        strides = zip(x.shape, x.stride(), y.stride(), strict=True)
        assert x.numel() == 0 or all(size == 1 or a == b for size, a, b in strides)
    every, other = [*want, *want_inputs], [*got, *got_inputs]
    tensors = [i for i, value in enumerate(every) if isinstance(value, torch.Tensor)]
    for i in tensors:
        for j in tensors[: tensors.index(i)]:
            assert (every[i] is every[j]) == (other[i] is other[j])
            assert _share(every[i], every[j]) == _share(other[i], other[j])


def _share(left: torch.Tensor, right: torch.Tensor) -> bool:
    pointer = left.untyped_storage().data_ptr()
    return pointer != 0 and pointer == right.untyped_storage().data_ptr()


def check_graph(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> weft_functionalize.FunctionalGraph:
    """Functionalize, and compare one call with eager; the example inputs have to stay as they are."""
    examples = [copied(value) for value in inputs]
    functional = weft_functionalize.functionalize(graph_module, examples)
    for example, value in zip(examples, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(example, value, rtol=0, atol=0, equal_nan=True)
    expected, actual = [copied(v) for v in inputs], [copied(v) for v in inputs]
    lifted = {index: copied(tensor.detach()) for index, tensor in functional.lifted.items()}
    with torch.no_grad():
        run = _bound(functional, lifted)
        got = weft_functionalize.wrap(functional, run, lifted)(*actual)
        want = torch.fx.Interpreter(graph_module).run(*expected)
    want = want if isinstance(want, tuple) else (want,)
    assert_same_effects(want, got, expected, actual)
    check_oracle(functional, inputs)
    for index, tensor in functional.lifted.items():  # eager has written these by now
        torch.testing.assert_close(lifted[index], tensor.detach(), rtol=0, atol=0)
    return functional


def check_oracle(functional: weft_functionalize.FunctionalGraph, inputs: Sequence[Any]) -> None:
    """TensorSSA form run by its definition gives what torch gives for it, bit for bit."""

    def given() -> list[Any]:
        every = {i: copied(tensor.detach()) for i, tensor in functional.lifted.items()}
        users = zip(functional.user_input_indices, map(copied, inputs), strict=True)
        every |= dict(users)
        torch.manual_seed(1)
        return [every[i] for i in range(len(functional.inputs))]

    with torch.no_grad():
        wanted = functional.graph_module(*given())
        got = weft_functionalize.interpret(functional.graph_module, given())
    assert_same_bits(got, wanted)


def check_updates(program: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """The form before renaming, in which Updates name new versions, returns what eager does."""
    normalized = normalize(program, [copied(value) for value in inputs])
    recorder, graph = normalized.recorder, normalized.recorder.graph
    with torch.no_grad(), normalized.fake_mode:
        kept = tuple(recorder.node_of(value) for value in normalized.outputs)
        shared = SharedValues(graph, build_alias_graph(graph), recorder.region_aliases)
        check_region_aliases(graph, shared, kept)
        graph.output(kept)
        rewrite_mutation(graph, shared, kept)
    with torch.no_grad():
        got = run_block(graph, recorder.regions.__getitem__, [copied(value) for value in inputs])
        wanted = torch.fx.Interpreter(program).run(*(copied(value) for value in inputs))
    assert_same_bits(got, wanted)


def assert_same_bits(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for left, right in zip(got, wanted, strict=True):
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        else:
            assert left == right


def _bound(
    functional: weft_functionalize.FunctionalGraph, lifted: dict[int, torch.Tensor]
) -> Callable[..., Any]:
    users = functional.user_input_indices

    def run(*inputs: Any) -> Any:
        every = dict(lifted) | dict(zip(users, inputs, strict=True))
        return functional.graph_module(*(every[i] for i in range(len(functional.inputs))))

    return run


@pytest.fixture
def check() -> CheckGraph:
    """``check(function_or_module, *inputs)``: traces, functionalizes and compares with eager."""

    def run(program: Any, *inputs: Any) -> weft_functionalize.FunctionalGraph:
        if not isinstance(program, torch.fx.GraphModule):
            program = torch.fx.symbolic_trace(program)
        return check_graph(program, inputs)

    return run


@pytest.fixture
def oracle() -> Callable[..., None]:
    """``oracle(functional, inputs)``: the interpreter of TensorSSA form agrees with torch."""
    return check_oracle


@pytest.fixture
def updates() -> Callable[..., None]:
    """``updates(graph_module, inputs)``: the interpreter of the form with Updates agrees with eager."""
    return check_updates


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)  # those of devices that are not there take longer
