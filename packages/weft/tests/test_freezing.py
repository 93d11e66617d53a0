"""The option ``freezing``: the same results, and changes of parameters are seen."""

from __future__ import annotations

import pytest
import torch
import weft
from torch import nn
from weft.frozen import FrozenProgram


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 1, stride=2), nn.GELU(), nn.Flatten(), nn.Linear(8 * 16, 300)),
    ).eval()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_stay(layout: torch.memory_format, dtype: torch.dtype) -> None:
    model = convolutional().to(dtype=dtype, memory_format=layout)
    compiled = weft.compile(model, options={"freezing": True})
    x = torch.randn(40, 3, 8, 8, dtype=dtype).contiguous(memory_format=layout)
    with torch.no_grad():
        result, expected = compiled(x), model(x)
        exact = model.double()(x.double())
    assert result.stride() == expected.stride()
    error, own = (result - exact).abs().max(), (expected - exact).abs().max()
    assert error <= 2 * own + 1e-5


def test_changes_of_parameters_are_seen() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)
    ).eval()
    compiled = weft.compile(model, options={"freezing": True})
    x = torch.randn(3, 2, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        model[1].running_var.add_(1)
        torch.testing.assert_close(compiled(x), model(x))
        model[3].weight.data = torch.randn(5, 16)
        torch.testing.assert_close(compiled(x), model(x))
        model[3].bias = nn.Parameter(torch.randn(5))
        torch.testing.assert_close(compiled(x), model(x))


def test_what_the_graph_writes_to_is_no_constant() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.scale * self.count

    model = Counter()
    compiled = weft.compile(model, options={"freezing": True})
    with torch.no_grad():
        for k in range(1, 4):
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), float(k)))


def test_training_ignores_it() -> None:
    model = nn.Linear(4, 2)
    compiled = weft.compile(model, options={"freezing": True})
    compiled(torch.randn(3, 4)).sum().backward()
    assert model.weight.grad is not None


def test_random_numbers_are_drawn_once_a_call() -> None:
    """A program that draws some is not run on values that are no longer true."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x) * self.scale * 2

    model = Noisy()
    compiled = weft.compile(model, options={"freezing": True})
    x = torch.empty(3)
    with torch.no_grad():
        for seed in range(3):
            results = []
            for function in (compiled, model):
                torch.manual_seed(seed)
                results.append(function(x))
                results.append(torch.rand(2))
            assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
            model.scale.add_(1)


def test_an_error_of_former_values_is_not_the_callers() -> None:
    """What is run before parameters are looked at may fail on what they were."""
    tensor, calls = torch.zeros(()), []

    class Program:
        source, kernel_count, extern_count = "", 0, 0

        def __init__(self, value: float) -> None:
            self.value = value

        def __call__(self, *inputs: object) -> tuple[object, ...]:
            calls.append(self.value)
            if self.value < 1:
                raise IndexError(self.value)
            return (self.value,)

    program = FrozenProgram(lambda: Program(tensor.item()), [tensor], leaves_no_trace=True)
    with pytest.raises(IndexError):
        program()
    tensor.add_(1)
    assert program() == program() == (1.0,)
    tensor.add_(1)
    assert program() == (2.0,)
    assert calls == [0.0, 0.0, 1.0, 1.0, 1.0, 2.0]


def test_tensors_of_inference_mode_stay_inputs() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 3)
    compiled = weft.compile(model, options={"freezing": True})
    x = torch.randn(2, 4)
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
            model.weight.add_(1)
