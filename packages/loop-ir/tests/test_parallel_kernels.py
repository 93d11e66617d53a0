"""Independent kernels in one step."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import weft_loop_ir
from scheduling import kernels, scheduled
from torch.nn import functional as F
from weft_loop_ir import Kernel, ParallelKernels, ScheduleOptions
from weft_loop_ir.schedule.parallel_kernels import run_in_parallel

TOGETHER = ScheduleOptions(parallel_kernels=256)


def update(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A step of RMSprop: parameters, then gradients, then averages of squares."""
    third = len(tensors) // 3
    results = []
    groups = zip(tensors[:third], tensors[third : 2 * third], tensors[2 * third :], strict=True)
    for parameter, gradient, square in groups:
        square = square * 0.9 + 0.1 * gradient * gradient
        results += [parameter - 0.01 * gradient / (square.sqrt() + 1e-8), square]
    return tuple(results)


def parameters(count: int) -> list[torch.Tensor]:
    sizes = [(4, 5), (7,), (), (2, 3, 4), (1,)]
    return [torch.rand(sizes[k % count % len(sizes)]) for k in range(3 * count)]


def test_updates_of_many_parameters_are_one_step() -> None:
    schedule = scheduled(update, parameters(20), TOGETHER)
    (step,) = schedule.steps
    assert isinstance(step, ParallelKernels)
    assert len(step.kernels) == 20
    assert "in parallel" in weft_loop_ir.format_schedule(schedule)


def test_the_number_of_kernels_in_a_step_is_limited() -> None:
    schedule = scheduled(update, parameters(20), ScheduleOptions(parallel_kernels=8))
    assert [len(s.kernels) for s in schedule.steps if isinstance(s, ParallelKernels)] == [4, 8, 8]


def test_kernels_in_two_layers_become_two_steps() -> None:
    """Rows that are reduced and then summed by columns need a second kernel, for each input alike."""

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x, -1).sum(0) for x in tensors]

    schedule = scheduled(function, [torch.randn(9, 4 + k) for k in range(5)], TOGETHER)
    assert [len(s.kernels) for s in schedule.steps if isinstance(s, ParallelKernels)] == [5, 5]
    assert not kernels(schedule)


def test_what_follows_several_products_runs_together() -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        q, k, v = (F.gelu(x @ w) for w in weights)
        return torch.softmax(q @ k.t(), -1) @ v

    inputs = [torch.randn(6, 8), *(torch.randn(8, 8) for _ in range(3))]
    schedule = scheduled(function, inputs, TOGETHER)
    together = [s for s in schedule.steps if isinstance(s, ParallelKernels)]
    assert [len(s.kernels) for s in together] == [2, 2]  # q and k, then the softmax and v
    assert not kernels(schedule)


def test_large_intermediates_are_not_held_longer() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(x @ w).sum(0) for _ in range(4)]

    inputs = [torch.randn(40, 40), torch.randn(40, 40)]
    options = ScheduleOptions(parallel_kernels=256, parallel_bytes=1000, split_columns=1)
    assert not any(
        isinstance(s, ParallelKernels) for s in scheduled(function, inputs, options).steps
    )


def sums_of_layers(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    sums = []
    for weight in weights:
        x = x @ weight
        sums.append(x.sum(1))
    return sums


@pytest.mark.parametrize(("moved", "together"), [(0, []), (1 << 16, [3]), (1 << 20, [5])])
def test_what_is_held_longer_is_limited(moved: int, together: list[int]) -> None:
    """The last sum stands at the end anyway; each other one holds its product, of 25600 bytes."""
    inputs = [torch.rand(80, 80) / 40 for _ in range(6)]
    options = ScheduleOptions(parallel_kernels=256, moved_bytes=moved)
    schedule = scheduled(sums_of_layers, inputs, options)
    found = [len(s.kernels) for s in schedule.steps if isinstance(s, ParallelKernels)]
    assert found == together


def test_results_of_inputs_alone_come_first() -> None:
    """As the casts of weights that backward reads again."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        casts = []
        for weight in weights:
            casts.append(weight.double())
            x = torch.tanh(x @ casts[-1])
        return [x, *casts]

    inputs = [torch.rand(80, 80, dtype=torch.float64), *(torch.rand(80, 80) for _ in range(5))]
    options = ScheduleOptions(parallel_kernels=3, moved_bytes=1 << 20)
    first, second, *rest = scheduled(function, inputs, options).steps
    assert isinstance(first, ParallelKernels) and isinstance(second, ParallelKernels)
    assert (len(first.kernels), len(second.kernels)) == (2, 3)
    assert not any(isinstance(step, ParallelKernels) for step in rest)


def test_what_only_checks_stays_where_it_is() -> None:
    options = ScheduleOptions(parallel_kernels=256, moved_bytes=1 << 20)
    schedule = scheduled(lambda x: [x.exp(), x.sum(0)], [torch.rand(80, 80)], ScheduleOptions())
    made, checking = kernels(schedule)
    checking = replace(checking, writes=())
    sizes = dict.fromkeys(schedule.buffers, 1 << 10)
    steps = run_in_parallel([checking, made], schedule.buffers, sizes, options, itertools.count())
    assert steps == (checking, made)


def test_what_several_steps_write_stays_in_order() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.scatter_add(0, i, y), torch.cat([x, y])]

    inputs = [torch.rand(4, 3), torch.tensor([[0, 1, 2], [3, 3, 3]]), torch.rand(2, 3)]
    options = ScheduleOptions(parallel_kernels=256, moved_bytes=1 << 20)
    for step in scheduled(function, inputs, options).steps:
        names = [n for k in getattr(step, "kernels", ()) for n in k.writes]
        assert len(names) == len(set(names))


def test_a_dependence_within_a_step_is_refused() -> None:
    schedule = scheduled(update, parameters(2), TOGETHER)
    (step,) = schedule.steps
    assert isinstance(step, ParallelKernels)
    first, second = step.kernels
    assert isinstance(first, Kernel)
    wrong = replace(second, reads=(*second.reads, first.writes[0]))
    bad = replace(schedule, steps=(replace(step, kernels=(first, wrong)),))
    with pytest.raises(weft_loop_ir.VerificationError, match="parallel0"):
        weft_loop_ir.verify(bad)
