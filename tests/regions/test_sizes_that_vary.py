"""Loops whose carried tensors change size: one graph for any number of iterations, right like eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor


def worklist(todo: Tensor) -> tuple[Tensor, Tensor]:
    threshold, count = todo.sum() * 0, torch.zeros((), dtype=torch.int64)
    while todo.numel() > 0:
        threshold = threshold + 0.15
        count = count + todo.numel()
        todo = todo[todo > threshold]
    return count, threshold


def suppressed(boxes: Tensor) -> Tensor:
    order = boxes[:, 0].argsort(descending=True)
    keep = []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        rest = order[1:]
        distance = (boxes[rest] - boxes[i]).abs().sum(1)
        order = rest[distance > 0.9]
    return torch.stack(keep) if keep else order


def suppressed_scores(boxes: Tensor) -> Tensor:
    order = boxes[:, 0].argsort(descending=True)
    keep = []
    while order.numel() > 0:
        i = order[0]
        keep.append(boxes[i])
        order = order[(boxes[order] - boxes[i]).abs().sum(1) > 0.9]
    return torch.stack(keep) if keep else boxes[:0]


def two_that_shrink_alike(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores, total = boxes[:, 0], torch.zeros(())
    picked = scores > 0.1
    boxes, scores = boxes[picked], scores[picked]
    while len(scores) > 0:
        total = total + (boxes * scores[:, None]).sum()
        mask = scores < scores.max()
        boxes, scores = boxes[mask], scores[mask]
    return total, boxes, scores


def exchanged(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x[:, 0]
    short, long = x[x > 0.5], x[x > 0.2]
    while long.numel() > 2:
        short, long = long[1:], short[: short.numel() // 2]
    return short, long


def reached(x: Tensor) -> tuple[Tensor, int]:
    near = x @ x.T > 0.7
    seen = torch.zeros(len(x), dtype=torch.bool)
    front = torch.zeros(1, dtype=torch.int64)
    depth = 0
    while front.numel() > 0:
        found = near[front].any(0) & ~seen
        seen = seen | found
        front = found.nonzero().squeeze(1)
        depth += 1
    return seen, depth


def without_the_close(x: Tensor) -> Tensor:
    x = x.flatten()
    kept = x.new_empty(0)
    while x.numel() > 0:
        kept = torch.cat([kept, x[:1]])
        x = x[(x - x[0]).abs() > 0.1]
    return kept


def rows_of_any_number(x: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(x.shape[1])
    x = x[x[:, 0] > 0.2]
    while x.shape[0] > 0:
        total = total + x.sum(0) + x.amax(0)
        x = x[x[:, 0] > total[0] * 0.2] * 1.1
    return total, x


def appended_now_and_then(x: Tensor) -> tuple[Tensor, int]:
    x, found = x.flatten(), []
    x = x[x > 0.1]
    while x.numel() > 0:
        first = x.sum() / x.numel()
        if first > 0.5:
            found.append(first * 2)
        x = x[1:]
    return torch.stack(found).sum() if found else x.sum(), len(found)


def counted(x: Tensor) -> Tensor:
    """A counted loop that is kept: one row more in each iteration."""
    rows = x[:1]
    for _ in range(20):
        last = torch.softmax(rows[-1:] @ rows.T, -1) @ rows
        rows = torch.cat([rows, torch.tanh(last)])
    return rows


def filtered_in_each(x: Tensor) -> Tensor:
    x = x.flatten()
    for i in range(20):
        x = x[x > i / 40]
    return x


PROGRAMS = [
    worklist, suppressed, suppressed_scores, two_that_shrink_alike, exchanged, reached, without_the_close,
    rows_of_any_number, appended_now_and_then, counted, filtered_in_each,
]  # fmt: skip


def made(seed: int, count: int = 9) -> Tensor:
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))


def check_same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected)
    if isinstance(expected, Tensor):
        assert got.stride() == expected.stride()
    elif isinstance(expected, (tuple, list)):
        for pair in zip(got, expected, strict=True):
            check_same(*pair)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_for_any_sizes(program: Callable[[Tensor], Any]) -> None:
    compiled, log = weft.compile(program, fullgraph=True), weft.CompileLog()
    for seed in range(5):
        with weft.observe(log):
            check_same(compiled(made(seed)), program(made(seed)))
    assert len(log.graphs) == 1
    assert not any(report.unkept_regions for report in log.conversions)


@pytest.mark.parametrize("program", PROGRAMS)
def test_sizes_of_inputs_may_vary_too(program: Callable[[Tensor], Any]) -> None:
    compiled, log = weft.compile(program, fullgraph=True, dynamic=True), weft.CompileLog()
    for seed, count in enumerate([9, 5, 14, 3, 30]):
        with weft.observe(log):
            check_same(compiled(made(seed, count)), program(made(seed, count)))
    assert len(log.graphs) == 1


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in (counted,)])
def test_hardly_any_rows(program: Callable[[Tensor], Any], count: int) -> None:
    if program is reached and count == 0:
        pytest.skip("eager has no row to begin with")
    compiled = weft.compile(program)
    check_same(compiled(made(0, count)), program(made(0, count)))


def no_iteration(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    chosen = x[x > 0.5]
    while chosen.numel() > 3:
        y, chosen = y[1:] * 2, chosen[1:]
    return y, chosen


def test_after_no_iteration_the_result_is_what_there_was() -> None:
    compiled = weft.compile(no_iteration, fullgraph=True)
    y = torch.arange(7.0)
    for x in (torch.zeros(5), torch.ones(8), torch.tensor([0.0, 1.0])):
        got, expected = compiled(x, y), no_iteration(x, y)
        check_same(got, expected)
        assert (got[0] is y) == (expected[0] is y)


def least_of_what_is_left(x: Tensor) -> Tensor:
    total = torch.zeros(())
    x = x[x > 0.1]
    while total < 100:
        total = total + x.min() + 1
        x = x[1:]
    return total


def first_of_what_is_left(x: Tensor) -> Tensor:
    total = torch.zeros(())
    x = x[x > 0.1]
    while total < 100:
        total = total + x[0] + 1
        x = x[1:]
    return total


@pytest.mark.parametrize("program", [least_of_what_is_left, first_of_what_is_left])
def test_errors_in_the_body_are_eagers(program: Callable[[Tensor], Tensor]) -> None:
    compiled = weft.compile(program)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        program(torch.rand(6))
    for _ in range(2):
        with pytest.raises(type(expected.value)) as error:
            compiled(torch.rand(6))
        assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    def halved(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x[x > 0]
        total = x.sum()
        while x.numel() > 1:
            x = x[: x.numel() // 2]
            total = total + x.sum()
        return total, x

    compiled = weft.compile(halved, fullgraph=True)
    for seed in range(3):
        x = (made(seed) * 3).flatten().to(dtype)
        check_same(compiled(x), halved(x))


def gradients_through(x: Tensor) -> Tensor:
    x = x.flatten()
    total = torch.zeros(())
    while x.numel() > 0:
        total = total + x.square().sum()
        x = x[x > total * 0.01]
        total = total + 1
    return total


def test_training_is_as_in_eager() -> None:
    compiled = weft.compile(gradients_through)
    for seed in range(2):
        found = []
        for program in (compiled, gradients_through):
            x = made(seed).requires_grad_()
            result = program(x)
            found.append((result, *torch.autograd.grad(result, x)))
        torch.testing.assert_close(*found)


def test_what_each_iteration_makes_anew_may_begin_with_fewer_dims() -> None:
    def turned(x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        value = chosen.nonzero()
        x.mul_(2)
        for _ in range(4):
            for _ in range(25):
                value = x.rot90(1, (1, 2))
        value.unsqueeze_(0)
        return value, x

    compiled = weft.compile(turned)
    for rows in (3, 4, 2):
        x, chosen = torch.randn(rows, 3, 2, 3), torch.ones(rows, 2)
        got, written = compiled(x.clone(), chosen)
        want, expected = turned(x.clone(), chosen)
        assert got.stride() == want.stride()
        assert torch.equal(got, want) and torch.equal(written, expected)
