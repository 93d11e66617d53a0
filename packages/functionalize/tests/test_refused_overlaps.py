"""Writes whose operands overlap what is written: refused exactly where eager raises an error for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
from beside_eager import check
from weft_functionalize import Unsupported, functionalize

FIRST_TWO = torch.tensor([0, 1])
ZEROS = torch.zeros(2, 4, dtype=torch.int64)

Write = Callable[[torch.Tensor], torch.Tensor]

# Of a matrix of four by four.
WRITES: dict[str, Write] = {
    "next rows": lambda y: y[1:].add_(y[:3]),
    "other rows": lambda y: y[2:].add_(y[:2]),
    "itself": lambda y: y.mul_(y),
    "its first row": lambda y: y.sub_(y[0]),
    "row after row": lambda y: y[1:].sub_(y[0]),
    "an element of it": lambda y: y.div_(y[0, 0]),
    "an element beside it": lambda y: y[1:].div_(y[0, 0]),
    "transposed": lambda y: y.add_(y.t()),
    "with another dimension": lambda y: y.view(1, 16).add_(y.view(16)),
    "the same view": lambda y: y[0].view(4, 1).mul_(y[0].view(4, 1)),
    "columns, which are not dense": lambda y: y[:, ::2].add_(y[:, 1::2]),
    "nothing": lambda y: y[:0].add_(y[:1]),
    "copy": lambda y: y[1:].copy_(y[:3]),
    "copy of a row of it": lambda y: y[1:].copy_(y[2]),
    "clamp": lambda y: y[1:].clamp_(y[:3]),
    "lerp": lambda y: y[1:].lerp_(y[:3], 0.5),
    "addcmul": lambda y: y[1:].addcmul_(y[:3], y[:3]),
    "comparison": lambda y: y[1:].eq_(y[:3]),
    "fill": lambda y: y.view(-1)[:3].fill_(y[0, 0]),
    "masked_fill": lambda y: y[1:].masked_fill_(y[1:] > 0, y[2, 0]),
    "scatter": lambda y: y[1:3].scatter_(0, ZEROS, y[:2]),
    "scatter_add": lambda y: y[1:3].scatter_add_(0, ZEROS, y[:2]),
    "scatter_reduce": lambda y: y[1:3].scatter_reduce_(0, ZEROS, y[:2], "amax"),
    "index_put": lambda y: y[1:].index_put_((FIRST_TWO,), y[:2]),
    "index_add": lambda y: y[1:].index_add_(0, FIRST_TWO, y[:2]),
    "index_copy": lambda y: y[1:].index_copy_(0, FIRST_TWO, y[:2]),
    "cumsum": lambda y: y[1:].cumsum_(0),
}


class Program(torch.nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def forward(self, y: torch.Tensor) -> tuple[torch.Tensor]:
        self.write(y)
        return (y + 1,)


@pytest.mark.parametrize("name", WRITES)
def test_refused_where_eager_raises(name: str) -> None:
    module = torch.fx.symbolic_trace(Program(WRITES[name]))
    y = torch.linspace(-1, 2, 16).reshape(4, 4)
    try:
        module(y.clone())
    except RuntimeError:
        with pytest.raises(Unsupported, match="overlaps what is written"):
            functionalize(module, [y])
    else:
        check(module, y)


def test_both_happen() -> None:
    raised = []
    for name, write in WRITES.items():
        try:
            write(torch.linspace(-1, 2, 16).reshape(4, 4))
        except RuntimeError:
            raised.append(name)
    assert 12 <= len(raised) <= len(WRITES) - 10


def subtracts_from_a_row(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y[0].sub_(1)
    return (y + 1,)


def makes_what_overlaps_itself(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = y.new_empty_strided((4, 4), (0, 1))
    rows[0].copy_(y[0])
    return (rows + 1,)


OVERLAPPING = {
    "a repeated row": torch.ones(1, 4).expand(3, 4),
    "windows": torch.arange(6.0).as_strided((3, 4), (1, 1)),
}


@pytest.mark.parametrize("example", OVERLAPPING.values(), ids=OVERLAPPING)
def test_inputs_that_overlap_themselves_are_not_written(example: torch.Tensor) -> None:
    module = torch.fx.symbolic_trace(subtracts_from_a_row)
    with pytest.raises(Unsupported) as raised:
        functionalize(module, [example])
    assert raised.value.kind == "write to a tensor that overlaps itself"
    assert raised.value.hint


def test_what_a_program_makes_to_overlap_itself_is_not_written() -> None:
    with pytest.raises(Unsupported, match="overlaps itself"):
        functionalize(torch.fx.symbolic_trace(makes_what_overlaps_itself), [torch.ones(4, 4)])


@pytest.mark.parametrize(
    "y", [torch.ones(1, 4).expand(1, 4), torch.ones(4, 8)[:, ::2], torch.ones(4, 4).t()]
)
def test_those_with_gaps_or_other_orders_are_written(y: torch.Tensor) -> None:
    check(torch.fx.symbolic_trace(subtracts_from_a_row), y)
