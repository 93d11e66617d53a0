"""Custom operators whose derivative, written in Python, depends on data: beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft
from torch import Tensor


@torch.library.custom_op("weft_tests::grouped_product", mutates_args=())
def grouped_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    result = x.new_empty(x.shape[0], weights.shape[2])
    start = 0
    for group, end in enumerate(ends.tolist()):
        torch.mm(x[start:end], weights[group], out=result[start:end])
        start = end
    return result


@grouped_product.register_fake
def _(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def _save_groups(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


def _grouped_product_gradients(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, weights = ctx.saved_tensors
    of_x, of_weights = torch.zeros_like(x), torch.zeros_like(weights)
    start = 0
    for group, end in enumerate(ctx.ends.tolist()):
        if start == end:
            continue
        if ctx.needs_input_grad[0]:
            torch.mm(gradient[start:end], weights[group].T, out=of_x[start:end])
        if ctx.needs_input_grad[1]:
            torch.mm(x[start:end].T, gradient[start:end], out=of_weights[group])
        start = end
    return of_x, of_weights, None


grouped_product.register_autograd(_grouped_product_gradients, setup_context=_save_groups)


@torch.library.custom_op("weft_tests::scaled_parts", mutates_args=())
def scaled_parts(parts: list[Tensor], *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.cat(parts) * factor, torch.tensor(len(parts))


@scaled_parts.register_fake
def _(parts: list[Tensor], *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.cat(parts), parts[0].new_empty((), dtype=torch.int64)


def _save_parts(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.lengths = [len(part) for part in inputs[0]]
    ctx.factor = keyword_only_inputs["factor"]


def _part_gradients(ctx: Any, gradient: Tensor, _: Any) -> list[Tensor | None]:
    if gradient.abs().max().item() > 1e6:
        return [None] * len(ctx.lengths)
    return [g * ctx.factor for g in gradient.split(ctx.lengths)]


scaled_parts.register_autograd(_part_gradients, setup_context=_save_parts)


def experts(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return grouped_product(x.sin(), weights, ends).relu() * 2


def through_lists(x: Tensor, y: Tensor) -> Tensor:
    joined, count = scaled_parts([x * 2, y.cos()], factor=3.0)
    return joined.exp() * count + scaled_parts([y])[0].sum()


def inside_a_loop(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    while x.sum() < 100:
        x = grouped_product(x, weights, ends).abs() + 1
    return x


def _gradients(function: Any, values: list[Tensor]) -> list[Tensor]:
    leaves = [v.detach().clone().requires_grad_(v.is_floating_point()) for v in values]
    result = function(*leaves)
    loss = (result * torch.arange(result.numel()).view_as(result)).sum()
    loss.backward()
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)]


@pytest.mark.parametrize("ends", [(2, 2, 7), (0, 7, 7), (3, 5, 7), (7, 7, 7)])
@pytest.mark.parametrize("function", [experts, inside_a_loop])
def test_groups_that_data_decides(function: Any, ends: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(7, 4).double(), torch.randn(3, 4, 4).double()
    compiled = weft.compile(function, fullgraph=True)
    for given in (ends, (1, 4, 7)):
        values = [x, weights, torch.tensor(given)]
        torch.testing.assert_close(_gradients(compiled, values), _gradients(function, values))


def test_frozen_weights_and_inputs() -> None:
    x, weights, ends = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor([2, 2, 7])
    for needed in ((True, False), (False, True)):
        found = []
        for function in (weft.compile(experts, fullgraph=True), experts):
            given = [v.clone().requires_grad_(n) for v, n in zip((x, weights), needed, strict=True)]
            function(*given, ends).sum().backward()
            found.append([v.grad for v in given])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_lists_keywords_and_absent_gradients(scale: float) -> None:
    """Where the formula gives None the gradient is zeros: a graph can't tell in which calls it does."""

    def scaled(function: Any) -> Any:
        return lambda *v: function(*v) * scale

    values = [torch.randn(3), torch.randn(2)]
    found = _gradients(scaled(weft.compile(through_lists, fullgraph=True)), values)
    expected = _gradients(scaled(through_lists), values)
    expected = [
        torch.zeros_like(f) if e is None else e for f, e in zip(found, expected, strict=True)
    ]
    torch.testing.assert_close(found, expected)


def test_second_derivatives_raise_as_the_formula_does() -> None:
    x, weights, ends = torch.randn(7, 4), torch.randn(3, 4, 4), torch.tensor([2, 5, 7])
    for function in (weft.compile(experts, fullgraph=True), experts):
        leaf = x.clone().requires_grad_()
        result = function(leaf, weights, ends).sum()
        with pytest.raises(RuntimeError, match=r"out=\.\.\. arguments don't support"):
            torch.autograd.grad(result, leaf, create_graph=True)
