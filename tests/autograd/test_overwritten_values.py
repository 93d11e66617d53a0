"""Values that backward needs, written over by the program: backward raises as eager's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

from tests.staged_backend import by_operators

Program = Callable[..., Any]

_NAMES = """
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
    floor frac lgamma log log10 log1p log2 logit neg reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt
    square tan tanh trunc clone sum mean std var amax amin prod nan_to_num t norm sort unique inverse det
"""

_FUNCTIONS = """
    relu gelu silu mish elu selu celu leaky_relu softplus hardswish hardtanh hardsigmoid logsigmoid softsign
    tanhshrink softshrink normalize
"""

UNARY: list[Program] = [
    *(getattr(torch, name) for name in _NAMES.split()),
    *(getattr(F, name) for name in _FUNCTIONS.split()),
    lambda x: x.logcumsumexp(0), lambda x: x.cummax(0)[0], lambda x: x.cumprod(0),
    lambda x: x.cumsum(0), lambda x: x.logsumexp(0), lambda x: x.softmax(0), lambda x: x.log_softmax(1),
    lambda x: x**3, lambda x: x**1, lambda x: 2**x, lambda x: x.clamp(0.2, 0.7), lambda x: x * 3,
    lambda x: x / 3, lambda x: 3 / x, lambda x: x + 3, lambda x: x.max(0)[0], lambda x: x.topk(2)[0],
    lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64)), lambda x: x.masked_fill(x > 0.5, 1.0),
    lambda x: F.layer_norm(x, (3,)), lambda x: F.dropout(x, 0.5), lambda x: x.pow(x), lambda x: x * x,
    lambda x: x @ x, lambda x: torch.where(x > 0.5, x, 0), lambda x: torch.addmm(x, x, x),
    lambda x: x.view(9).repeat(2), lambda x: x[torch.tensor([0, 2])], lambda x: x % 2,
    lambda x: torch.linalg.svdvals(x), lambda x: torch.cat([x, x]), lambda x: x.lerp(x * 2, 0.25),
]  # fmt: skip


def _tensor(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def write_result(operator: Program, x: Any, z: Any) -> Any:
    y = _tensor(operator(x))
    y.mul_(2)
    return y


def write_result_behind(operator: Program, x: Any, z: Any) -> Any:
    y = _tensor(operator(x))
    result = y * 3
    y.view(-1)[:1].zero_()
    return result


def write_operand(operator: Program, x: Any, z: Any) -> Any:
    x = x * 1
    y = _tensor(operator(x))
    x[0] = 1
    return y, z * 2


def write_operand_without_gradients(operator: Program, x: Any, z: Any) -> Any:
    x = x * 1
    y = _tensor(operator(x))
    with torch.no_grad():
        x.detach().t().add_(1)
    return y


WRITES = [write_result, write_result_behind, write_operand, write_operand_without_gradients]


def outcome(function: Program) -> Any:
    """The gradients, or the error of backward."""
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.rand(3, 3, generator=generator, dtype=torch.float64)
        .mul(0.6)
        .add_(0.2)
        .requires_grad_()
    )
    z = torch.ones(3, requires_grad=True)
    torch.manual_seed(0)
    try:
        results = function(x, z)
    except RuntimeError as error:
        return type(error), str(error)
    results = results if isinstance(results, tuple) else (results,)
    try:
        sum((r * r).sum() for r in results if r.requires_grad).backward()
    except RuntimeError as error:
        return type(error), str(error)
    return x.grad, z.grad


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted[0], type):
        assert found == wanted
    else:
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: str(write.__name__))
def test_backward_raises_where_eagers_does(write: Program) -> None:
    raised = 0
    for operator in UNARY:

        def program(x: Any, z: Any) -> Any:
            return write(operator, x, z)  # noqa: B023

        wanted = outcome(program)
        raised += isinstance(wanted[0], type)
        same(outcome(weft.compile(program, backend=by_operators)), wanted)
        weft.reset()
    assert 10 < raised < len(UNARY)


def _write_to_a_view(x: Any, z: Any) -> Any:
    y, w = x * 1, z * 1
    y[0].mul_(w)
    w.add_(1)
    return y


def _write_to_a_view_its_result(x: Any, z: Any) -> Any:
    y = x * 1
    row = y[0]
    row.mul_(z)
    return y, row.exp_().t()


def _write_without_a_derivative(x: Any, z: Any) -> Any:
    y = torch.unique(x).var(0)
    y.zero_()
    return y.prod(0), z * 2


def _fill_what_has_none(x: Any, z: Any) -> Any:
    y = x // 2
    y.fill_(1)
    return y, z.exp()


def _write_to_an_operand_that_is_given(x: Any, z: Any) -> Any:
    y = x * z
    z.detach().add_(1)
    return y


def _only_what_is_not_used(x: Any, z: Any) -> Any:
    y = x.exp()
    result = z * 2
    y.add_(1)
    return result


@pytest.mark.parametrize("program", [
    _write_to_a_view, _write_to_a_view_its_result, _write_without_a_derivative, _fill_what_has_none,
    _write_to_an_operand_that_is_given, _only_what_is_not_used,
])  # fmt: skip
def test_parts_and_operators_without_a_derivative(program: Program) -> None:
    wanted = outcome(program)
    same(outcome(weft.compile(program, fullgraph=True)), wanted)
