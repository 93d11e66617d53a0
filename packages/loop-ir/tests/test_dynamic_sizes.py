"""Symbolic sizes: what they may be in, and what is refused."""

from __future__ import annotations

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F


def schedule_of(function: object, *inputs: object) -> weft_loop_ir.Schedule:
    graph = make_fx(function, tracing_mode="symbolic")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    return schedule


def test_numbers_that_sizes_determine_are_computed_in_the_kernel() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[1] ** -0.5 + x.shape[0] / x.shape[1]

    schedule = schedule_of(function, torch.randn(3, 5))
    assert not schedule.fallbacks
    for size in ((3, 5), (7, 2), (40, 9)):
        x = torch.randn(size)
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x])[0], function(x))


def test_numbers_are_divided_by_zero_as_machines_do() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * (x.shape[0] / (x.shape[1] - 2))

    schedule = schedule_of(function, torch.randn(3, 5))
    for size in ((3, 5), (3, 2)):
        x = torch.randn(size)
        expected = x * (torch.tensor(float(size[0])) / (size[1] - 2))
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x])[0], expected)


def test_a_library_call_takes_numbers_that_sizes_determine() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.renorm(x, 2.0, 0, x.shape[1] ** 0.5)

    schedule = schedule_of(function, torch.randn(3, 5))
    for size in ((3, 5), (7, 4)):
        x = torch.randn(size) * 9
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x])[0], function(x))


def test_channels_and_shifts_may_be_symbolic() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, 2).roll(x.shape[2] // 2, 2)

    schedule = schedule_of(function, torch.randn(3, 4, 6))
    for size in ((3, 4, 6), (2, 8, 5)):
        x = torch.randn(size)
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x])[0], function(x))


def test_integers_are_inputs_and_results() -> None:
    graph = make_fx(lambda x, n: (x * n, n // 2 + x.shape[0] % 3), tracing_mode="symbolic")(
        torch.randn(4, 5), 7
    )
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    x = torch.randn(8, 3)
    product, number = weft_loop_ir.evaluate(schedule, [x, 11])
    torch.testing.assert_close(product, x * 11)
    assert number == 5 + 2


def blocks(x: torch.Tensor) -> torch.Tensor:
    """Sums of eight rows each: one row for up to eight."""
    return F.pad(x, (0, 0, 0, -x.shape[0] % 8)).view(-1, 8, x.shape[1]).sum(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: blocks(x) + y,
        lambda x, y: blocks(x).expand_as(y).clone(),
        lambda x, y: blocks(x).squeeze(0) + y[0],
        lambda x, y: blocks(x)[None].squeeze().exp(),
        lambda x, y: torch.cat([blocks(x).expand(3, -1), y]),
        lambda x, y: torch.bmm(blocks(x)[None].expand(2, -1, -1), y.t()[None].expand(2, -1, -1)),
    ],
)
def test_a_computed_size_that_is_known_to_be_one_is_broadcast(function) -> None:
    schedule = schedule_of(function, torch.randn(6, 4), torch.randn(5, 4))
    for rows in (6, 3, 8):  # for which the trace's own relation holds
        x, y = torch.randn(rows, 4), torch.randn(5, 4)
        [found] = weft_loop_ir.evaluate(schedule, [x, y])
        wanted = function(x, y)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
def test_a_number_read_from_a_tensor_is_refused(tracing_mode: str) -> None:
    graph = make_fx(lambda x: x.sum().item(), tracing_mode=tracing_mode)(torch.randn(3))
    with pytest.raises(weft_loop_ir.Unsupported):
        weft_loop_ir.lower(graph)


def test_strides_of_inputs_may_be_symbolic() -> None:
    schedule = schedule_of(lambda x: x.exp() + 1, torch.randn(4, 9)[:, :5])
    for rows, columns, taken in ((4, 9, 5), (3, 40, 2), (7, 8, 8)):
        x = torch.randn(rows, columns)[:, :taken]
        torch.testing.assert_close(weft_loop_ir.evaluate(schedule, [x])[0], x.exp() + 1)
    assert "stride(0)" in weft_loop_ir.format_schedule(schedule)


@pytest.mark.parametrize("left", [(0, 5), (1, 5), (0, 0)])
@pytest.mark.parametrize("right", [(1, 5), (0, 5), (3, 5), (1, 0)])
def test_products_of_no_elements(left: tuple[int, int], right: tuple[int, int]) -> None:
    """0 times a symbol is a number, though the symbol is none."""
    if left[1] != right[1]:
        return
    inputs = torch.randn(left), torch.randn(right)
    for function in (lambda x, y: x @ y.t(), lambda x, y: torch.bmm(x[None], y.t()[None]) + 1):
        (result,) = weft_loop_ir.evaluate(schedule_of(function, *inputs), inputs)
        torch.testing.assert_close(result, function(*inputs))


CUTS = {
    "chunk": lambda x: torch.cat(x.chunk(3, 1)[::-1], 1),
    "tensor_split": lambda x: torch.cat(x.tensor_split(3, 1)[::-1], 1),
    "split": lambda x: torch.cat(x.split((x.shape[1] + 2) // 3, 1)[::-1], 1),
    "slice": lambda x: x[:, x.shape[1] - 2 * (x.shape[1] // 3) :].sin(),
    "narrow": lambda x: x.narrow(1, x.shape[1] % 4, x.shape[1] // 2).sin(),
    "pad": lambda x: F.pad(x, (x.shape[1] // 3, x.shape[1] % 4)),
    "roll": lambda x: x.roll((-(x.shape[1] % 4), 1), (1, 0)),
    "unfold": lambda x: x[:, x.shape[1] % 4 :].unfold(1, 3, 2).sin(),
    "flip": lambda x: x[:, x.shape[1] - 2 * (x.shape[1] // 3) :].flip(1),
    "twice": lambda x: torch.cat([x, x[:, 1:]], 1)[:, x.shape[1] // 2 : 2 * x.shape[1] - 2],
}


@pytest.mark.parametrize("name", CUTS)
def test_parts_whose_sizes_are_computed_have_indices_of_this_package(name: str) -> None:
    """Forward, and the gradient: its slices start where nothing tells the sign of the expression."""

    def function(x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        result = CUTS[name](x)
        return result.detach(), torch.autograd.grad((result * factor).sum(), x)[0]

    factor = torch.tensor(3.0, dtype=torch.float64)
    schedule = schedule_of(function, torch.randn(5, 11, dtype=torch.float64), factor)
    for size in ((5, 11), (4, 14), (3, 17)):
        x = torch.randn(size, dtype=torch.float64)
        for own, eager in zip(
            weft_loop_ir.evaluate(schedule, [x, factor]), function(x, factor), strict=True
        ):
            torch.testing.assert_close(own, eager)
            assert own.stride() == eager.stride()
