"""Derivative formulas that raise, or divide by the number of elements where there are none: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

BOOLS: tuple[Callable[..., Any], ...] = (
    torch.atan2,
    torch.logaddexp,
    torch.logaddexp2,
    torch.hypot,
)
LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss, F.kl_div)
REDUCTIONS = ("mean", "sum", "none")


def outcome(run: Callable[..., Any], *others: torch.Tensor, size: tuple[int, ...]) -> Any:
    """The result and the gradient, or backward's error."""
    x = torch.linspace(-1, 1, 12)[: torch.Size(size).numel()].reshape(size).requires_grad_()
    try:
        result = run(x, *others)
        result.sum().backward()
    except RuntimeError as error:
        return type(error), str(error)
    return result, x.grad


def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    def program(*values: torch.Tensor) -> Any:
        return run(*values)

    return weft.compile(program)


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.parametrize("function", BOOLS)
@pytest.mark.parametrize("is_first", [True, False])
def test_operands_that_formulas_refuse(
    function: Callable[..., Any], dtype: torch.dtype, is_first: bool, monkeypatch: Any
) -> None:
    monkeypatch.delenv("WEFT_STRICT", raising=False)  # eager raises: the graph is refused

    def run(x: torch.Tensor, other: torch.Tensor) -> Any:
        return function(other, x) if is_first else function(x, other)

    other = torch.tensor([True, False, True, True]).to(dtype)
    weft.reset()
    expected = outcome(run, other, size=(4,))
    found = outcome(compiled(run), other, size=(4,))
    if isinstance(expected[0], type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def in_a_loop(x: torch.Tensor, other: torch.Tensor) -> Any:
    for _ in range(25):
        x = torch.atan2(other, x) * 0.5
    return x


def in_a_branch(x: torch.Tensor, other: torch.Tensor) -> Any:
    return torch.atan2(other, x) if x.sum() < 1 else x * 2


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("program", [in_a_loop, in_a_branch])
def test_operands_that_formulas_refuse_in_regions(
    program: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.delenv("WEFT_STRICT", raising=False)
    other = torch.tensor([True, False, True, True])
    weft.reset()
    expected = outcome(program, other, size=(4,))
    assert isinstance(expected[0], type)
    assert outcome(weft.compile(program), other, size=(4,)) == expected


def test_formulas_of_a_loop_are_refused() -> None:
    x, other = torch.ones(4, requires_grad=True), torch.tensor([True, False, True, True])
    weft.reset()
    with pytest.raises(weft.StageError, match="derivative whose formula raises"):
        weft.compile(in_a_loop, fullgraph=True)(x, other)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [(0,), (0, 4), (3, 0)])
def test_losses_of_nothing(loss: Callable[..., Any], size: tuple[int, ...], reduction: str) -> None:
    def run(x: torch.Tensor) -> Any:
        return loss(x, x.detach() * 2, reduction=reduction)

    expected = outcome(run, size=size)
    torch.testing.assert_close(outcome(compiled(run), size=size), expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("slope", [-0.5, 0.5])
@pytest.mark.parametrize("function", [F.elu, F.celu, F.leaky_relu])
def test_negative_slopes_in_place(
    function: Callable[..., Any], slope: float, monkeypatch: Any
) -> None:
    monkeypatch.delenv("WEFT_STRICT", raising=False)

    def run(x: torch.Tensor) -> Any:
        return function(x * 1, slope, True) * 2

    weft.reset()
    expected, found = outcome(run, size=(4,)), outcome(compiled(run), size=(4,))
    if isinstance(expected[0], type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)
    x = torch.linspace(-1, 1, 4)
    torch.testing.assert_close(weft.compile(run, options={"strict": True})(x), run(x))
