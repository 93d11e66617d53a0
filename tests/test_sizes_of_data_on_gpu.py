"""Sizes and numbers that data decide, on a GPU: one graph, right for any of them."""

from __future__ import annotations

import pytest
import torch
import weft

from tests.sizes_of_data_programs import IN_TRAINING, PROGRAMS, check, check_training, made

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_inference(name: str) -> None:
    compiled = weft.compile(PROGRAMS[name], fullgraph=True)
    for seed, rows in enumerate((6, 90, 6, 400)):
        check(compiled, PROGRAMS[name], made(seed, rows, "cuda"))


@pytest.mark.parametrize("function", IN_TRAINING, ids=lambda function: function.__name__)
def test_in_training(function) -> None:
    compiled = weft.compile(function, fullgraph=True)
    for seed, rows in enumerate((6, 90, 400)):
        check_training(compiled, function, made(seed, rows, "cuda"))


def test_no_element_is_selected() -> None:
    compiled = weft.compile(PROGRAMS["selected"], fullgraph=True)
    for x in (made(0, 50), -torch.ones(50, 4), made(1, 50)):
        check(compiled, PROGRAMS["selected"], x.cuda())


@pytest.mark.parametrize("function", IN_TRAINING, ids=lambda function: function.__name__)
def test_random_numbers_are_drawn_after_calls_of_one_size(function) -> None:
    """A recording that fails left torch's generator in the state of one that goes on."""
    compiled, x = weft.compile(function, fullgraph=True), made(0, 90, "cuda")
    for _ in range(6):
        check_training(compiled, function, x)
    assert torch.randn(3, device="cuda").isfinite().all()


@torch.library.custom_op("weft_tests::waits_unsaid", mutates_args=())
def waits_unsaid(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum())


waits_unsaid.register_fake(torch.empty_like)


def test_what_fails_to_be_recorded_leaves_nothing() -> None:
    def waiting(x: torch.Tensor) -> torch.Tensor:
        y = waits_unsaid(x @ x)
        for _ in range(8):
            y = (y @ x).softmax(-1)
        return y

    def other(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = (x @ x).softmax(-1)
        return x

    x = torch.randn(64, 64, device="cuda") / 8
    for function in (waiting, other, waiting, other):
        compiled = weft.compile(function)
        for _ in range(6):
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
            assert torch.randn(3, device="cuda").isfinite().all()
