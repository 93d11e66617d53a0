"""``x.new(...)``, ``torch.Tensor(...)``: a tuple that is a torch.Size is a size, one that is none is data."""

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture

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


DATA = [
    lambda x: torch.Tensor([x.shape[0], 2.5]) * x.sum(),
    lambda x: torch.Tensor([[True, 2], [3, 4]]),
    lambda x: torch.LongTensor((1, 2)) + x.shape[0],
    lambda x: torch.BoolTensor([[1, 0]]),
    lambda x: torch.HalfTensor([1e10]),
    lambda x: torch.FloatTensor([]),
    lambda x: torch.IntTensor(2, 3).fill_(1),
    lambda x: torch.Tensor(3).zero_(),
]


@pytest.mark.parametrize("make", DATA)
def test_tensors_of_numbers_are_made_in_the_graph(make) -> None:
    captured = capture(make, options=CaptureOptions(fullgraph=True))
    for rows in (2, 3, 4):
        x = torch.ones(rows, 3)
        torch.testing.assert_close(captured(x).result, make(x))


REFUSED = [
    lambda x: torch.Tensor(-1),
    lambda x: torch.ByteTensor([300]),
    lambda x: torch.Tensor([1, [2]]),
    lambda x: torch.Tensor(True),
    lambda x: torch.LongTensor([1.5]),
    lambda x: torch.Tensor(x),
    lambda x: torch.Tensor([x.sum(), 1.0]),
]


@pytest.mark.parametrize("make", REFUSED)
def test_other_arguments_do_what_they_do_in_eager(make) -> None:
    def outcome(function, x):
        try:
            return function(x)
        except (RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    x = torch.ones(2, 3)
    found, wanted = outcome(lambda x: capture(make)(x).result, x), outcome(make, x)
    if isinstance(wanted, str):
        assert found == wanted
        return
    torch.testing.assert_close(found, wanted)
