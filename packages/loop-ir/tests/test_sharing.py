"""What is materialised of values that several operators use."""

from __future__ import annotations

import math

import torch
from scheduling import scheduled
from weft_loop_ir import BufferKind, ExternCall, Schedule, evaluate

BF16 = torch.bfloat16


def large_intermediates(schedule: Schedule, elements: int) -> list[torch.dtype]:
    """The dtypes of what is kept of tensors of so many elements."""
    return [
        b.layout.dtype
        for b in schedule.buffers.values()
        if b.kind is BufferKind.INTERMEDIATE
        and math.prod(int(n) for n in b.layout.size) == elements
    ]


def deviations(x: torch.Tensor, mean: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The backward pass of a normalisation by columns reads ``x - mean`` twice."""
    deviation = x.float() - mean
    share = (g.float() * deviation).sum(0, keepdim=True)
    return share, (g.float() - deviation * share).to(x.dtype)


def test_a_broadcast_operand_is_read_again() -> None:
    x, g = (torch.randn(64, 24).to(BF16) for _ in range(2))
    schedule = scheduled(deviations, (x, torch.randn(1, 24), g))
    assert large_intermediates(schedule, 64 * 24) == []


def test_an_operand_as_large_as_the_result_is_not() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        difference = x - y
        return difference.sum(0), difference.t() @ x

    schedule = scheduled(function, (torch.randn(64, 24), torch.randn(64, 24)))
    assert large_intermediates(schedule, 64 * 24) == [torch.float32]


def test_widened_values_are_kept_in_16_bits() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = torch.where(x > 0, x * y, 0).float()
        first = wide.sum(0, keepdim=True)
        return first, (wide - first).sum(1), (wide * w).sum(0)

    x, y = (torch.randn(64, 24).to(BF16) for _ in range(2))
    schedule = scheduled(function, (x, y, torch.randn(64, 24)))
    assert set(large_intermediates(schedule, 64 * 24)) <= {BF16}


def test_parts_that_torch_takes_for_results_of_their_own_are_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = torch.unsafe_split(x.exp(), 3, 1)
        left, right = torch.unsafe_split_with_sizes(x + 1, (2, 5), 1)
        return first * second, third + left[:, :1], right.sum(1)

    x = torch.randn(5, 7)
    schedule = scheduled(function, (x,))
    assert not any(isinstance(step, ExternCall) for step in schedule.steps)
    for result, expected in zip(evaluate(schedule, (x,)), function(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_what_a_library_gives_in_an_operands_memory_is_kept() -> None:
    """Its schema tells nothing of that, and the operand's memory is another buffer's from then on."""
    with torch.library._scoped_library("weft_sharing", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x.view_as(x), "CompositeExplicitAutograd")
        library._register_fake("same", torch.empty_like)
        same = torch.ops.weft_sharing.same.default

        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            first = same(x + 1)
            return (first * same(first.sum(0) * x),)

        x = torch.randn(6, 6)
        schedule = scheduled(function, (x,))
        (result,) = evaluate(schedule, (x,), use_arena=True)
        torch.testing.assert_close(result, function(x)[0])


def test_results_are_computed_once_they_can_be() -> None:
    """The products of a chain in 16 bits, widened as results, need no memory of their own at the end."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for weight in weights:
            x = (x @ weight).sin()
            results.append((x.t() @ x).float())
        return tuple(results)

    inputs = [torch.randn(16, 16).to(BF16) for _ in range(7)]
    schedule = scheduled(function, inputs)
    assert int(schedule.memory.arena_bytes) <= 4 * 16 * 16 * 2
