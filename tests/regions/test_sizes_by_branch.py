"""Results of conditionals whose sizes differ by branch: one graph, right like eager, in inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor


def longer(x: Tensor) -> tuple[Tensor, int]:
    if x.sum() > 2:
        x = torch.cat([x, x[:1] * 2])
    return x * 2, x.shape[0]


def either_part(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[x > 0.5] if x.mean() > 0.5 else x[x < 0.5]
    return y.sum(), y + 1


def two_alike(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    boxes, scores = x[:, None] * torch.ones(2), x * 1
    if scores.max() > 0.9:
        kept = scores > 0.4
        boxes, scores = boxes[kept], scores[kept]
    return (boxes * scores[:, None]).sum(0), boxes, scores


def written_in_either(x: Tensor) -> tuple[Tensor, Tensor]:
    log = torch.zeros(3)
    if x.sum() > 2:
        log[0] = x.sum()
        x = x[x > 0.3]
    else:
        log[1] = x.max()
        x = x[:1]
    return log, x


def written_after(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1
    y = x
    if x.sum() > 2:
        y = x[x > 0.3]
    y.add_(1)
    return x, y


def argument_or_part(x: Tensor) -> Tensor:
    return x[x > 0.3] if x.sum() > 2 else x


def inside_another(x: Tensor) -> Tensor:
    if x.sum() > 2:
        x = (x[x > 0.9] if x.max() > 0.95 else x[x > 0.3]) + 1
    return x


def beside_a_number(x: Tensor) -> tuple[Tensor, Tensor]:
    n = 0
    if x.sum() > 2:
        x, n = x[x > 0.3], 3
    return x, x.new_ones(2) * n


def made_even(x: Tensor) -> Tensor:
    x = x[x > 0.1]
    while x.shape[0] > 1:
        if x.shape[0] % 2 == 1:
            x = torch.cat([x, x.new_zeros(1)])
        x = x[::2].clone() + x[1::2].clone()
    return x


def left_at_one(x: Tensor) -> Tensor:
    order, keep = x.argsort(descending=True), []
    while order.numel() > 0:
        if order.numel() == 1:
            keep.append(order[0])
            break
        i = order[0]
        keep.append(i)
        order = order[1:][(x[order[1:]] - x[i]).abs() > 0.1]
    return torch.stack(keep)


def places_written(x: Tensor) -> tuple[Tensor, int]:
    keep = torch.zeros(x.shape[0], dtype=torch.int64)
    order, count = x.argsort(), 0
    while order.numel() > 0:
        i = order[-1]
        keep[count] = i
        count += 1
        if order.shape[0] == 1:
            break
        order = order[:-1]
        order = order[(x[order] - x[i]).abs() > 0.1]
    return keep, count


def grown_until_finished(x: Tensor) -> Tensor:
    ids = (x * 7).long()[None].repeat(2, 1)
    finished = torch.zeros(2, dtype=torch.bool)
    while ids.shape[1] < 30:
        following = (ids[:, -1] * 3 + ids.sum(1)) % 7
        ids = torch.cat([ids, following[:, None]], 1)
        finished = finished | (following == 5)
        if finished.all():
            break
    return ids


def grown_with_two_ends(x: Tensor) -> tuple[Tensor, int]:
    ids, n = (x * 7).long()[None], 0
    while True:
        following = (ids[:, -1] * 3 + ids.sum(1)) % 7
        ids = torch.cat([ids, following[:, None]], dim=-1)
        n += 1
        if following.max() == 5 or n >= 6:
            break
    return ids, n


def returned_from_the_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    while True:
        mean = x.mean()
        kept = x[x > mean]
        if kept.numel() < 2:
            return x, mean
        x = kept


PROGRAMS = [
    longer,
    either_part,
    two_alike,
    written_in_either,
    written_after,
    argument_or_part,
    inside_another,
    beside_a_number,
    made_even,
    left_at_one,
    places_written,
    grown_until_finished,
    grown_with_two_ends,
    returned_from_the_loop,
]


BEGIN_BY_SIZES = (left_at_one, places_written, grown_until_finished)
"""Programs whose first decision is one of a size that is known before the call."""


def made(seed: int, count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def check_same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected)
    if isinstance(expected, tuple):
        for pair in zip(got, expected, strict=True):
            check_same(*pair)
    elif isinstance(expected, Tensor):
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[[Tensor], Any]) -> None:
    compiled, log = weft.compile(program, fullgraph=True, dynamic=True), weft.CompileLog()
    for seed, count in enumerate([9, 4, 14, 3, 2, 30]):
        x, own = made(seed, count), made(seed, count)
        with weft.observe(log):
            got, expected = compiled(x), program(own)
        check_same(got, expected)
        torch.testing.assert_close(x, own)
        assert (got is x) == (expected is own)
    assert len(log.graphs) == 1 + (program in BEGIN_BY_SIZES)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "weft"])
def test_sizes_that_are_known(program: Callable[[Tensor], Any], backend: str) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=backend)
    for seed in range(4):
        x = made(seed, 7)
        check_same(compiled(x), program(x))
        torch.testing.assert_close(x, made(seed, 7))


def first_after_either(x: Tensor) -> Tensor:
    """Data decides that there is an element, and where there is none the call ends as eager's does."""
    y = x[x > 2] if x[0] > 0.5 else x[1:]
    return y[0] * 2


def test_errors_are_eagers() -> None:
    compiled = weft.compile(first_after_either)
    check_same(compiled(torch.tensor([0.1, 0.2])), first_after_either(torch.tensor([0.1, 0.2])))
    for x in (torch.tensor([0.9, 0.2]), torch.tensor([0.1])):
        with pytest.raises(IndexError) as expected:
            first_after_either(x)
        with pytest.raises(IndexError) as error:
            compiled(x)
        assert str(error.value) == str(expected.value)


def another_test_in_one_branch(x: Tensor) -> tuple[Tensor, Tensor]:
    """The loop's test holds in its body, whichever branch has come to it."""
    total = torch.zeros(())
    while x.numel() > 0:
        total = total + x[0]
        if x[0] > 0.5:
            x = x[x < 0.5]
            continue
        x = x[1:].clone()
    return total, x


def test_the_loops_test_is_relied_on_in_either_branch() -> None:
    compiled = weft.compile(another_test_in_one_branch)
    for seed, count in enumerate([9, 4, 14, 3, 2, 0]):
        x = made(seed, count)
        check_same(compiled(x), another_test_in_one_branch(x))


class Memory(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 2:
            self.kept = torch.cat([self.kept, x[:1]])
        return self.kept * 2


def test_buffers_whose_sizes_branches_change() -> None:
    module, own = Memory(), Memory()
    compiled = weft.compile(module, fullgraph=True)
    for seed in range(5):
        x = made(seed, 5)
        check_same(compiled(x), own(x))
        check_same(module.kept, own.kept)
        assert list(module._buffers) == list(own._buffers)


def trained(x: Tensor, w: Tensor) -> Tensor:
    h = x * w
    if x.sum() > 2:
        h = h[x > 0.3]
    return h.square().sum()


def test_training_is_as_in_eager() -> None:
    compiled = weft.compile(trained)
    for seed in range(4):
        found = []
        for program in (compiled, trained):
            w = torch.full((7,), 2.0, requires_grad=True)
            result = program(made(seed, 7), w)
            found.append((result, *torch.autograd.grad(result, w)))
        torch.testing.assert_close(*found)
