"""Whether two tensors of one storage may have an element in common."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_functionalize.tensor_ssa.layout import Window

MEMORY = torch.arange(4096)


@st.composite
def parts(draw: st.DrawFn) -> torch.Tensor:
    """A part of one block of memory, by any strides, or by those of a dense tensor."""
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 5), max_size=3))
        strides = draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)))
        return MEMORY.as_strided(sizes, strides, draw(st.integers(0, 30)))
    part = MEMORY[:120].view(4, 5, 6)
    for dim in range(3):
        begin = draw(st.integers(0, part.shape[dim] - 1))
        length = draw(st.integers(1, part.shape[dim] - begin))
        part = part.narrow(dim, begin, length)
    return part.permute(draw(st.permutations(range(3))))


@given(parts(), parts())
@settings(max_examples=400, deadline=None)
def test_parts_that_meet_are_found(one: torch.Tensor, other: torch.Tensor) -> None:
    meet = bool(set(one.flatten().tolist()) & set(other.flatten().tolist()))
    first, second = Window.of_tensor(one), Window.of_tensor(other)
    assert first.may_meet(second) or not meet
    assert first.may_meet(second) == second.may_meet(first)


@given(st.integers(2, 8), st.integers(1, 9), st.integers(1, 5))
def test_chunks_of_columns_are_apart(chunks: int, width: int, rows: int) -> None:
    parts = [
        *map(Window.of_tensor, MEMORY[: rows * chunks * width].view(rows, -1).chunk(chunks, 1))
    ]
    for number, part in enumerate(parts):
        assert [part.may_meet(other) for other in parts] == [k == number for k in range(chunks)]
