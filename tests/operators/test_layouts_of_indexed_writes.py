"""Writes by index to tensors that lie otherwise than in rows: values and strides beside eager."""

from __future__ import annotations

import pytest
import torch
import weft
from torch import Tensor

LAYOUTS: dict[str, Tensor] = {
    "transposed": torch.linspace(-1, 2, 20).view(4, 5).t(),
    "rows with gaps": torch.linspace(-1, 2, 40).view(5, 8)[:, ::2],
    "repeated": torch.linspace(-1, 2, 4).expand(5, 4),
    "permuted": torch.linspace(-1, 2, 120).view(4, 6, 5).permute(2, 0, 1),
    "channels last": torch.linspace(-1, 2, 120)
    .view(5, 4, 2, 3)
    .contiguous(memory_format=torch.channels_last),
}
INDEX = torch.tensor([0, 3])


def writes(x: Tensor) -> tuple[Tensor, ...]:
    row = torch.ones_like(x[:2])
    places = torch.zeros_like(x[:2], dtype=torch.int64) + 3
    return (
        x.index_fill(0, INDEX, 9.0),
        x.index_fill(1, INDEX, torch.tensor(9.0)),
        x.index_copy(0, INDEX, row),
        x.index_add(0, INDEX, row),
        x.index_reduce(0, INDEX, row, "amax"),
        x.scatter(0, places, row),
        x.scatter(0, places, 9.0),
        x.scatter_add(0, places, row),
        x.scatter_reduce(0, places, row, "amin"),
        x.index_put((INDEX,), row),
        x.index_put((INDEX,), row, accumulate=True),
        x.masked_fill(x > 0, 9.0),
        x.masked_scatter(x > 0, torch.ones_like(x)),
        x.select_scatter(x[1] * 2, 0, 2),
        x.slice_scatter(row, 0, 1, 3),
        x.diagonal_scatter(x.diagonal() * 2),
        x.put(INDEX, torch.tensor([8.0, 9.0])),
    )


def writes_in_place(x: Tensor) -> tuple[Tensor, ...]:
    row = torch.ones_like(x[:2])
    places = torch.zeros_like(x[:2], dtype=torch.int64) + 3
    return (
        x.clone().index_fill_(0, INDEX, 9.0),
        x.clone().index_copy_(0, INDEX, row),
        x.clone().index_add_(0, INDEX, row),
        x.clone().scatter_(0, places, row),
        x.clone().scatter_add_(0, places, row),
        x.clone().index_put_((INDEX,), row),
        x.clone().masked_fill_(x > 0, 9.0),
        x.clone().put_(INDEX, torch.tensor([8.0, 9.0])),
    )


@pytest.mark.parametrize("index", [-1, -5, 4, -6, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bfloat16, torch.bool])
def test_index_fill_from_the_end(index: int, dtype: torch.dtype) -> None:
    def program(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        x.t().index_fill_(-1, i, 1)
        return (
            x.index_fill(0, i, 2),
            x.index_fill(-2, i, torch.tensor(3)),
            x.index_fill(0, i[0], 1),
            x[0, 0].index_fill(0, i * 0, 1),
        )

    found = []
    for run in (program, weft.compile(program)):
        x = torch.zeros(5, 4, dtype=dtype)
        try:
            found.append(("", *run(x, torch.tensor([index])), x))
        except IndexError as error:
            found.append((str(error), x))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1:], found[0][1:])


@pytest.mark.parametrize("program", [writes, writes_in_place])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_like_eager(program: object, layout: str) -> None:
    x = LAYOUTS[layout]
    expected, found = program(x), weft.compile(program)(x)  # type: ignore[operator]
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(left, right, msg=lambda text, n=number: f"result {n}: {text}")
        assert (number, left.stride()) == (number, right.stride())
