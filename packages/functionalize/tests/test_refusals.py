"""What is not handled says so; what eager refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft_functionalize
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_functionalize import (
    FunctionalizeOptions,
    Unsupported,
    VerificationError,
    verify_functional,
)

aten = torch.ops.aten


def transposes_its_input(x: Tensor) -> Any:
    x.t_()
    return (x,)


def resizes(x: Tensor) -> Any:
    y = x.clone()
    y.resize_(20)
    return (y,)


def depends_on_data(x: Tensor) -> Any:
    return (torch.nonzero(x),)


def sets_requires_grad(x: Tensor) -> Any:
    return (x.requires_grad_(),)


def writes_overlapping_windows(x: Tensor) -> Any:
    x.unfold(1, 3, 1).add_(1)
    return (x,)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (transposes_its_input, "change of an input's metadata"),
        (resizes, "change of a tensor's storage"),
        (depends_on_data, "result that depends on data"),
        (sets_requires_grad, "change of requires_grad"),
        (writes_overlapping_windows, "write through overlapping elements"),
    ],
)
def test_unsupported(program: Any, kind: str) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(Unsupported) as raised:
        weft_functionalize.functionalize(torch.fx.symbolic_trace(program), [x])
    assert raised.value.kind == kind
    assert x.shape == (3, 4)
    assert x.eq(1).all()


def zeroes_what_rows_are_of(x: Tensor) -> Any:
    y = x * 2
    rows = y.unbind(0)
    y.zero_()
    return (rows[0], rows[1])


def writes_to_a_part(x: Tensor) -> Any:
    parts = (x * 2).split(2)
    parts[0].add_(1)
    return (parts[0] * 1,)


@pytest.mark.parametrize("make", [lambda x: x.t().sin(), lambda x: x.t().fmod(3)])
def test_write_through_strides_of_what_is_transposed(make: Any) -> None:
    """torch's operator asserts that what has gradients is contiguous."""

    def program(x: Tensor) -> Any:
        y = make(x)
        y.as_strided((2,), (1,)).add_(0.5)
        return (y,)

    traced = torch.fx.symbolic_trace(program)
    weft_functionalize.functionalize(traced, [torch.ones(3, 4)])
    with pytest.raises(Unsupported):
        weft_functionalize.functionalize(traced, [torch.ones(3, 4, requires_grad=True)])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.flatten()[:2].expand(3, 2),
        lambda x: x[:, ::2],
        lambda x: x[1],
        lambda x: x[:2],
        lambda x: x.t(),
    ],
)
def test_strided_views_of_views_with_gradients(make: Any) -> None:
    """Eager drops the gradients of elements that are in the storage, but not in the view."""

    def program(x: Tensor) -> Any:
        return (make(x).as_strided((3,), (1,), 1).exp(),)

    x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
    (result,) = program(x)
    (expected,) = torch.autograd.grad(result.sum(), x)
    traced = torch.fx.symbolic_trace(program)
    weft_functionalize.functionalize(traced, [x.detach()])
    try:
        functional = weft_functionalize.functionalize(traced, [x])
    except Unsupported:
        return
    (found,) = functional.graph_module(x)
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integers_with_gradients(dtype: torch.dtype) -> None:
    """Eager lets a tensor of integers require gradients where one that does is written to it."""
    with FakeTensorMode():
        x = torch.zeros(3, dtype=dtype)
        x[:] = torch.ones((), requires_grad=True)
    assert x.requires_grad
    traced = torch.fx.symbolic_trace(lambda x: (x.clone(),))
    with pytest.raises(Unsupported):
        weft_functionalize.functionalize(traced, [x])


@pytest.mark.parametrize("program", [zeroes_what_rows_are_of, writes_to_a_part])
def test_writes_without_a_history(program: Any) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(Unsupported) as raised:
        weft_functionalize.functionalize(torch.fx.symbolic_trace(program), [x])
    assert raised.value.kind == "write that leaves no autograd history"
    assert raised.value.hint


def adds_float_to_int(x: Tensor) -> Any:
    y = torch.zeros(3, 4, dtype=torch.int64)
    return (y.add_(x),)


def writes_through_expand(x: Tensor) -> Any:
    x.expand(2, 3, 4).add_(1)
    return (x,)


def multiplies_wrong_shapes(x: Tensor) -> Any:
    return (x @ x,)


@pytest.mark.parametrize(
    "program", [adds_float_to_int, writes_through_expand, multiplies_wrong_shapes]
)
def test_what_eager_refuses_is_refused(program: Any) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(RuntimeError):
        program(x.clone())
    with pytest.raises((RuntimeError, Unsupported)):
        weft_functionalize.functionalize(torch.fx.symbolic_trace(program), [x])
    assert x.eq(1).all()


def adds_to_first(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return (y * 2,)


def test_inputs_that_are_said_to_share_storage() -> None:
    options = FunctionalizeOptions(aliased_inputs=(frozenset({0, 1}),))
    with pytest.raises(Unsupported, match="shares storage"):
        weft_functionalize.functionalize(
            torch.fx.symbolic_trace(adds_to_first), [torch.ones(3), torch.ones(3)], options=options
        )


def test_number_is_checked_in_each_call() -> None:
    def program(x: Tensor, n: int) -> Any:
        return (x * n,)

    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(program), [torch.ones(3), 2]
    )
    run = weft_functionalize.wrap(
        functional, weft_functionalize.bind(functional, functional.graph_module)
    )
    assert run(torch.ones(3), 2)[0].tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="holds for 2 only"):
        run(torch.ones(3), 3)


@pytest.mark.parametrize(
    "target", [aten.add_.Tensor, aten.copy_.default, aten.index_put_.default, aten.t_.default]
)
def test_verifier_finds_writes(target: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(target, (x, x))
    graph.output((x,))
    with pytest.raises(VerificationError, match="writes to self"):
        verify_functional(graph)


def test_verifier_finds_hidden_writes_and_foreign_nodes() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(aten.native_batch_norm.default, (x, None, None, x, x, True, 0.1, 1e-5))
    graph.output((x,))
    with pytest.raises(VerificationError, match="running_mean"):
        verify_functional(graph)
    other = torch.fx.symbolic_trace(lambda x: x.relu()).graph
    with pytest.raises(VerificationError, match="not an ATen operator"):
        verify_functional(other)
