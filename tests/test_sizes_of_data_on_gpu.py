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
