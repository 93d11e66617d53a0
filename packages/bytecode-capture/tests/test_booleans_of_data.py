"""Booleans read from tensors by ``item()``, and checks that raise by them: one graph, eager's errors."""

import pytest
import torch
from weft_bytecode_capture import capture


def checked_by_torch(x, count):
    torch._check_tensor_all(count > 0, lambda: f"empty, of {x.shape[0]}")
    return x * 2


def checked_with(x, count):
    torch._check_tensor_all_with(ValueError, count > 0)
    return x * 2


def raised(x, count):
    if not (count > 0).all().item():
        raise ValueError(f"empty {tuple(x.shape)}")
    return x * 2


def returned(x, count):
    found = (count > 0).all().item()
    return x * 2, found


def chosen(x, count):
    return x + 1 if (count > 0).any().item() else x - 1


def counted(x, count):
    found = count.sum()
    if found != x.shape[0]:
        raise ValueError(f"{found} of {x.shape[0]}")
    return x * 2


PROGRAMS = [checked_by_torch, checked_with, raised, returned, chosen, counted]


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except (ValueError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager_in_one_graph(function, gradients) -> None:
    captured = capture(function)
    counts = [torch.ones(3, dtype=torch.long), torch.tensor([2, 0, 1]), torch.zeros(3)]
    for number, count in enumerate(counts):
        x = torch.randn(3, requires_grad=gradients)
        wanted, found = outcome(function, x, count), outcome(captured, x, count)
        if hasattr(found, "result"):
            assert number or (len(found.graphs), len(found.breaks)) == (1, 0)
            found = found.result
        assert str(found).split("grad_fn")[0] == str(wanted).split("grad_fn")[0]
        if function is returned:
            assert found[1] is wanted[1]


def test_no_boolean_of_several() -> None:
    def several(x):
        return (x > 0).item()

    with pytest.raises(RuntimeError) as wanted:
        several(torch.ones(2))
    with pytest.raises(RuntimeError) as found:
        capture(several)(torch.ones(2))
    assert str(found.value) == str(wanted.value)


def one_of_data(x):
    return torch.tensor(x.sum().item() > 0), x * 2


def one_in_place_of_a_tensor(x):
    return torch.as_tensor(x.sum().item() > 0, dtype=torch.float64), x * 2


def of_rows(x):
    return torch.tensor([row.sum().item() > 0 for row in x]), x * 2


def beside_numbers(x):
    decided = [[x.sum().item() > 0, 2], [x.max().item() < 1, 3]]
    return torch.tensor(decided), torch.tensor([x.sum().item() > 0, 1.5]), x * 2


def as_floats(x):
    return torch.tensor([x.sum().item() > 0, True], dtype=torch.float32), x * 2


def of_counts(x):
    count = (x > 0).sum().item()
    return torch.tensor([count > 2, count == 0, False]), x.new_tensor([count > 5]), x * 2


LISTED = [one_of_data, one_in_place_of_a_tensor, of_rows, beside_numbers, as_floats, of_counts]


@pytest.mark.parametrize("function", LISTED)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_tensors_of_booleans(function, gradients, dtype) -> None:
    captured = capture(function)
    for number, value in enumerate((1.0, -1.0, 0.0, 3.0)):
        x = torch.full((2, 3), value, dtype=dtype, requires_grad=gradients)
        wanted, found = function(x), captured(x)
        if hasattr(found, "result"):
            assert number or (len(found.graphs), len(found.breaks)) == (1, 0)
            found = found.result
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=0)
            assert (one.stride(), one.requires_grad) == (other.stride(), other.requires_grad)
