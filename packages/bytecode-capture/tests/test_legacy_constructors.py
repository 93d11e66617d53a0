"""``x.new(...)``: a tuple that is a torch.Size is a size, one that is none is data."""

import pytest
import torch
from weft_bytecode_capture import capture

MAKES = [
    lambda x: x.new(x.size()),
    lambda x: x.new(x.shape[:1]),
    lambda x: x.new(torch.Size([2, 2])),
    lambda x: x.new(x.size(0)),
    lambda x: x.new(2, x.shape[1]),
    lambda x: x.new(),
    lambda x: x.new((2, 3)),
    lambda x: x.new([1.0, 2.0, 3.0]),
    lambda x: torch.Tensor(x.shape),
    lambda x: torch.Tensor(2, 3),
    lambda x: torch.FloatTensor(x.size()),
    lambda x: torch.Tensor([1, 2]),
]


@pytest.mark.parametrize("make", MAKES)
def test_sizes_are_those_of_eager(make) -> None:
    def function(x):
        made = make(x)
        return torch.zeros_like(made), made.shape, made.dtype

    captured = capture(function)
    for rows in (2, 3, 4):
        x = torch.ones(rows, 3, dtype=torch.float64)
        result, wanted = captured(x).result, function(x)
        assert torch.equal(result[0], wanted[0]) and result[1:] == wanted[1:]
