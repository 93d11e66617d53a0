"""Sizes and numbers that data decide in programs for GPUs, in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
import weft
import weft.registry
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.sizes_of_data_programs import IN_TRAINING, PROGRAMS, check, check_training, made
from tests.triton_interpreter import require_interpreter

require_interpreter()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    codegen = TritonCodegen(TritonOptions(interpret=True))
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: copy.copy(codegen))


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_inference(name: str) -> None:
    compiled = weft.compile(PROGRAMS[name], fullgraph=True)
    for seed, rows in enumerate((6, 9, 6)):
        check(compiled, PROGRAMS[name], made(seed, rows))


@pytest.mark.parametrize("function", IN_TRAINING, ids=lambda function: function.__name__)
def test_in_training(function) -> None:
    compiled = weft.compile(function, fullgraph=True)
    for seed, rows in enumerate((6, 9)):
        check_training(compiled, function, made(seed, rows))


def test_no_element_is_selected() -> None:
    compiled = weft.compile(PROGRAMS["selected"], fullgraph=True)
    for x in (made(0, 5), -torch.ones(5, 4), made(1, 5)):
        check(compiled, PROGRAMS["selected"], x)


def test_what_is_relied_on_is_checked() -> None:
    def first_and_pairs(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].view(-1, 2)

    compiled = weft.compile(first_and_pairs, fullgraph=True)
    x = torch.tensor([1.0, 2.0, -1.0, 3.0, 4.0])
    torch.testing.assert_close(compiled(x), first_and_pairs(x))
    with pytest.raises(RuntimeError):
        compiled(torch.tensor([1.0, 2.0, -1.0, 3.0, -4.0]))
