"""Backward formulas that write to memory they made, in parts and through views, beside eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from gradients_beside_eager import check_gradients, train
from torch import Tensor
from weft_aot_autograd import Unsupported


def _by_rows(x: Tensor, gradient: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[0].copy_(gradient[0] * 2 * x[0])
    rest = out[1:]
    rest.copy_(gradient[1:])
    rest.mul_(2 * x[1:])
    return out


def _through_an_alias(x: Tensor, gradient: Tensor) -> Tensor:
    out = gradient * x
    alias = out.detach()
    flat = out.view(-1)
    alias.mul_(2)
    flat.add_(1)
    out.sub_(1)
    return alias.expand_as(x)


def _by_columns(x: Tensor, gradient: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for k in range(x.shape[1]):
        out.t()[k].add_(gradient[:, k] * x[:, k])
    return out * 2


def _what_is_given(x: Tensor, gradient: Tensor) -> Tensor:
    return gradient.mul_(2 * x)


def _in_another_dtype(x: Tensor, gradient: Tensor) -> Tensor:
    out = gradient * x
    out.view(torch.int64).add_(1)
    return out * 2


def _in_other_dims(x: Tensor, gradient: Tensor) -> Tensor:
    out = (gradient * 2 * x).t_().unsqueeze_(-1)
    out[0].mul_(1.5)
    doubled = torch.linspace(1, 2, x.shape[1], dtype=x.dtype).unsqueeze_(-1).unsqueeze_(-1)
    return ((out * doubled).squeeze_(-1).t_() / doubled.view(-1)).mul_(1) - _first_half(x, gradient)


def _first_half(x: Tensor, gradient: Tensor) -> Tensor:
    return torch.cat([gradient[:, :1] * x[:, :1], torch.zeros_like(x[:, 1:])], 1)


def _by_real_parts(x: Tensor, gradient: Tensor) -> Tensor:
    out = torch.complex(gradient * x, torch.zeros_like(x))
    out.diagonal().real.mul_(2)
    out.imag[1:].copy_(gradient[1:])
    return out.real + out.imag.mul_(2 * x) + torch.view_as_real(out).sum(-1) * 0


WRITING = (_by_rows, _through_an_alias, _by_columns, _in_other_dims, _by_real_parts)
REFUSED = {"what_is_given": _what_is_given, "in_another_dtype": _in_another_dtype}
FORMULAS = {f.__name__.strip("_"): f for f in WRITING}


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """An operator ``weft_written_memory::NAME``, the square, for each formula of its gradient."""
    with torch.library._scoped_library("weft_written_memory", "DEF") as library:
        for name, formula in {**FORMULAS, **REFUSED}.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x * x, "CompositeExplicitAutograd")

            def backward(context: Any, gradient: Tensor, formula: Any = formula) -> Tensor:
                (x,) = context.saved_tensors
                return formula(x, gradient)

            def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                ctx.save_for_backward(*inputs)

            torch.library.register_autograd(
                f"weft_written_memory::{name}", backward, setup_context=keep, lib=library
            )
        yield torch.ops.weft_written_memory


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_fills_what_it_made(operators: Any, name: str) -> None:
    square = getattr(operators, name)

    def program(x: Tensor) -> Tensor:
        return square(x.sin()) * x

    check_gradients(program, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_what_has_no_elements_may_be_written() -> None:
    for shape in ((6, 0), (0, 3), (0, 0)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        check_gradients(lambda x: F.cosine_similarity(x, x.sin()), x)
        check_gradients(lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)), x)


@pytest.mark.parametrize(
    ("name", "told"),
    [("what_is_given", "write to given memory"), ("in_another_dtype", "memory of two dtypes")],
)
def test_a_formula_is_refused(operators: Any, name: str, told: str) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(Unsupported, match=told):
        train(lambda x: getattr(operators, name)(x), [x])


def test_gradients_of_complex_decompositions() -> None:
    for shape in ((4, 6), (6, 4), (4, 4)):
        x = torch.randn(shape, dtype=torch.complex128, requires_grad=True)
        check_gradients(lambda x: torch.linalg.qr(x).R.abs(), x)
        check_gradients(lambda x: torch.linalg.qr(x).Q.abs(), x)
