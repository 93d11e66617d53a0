"""Kept loops with several ends of an iteration: ``continue``, ``break`` inside a branch or before sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor


def skipping(x: Tensor) -> tuple[Tensor, int]:
    i, total, skipped = 0, x.new_zeros(()), 0
    while i < x.shape[0]:
        value = x[i]
        i += 1
        if value < 0:
            skipped += 1
            continue
        if value > 1:
            total = total * 0.5
            continue
        total = total + value
    return total, skipped


def rejecting_steps(x: Tensor) -> tuple[Tensor, int]:
    time, step, accepted = 0.0, 0.25, 0
    while time < 1.0:
        change = step * x.sin()
        error = change.abs().max().item()
        if error > 0.1:
            step = step * 0.5
            continue
        x = x - change
        time += step
        accepted += 1
    return x, accepted


def skipping_by_two_tests(x: Tensor) -> tuple[Tensor, Tensor]:
    total, count = x.sum() * 0, torch.zeros((), dtype=torch.int64)
    while total < 3 and count < 20:
        count = count + 1
        if x[count % len(x)] < 0:
            continue
        total = total + x[count % len(x)]
    return total, count


def stopping_in_a_branch(x: Tensor) -> tuple[Tensor, Tensor]:
    best, step = x.square().sum(), torch.ones(())
    for _ in range(40):
        changed = x - step * x
        value = changed.square().sum()
        if value < best:
            is_done = best - value < 1e-3
            x, best = changed, value
            if is_done:
                break
        else:
            step = step * 0.5
    return x, step


def returning_in_a_branch(x: Tensor) -> Tensor:
    for k in range(40):
        x = x * 0.7
        if x.sum() > 0:
            if x.abs().max() < 0.1:
                return x + k
            x = x - 0.01
        else:
            x = x + 0.02
    return -x


def skipping_an_inner_loop(x: Tensor) -> Tensor:
    total = x.sum() * 0
    for row in x.expand(40, -1):
        if total > row.sum():
            total = total * 0.5
            continue
        for k in range(3):
            if row[k] > 0:
                total = total + row[k]
    return total


def sum_that_begins_as_a_number(x: Tensor) -> tuple[Tensor, Tensor]:
    total = 0.0
    for _ in range(40):
        x = x * 0.8
        total = total + x.abs().sum()
        if x.abs().max() < 0.2:
            break
    return total, x


def loss_until_either(x: Tensor) -> tuple[Tensor, Tensor]:
    loss = 0
    for i in range(60):
        loss = loss + (x * x).mean()
        x = x - 0.1 * x
        if loss > 5 or x.abs().max() < 0.3 - i * 0.001:
            break
    return loss / (i + 1), x


def returning_a_sum(x: Tensor) -> tuple[Tensor, int]:
    total = 0
    for i in range(60):
        total = total + x.sum()
        x = x * 0.9
        if total.abs() > 20:
            return total, i
    return total * 2, -1


PROGRAMS = (
    sum_that_begins_as_a_number,
    loss_until_either,
    returning_a_sum,
    skipping,
    rejecting_steps,
    skipping_by_two_tests,
    stopping_in_a_branch,
    returning_in_a_branch,
    skipping_an_inner_loop,
)


def check_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)
    tensors = [v for v in (want if isinstance(want, tuple) else (want,)) if isinstance(v, Tensor)]
    found = [v for v in (got if isinstance(got, tuple) else (got,)) if isinstance(v, Tensor)]
    assert [t.stride() for t in found] == [t.stride() for t in tensors]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for seed, count in ((0, 32), (1, 32), (2, 41)):
        x = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        check_same(compiled(x.clone()), program(x.clone()))


@pytest.mark.parametrize(
    "program",
    [skipping, stopping_in_a_branch, returning_in_a_branch, *PROGRAMS[:2]],
    ids=lambda p: p.__name__,
)
def test_gradients_are_as_in_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program)
    for seed in range(2):
        found = []
        for each in (compiled, program):
            x = torch.randn(36, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            result = each(x)
            result = result[0] if isinstance(result, tuple) else result
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(*found)


# -- ``break`` on data before sizes decide whether there is another iteration ----------------------------


def greedy(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    chosen, values = [], []
    while scores.numel() > 0:
        best = scores.argmax()
        if scores[best] < 0.3:
            break
        chosen.append(boxes[best])
        values.append(scores[best])
        keep = (boxes - boxes[best]).abs().sum(1) > 0.4
        boxes, scores = boxes[keep], scores[keep] * 0.9
    if not chosen:
        return boxes[:0], scores[:0]
    return torch.stack(chosen), torch.stack(values)


def greedy_by_length(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    total, last = scores.sum() * 0, scores[0]
    while len(scores):
        last = scores.max()
        if last < 0.2:
            break
        total = total + last
        keep = scores < last
        boxes, scores = boxes[keep], scores[keep]
    return total + last, boxes


def returning_early(boxes: Tensor, scores: Tensor) -> Tensor:
    while scores.shape[0] > 2:
        least = scores[scores.argmin()]
        if least > 0.5:
            return boxes.sum() * scores.sum()
        scores = scores[scores > least]
    return boxes.sum()


def two_calls(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    near = boxes[:, 0] > 0.5
    first, _ = greedy(boxes[near], scores[near])
    return first, greedy(boxes, scores)[1]


@pytest.mark.parametrize(
    ("program", "inference"),
    [
        (greedy, False),
        (greedy, True),
        (greedy_by_length, True),
        (returning_early, False),
        (returning_early, True),
        pytest.param(two_calls, False, marks=pytest.mark.slow),
        (two_calls, True),
    ],
)
def test_sizes_and_breaks(program: Callable[[Tensor, Tensor], Any], inference: bool) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for seed, count in ((0, 9), (1, 14), (2, 14), (3, 25), (4, 2)):
        made = torch.Generator().manual_seed(seed)
        with torch.inference_mode(inference), torch.no_grad():
            boxes = torch.rand(count, 4, generator=made)
            scores = torch.rand(count, generator=made)
            check_same(compiled(boxes, scores), program(boxes, scores))


def test_sizes_that_were_equal_by_chance() -> None:
    def lengths(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(())
        while a.numel() > 1:
            if total > 100:
                break
            total = total + a.sum()
            keep = a < a.max()
            a = a[keep]
            b = b[: a.numel()]
        return total + b.sum()

    compiled = weft.compile(lengths)
    for first, second in ((6, 6), (7, 9), (9, 7), (8, 8)):
        a, b = torch.rand(first), torch.rand(second)
        check_same(compiled(a, b), lengths(a, b))


def written_elements(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum() * 0
    for place in places:
        element = x[place]
        total = total + element.sum()
        if total > 1:
            x[place] = x[place] * 0.5
    return total, x


def elements_before_a_write(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum() * 0
    for place in places:
        element = x[place]
        x.mul_(0.5)
        if total < 3:
            total = total + element.sum()
    return total, x


def added_elements(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    count = torch.zeros((), dtype=torch.int64)
    for place in places:
        x[place] += 1
        count = count + (x[place].sum() > 4)
    return count, x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "program", [written_elements, elements_before_a_write, added_elements], ids=lambda p: p.__name__
)
def test_elements_that_are_written(program: Callable[[Tensor, Tensor], Any], mode: Any) -> None:
    compiled = weft.compile(program)
    for seed in range(3):
        made = torch.Generator().manual_seed(seed)
        with mode():
            x = torch.rand(5, 2, generator=made)
            places = torch.randint(0, 5, (40,), generator=made)
            check_same(compiled(x.clone(), places), program(x.clone(), places))
