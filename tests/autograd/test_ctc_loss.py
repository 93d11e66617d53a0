"""``F.ctc_loss`` in one graph: values, gradients, errors and infinities are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.nn import functional as F

linear = nn.Linear(3, 5)


def speech(reduction: str, zero_infinity: bool) -> Callable[..., Tensor]:
    def function(x: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return F.ctc_loss(
            linear(x).log_softmax(-1),
            targets,
            lengths,
            target_lengths,
            reduction=reduction,
            zero_infinity=zero_infinity,
        )

    return function


def arguments(steps: int, impossible: bool) -> list[Tensor]:
    torch.manual_seed(steps)
    lengths = torch.tensor([steps, 2 if impossible else steps - 1])
    target_lengths = torch.tensor([3, 2])
    targets = torch.tensor([[1, 2, 4], [3, 3, 1]])
    return [torch.randn(steps, 2, 3), targets, lengths, target_lengths]


def outcome(function: Callable[..., Tensor], *given: Any) -> list[Any]:
    linear.zero_grad()
    loss = function(*given)
    scales = torch.arange(1.0, 1 + loss.numel()).reshape(loss.shape)
    (loss * scales).sum().backward()
    return [loss, linear.weight.grad]


def check(function: Callable[..., Tensor], calls: list[list[Any]]) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(function)
    for given in calls:
        with weft.observe(log):
            found = outcome(compiled, *given)
        torch.testing.assert_close(found, outcome(function, *given), equal_nan=True)
    assert not log.graph_breaks and len(log.graphs) <= 2
    assert not [graph.eager_reason for graph in log.graphs if graph.eager_reason]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("impossible", [False, True])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_training(reduction: str, impossible: bool, zero_infinity: bool) -> None:
    calls = [arguments(steps, impossible) for steps in (6, 6, 7, 8)]
    check(speech(reduction, zero_infinity), calls)


def test_targets_in_one_row_and_another_blank() -> None:
    loss = nn.CTCLoss(blank=4, reduction="sum")

    def function(x: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((2,), x.shape[0])
        return loss(linear(x).log_softmax(-1), targets, lengths, torch.tensor([2, 1]))

    check(function, [[torch.randn(n, 2, 3), torch.tensor([0, 1, 3])] for n in (5, 5, 6)])


def test_one_sequence_without_a_batch() -> None:
    def function(x: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.tensor(x.shape[0]), torch.tensor(2)
        return F.ctc_loss(linear(x).log_softmax(-1), targets, *lengths, reduction="none")

    check(function, [[torch.randn(5, 3), torch.tensor([1, 2])] for _ in range(3)])


def test_lengths_as_numbers_and_a_frozen_model() -> None:
    def function(x: Tensor, targets: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, (4, 5), [2, 1])

    x, targets = torch.randn(5, 2, 4), torch.tensor([[1, 2], [3, 0]])
    log = weft.CompileLog()
    with weft.observe(log):
        found = weft.compile(function)(x, targets)
    torch.testing.assert_close(found, function(x, targets))
    assert not log.graph_breaks


@pytest.mark.parametrize("lengths", [[9, 5], [6, 5, 4]])
def test_errors(lengths: list[int]) -> None:
    function = speech("mean", False)
    given = [*arguments(6, False)[:2], torch.tensor(lengths), torch.tensor([3, 2])]
    with pytest.raises(RuntimeError) as expected:
        function(*given)
    with pytest.raises(RuntimeError) as found:
        weft.compile(function)(*given)
    assert str(found.value) == str(expected.value)


def twice(loss: Tensor) -> None:
    (gradient,) = torch.autograd.grad(loss, linear.weight, create_graph=True)
    gradient.sum().backward()


def test_no_gradient_of_a_gradient() -> None:
    function = speech("mean", False)
    for run in (function, weft.compile(function)):
        loss = run(*arguments(6, False))
        with pytest.raises(RuntimeError):
            twice(loss)


def test_other_dtypes_are_left_to_eager() -> None:
    def function(x: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = linear(x).log_softmax(-1)
            return F.ctc_loss(scores, targets, torch.tensor([5, 4]), torch.tensor([2, 1]))

    given = torch.randn(5, 2, 3), torch.tensor([[1, 2], [3, 0]])
    found, wanted = weft.compile(function)(*given), function(*given)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
